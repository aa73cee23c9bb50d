//! The HTTP endpoint of a running sidecar, while clients move blocks.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;

use kvrail_client::{Pages, Request, StatusReport};

use crate::rig::{LONG, Place, Sidecar, eventually, kvrail, run};

/// Requests one path; returns status and body.
pub(crate) fn exchange<S: Read + Write>(mut stream: S, path: &str) -> (u16, String) {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(crate) fn get(socket: &Path, path: &str) -> (u16, String) {
    exchange(UnixStream::connect(socket).unwrap(), path)
}

/// `kvrail serve` with this `metrics.listen`.
pub(crate) fn serve(place: &Place, listen: &str) -> Command {
    let mut command = place.serve();
    command.arg("--set").arg(format!("metrics.listen=\"{listen}\""));
    command
}

fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find(|line| line.starts_with(sample));
    let line = line.unwrap_or_else(|| panic!("no {sample} in {text}"));
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

#[test]
fn what_clients_do_is_counted() {
    let place = Place::with_volume(2, 8 << 20);
    let socket = place.path("metrics");
    let sidecar = Sidecar::start_as(&place, serve(&place, &format!("unix:{}", socket.display())));
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    for at in 0..4 {
        queue.submit(Request::write(&volume, at << 18, arena.lease(4096).unwrap())).unwrap();
        assert!(queue.wait(LONG).unwrap().is_some());
    }
    let (status, text) = get(&socket, "/metrics");
    assert_eq!(status, 200, "{text}");
    let writes: f64 = place
        .members
        .iter()
        .map(|member| {
            let device = format!("device=\"{}\",operation=\"write\"", member.display());
            let count = format!("kvrail_device_latency_seconds_count{{{device},class=\"demand\"}}");
            let operations = format!("kvrail_device_operations_total{{{device}}}");
            assert_eq!(value(&text, &count), value(&text, &operations));
            value(&text, &operations)
        })
        .sum();
    assert_eq!(writes, 4.0);
    assert_eq!((get(&socket, "/healthz").0, get(&socket, "/readyz").0), (200, 200));
    let report: StatusReport = serde_json::from_str(&get(&socket, "/status").1).unwrap();
    assert_eq!(report.sessions.len(), 1, "a scraper is no session");

    drop((queue, arena, client));
    sidecar.stop();
    assert!(!socket.exists(), "it goes with its sidecar");
}

#[test]
fn every_counter_is_sent() {
    let mut place = Place::with_store(1, 64 << 20);
    place.configure("gpu.devices = [\"stand-in:0\"]");
    place.configure("gpu.staging_bytes = \"4MiB\"\ngpu.staging_slot_bytes = \"64KiB\"");
    let sidecar = Sidecar::start(&place);
    let report = sidecar.status();
    let counters = report.sidecar.counters.each().chain(report.shards[0].counters.each());
    let counters = counters.chain(report.pollers[0].counters.each());
    let counters = counters.chain(report.devices[0].counters.each());
    let counters = counters.chain(report.gpus[0].counters.each());
    for (it, count) in counters.chain(report.sessions[0].counters.each()) {
        assert!(count.is_some(), "{} is missing", it.name);
    }
    sidecar.stop();
}

#[test]
fn a_port_in_use_is_a_trouble_until_it_is_free() {
    let place = Place::with_volume(1, 4 << 20);
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let sidecar = Sidecar::start_as(&place, serve(&place, &address.to_string()));
    let words = format!("metrics.listen = \"{address}\": Address already in use");
    assert!(sidecar.stderr().contains(&words), "{}", sidecar.stderr());
    let status = run(kvrail().args(["status", "--socket"]).arg(place.socket()));
    status.expect(9, &[&words]);
    assert!(status.stdout.contains("metrics_not_listening"), "{}", status.stdout);
    drop(other);
    let listens = || TcpStream::connect(address).is_ok();
    eventually("the port is taken", listens);
    let (code, text) = exchange(TcpStream::connect(address).unwrap(), "/metrics");
    assert_eq!(code, 200, "{text}");
    assert!(!text.contains("metrics_not_listening"), "{text}");
    let status = run(kvrail().args(["status", "--socket"]).arg(place.socket()));
    status.expect(0, &[]);
    let listening = format!("metrics and page: http://{address}/");
    eventually("the log names the address", || sidecar.stderr().contains(&listening));
    sidecar.stop();
}

/// As above, at a path.
#[test]
fn a_socket_in_use_is_taken_once_it_is_free() {
    let place = Place::with_volume(1, 4 << 20);
    let socket = place.path("metrics");
    let other = UnixListener::bind(&socket).unwrap();
    let sidecar = Sidecar::start_as(&place, serve(&place, &format!("unix:{}", socket.display())));
    assert!(sidecar.stderr().contains("already in use"), "{}", sidecar.stderr());
    drop(other);
    eventually("it listens", || UnixStream::connect(&socket).is_ok());
    assert_eq!(get(&socket, "/healthz").0, 200);
    sidecar.stop();
    assert!(!socket.exists(), "it goes with its sidecar");
}

/// The socket of another process stays when a sidecar that could not bind it ends.
#[test]
fn a_socket_of_somebody_else_is_left() {
    let place = Place::with_volume(1, 4 << 20);
    let socket = place.path("metrics");
    let _other = UnixListener::bind(&socket).unwrap();
    Sidecar::start_as(&place, serve(&place, &format!("unix:{}", socket.display()))).stop();
    assert!(UnixStream::connect(&socket).is_ok());
}

#[test]
fn the_start_report_has_the_address() {
    let place = Place::with_volume(1, 4 << 20);
    let (sidecar, address) = Sidecar::start_with_metrics(&place);
    assert_eq!(exchange(TcpStream::connect(address).unwrap(), "/healthz"), (200, "ok\n".into()));
    sidecar.stop();
}

#[test]
fn a_place_that_is_none_is_refused_with_what_would_be() {
    let place = Place::with_volume(1, 4 << 20);
    let bad = run(&mut serve(&place, "localhost:9464"));
    bad.expect(2, &["localhost:9464", "127.0.0.1:9464", "unix:", "off"]);
}
