//! `kvrail status`, while a client is attached.

use std::fs;
use std::io::{BufReader, Read};
use std::process::Stdio;

use kvrail_client::{Client, Pages, Request};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Deserializer, Value};

use crate::rig::{LONG, Place, Sidecar, kvrail, run};

#[test]
fn status_shows_sessions_as_text_and_as_json() {
    let place = Place::with_volume(2, 8 << 20);
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
    assert!(queue.wait(LONG).unwrap().is_some());

    let socket = place.socket();
    let words = run(kvrail().args(["status", "--socket"]).arg(&socket));
    words.expect(0, &[]);
    let pid = sidecar.pid().to_string();
    let own = std::process::id().to_string();
    for word in ["Serving", &pid, &own, "the test", "VOLUME", "kv", "POLLER", "DEVICE", "MODE"] {
        assert!(words.stdout.contains(word), "no {word:?} in {}", words.stdout);
    }
    assert!(!words.stdout.contains("device 0: "), "reasons are for --verbose: {}", words.stdout);
    let verbose = run(kvrail().args(["status", "--verbose", "--socket"]).arg(&socket));
    assert!(verbose.stdout.contains("device 0: "), "{}", verbose.stdout);

    let mut command = kvrail();
    command.args(["status", "--format", "json", "--config"]).arg(place.configuration());
    let json = run(&mut command);
    json.expect(0, &[]);
    let report: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(report["sidecar"]["pid"], sidecar.pid());
    assert_eq!(report["sidecar"]["state"], "serving");
    assert_eq!(report["devices"].as_array().unwrap().len(), 2);
    let sessions = report["sessions"].as_array().unwrap();
    let ours = sessions.iter().find(|session| session["name"] == "the test").unwrap();
    assert_eq!((&ours["pid"], &ours["queues"]), (&std::process::id().into(), &1.into()));
    assert_eq!((&ours["accepted"], &ours["completed"]), (&1.into(), &1.into()));
    assert_eq!(ours["arena_bytes"], 1 << 20);
    drop((queue, arena));
    sidecar.stop();
}

#[test]
fn a_ready_sidecar_is_ready_in_json() {
    let place = Place::with_volume(2, 8 << 20);
    let mut command = place.serve();
    command.args(["--format", "json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut sidecar = command.spawn().unwrap();
    let mut output = BufReader::new(sidecar.stdout.take().unwrap());
    let report: Value = Deserializer::from_reader(&mut output).into_iter().next().unwrap().unwrap();
    assert_eq!(report["sidecar"]["pid"], sidecar.id());
    assert_eq!(report["sidecar"]["state"], "serving");
    assert_eq!(report["devices"].as_array().unwrap().len(), 2);
    assert_eq!(report["volumes"][0]["name"], "kv");
    Client::attach(place.socket()).expect("it is ready");
    kill_process(Pid::from_child(&sidecar), Signal::TERM).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.trim(), "", "one document");
    let ended = sidecar.wait_with_output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
}

/// Stopped by a signal, the sidecar accepts connections (the kernel does) and answers none.
#[test]
fn a_stopped_sidecar_is_named() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    sidecar.signal(Signal::STOP);
    let silent = run(kvrail().args(["status", "--socket"]).arg(place.socket()));
    sidecar.signal(Signal::CONT);
    let pid = sidecar.pid();
    let words = [format!("pid {pid}, is stopped (state T)"), format!("kill -CONT {pid}")];
    silent.expect(4, &[&words[0], &words[1]]);
    assert!(!silent.stderr.contains("kvrail status"), "{}", silent.stderr);
    sidecar.stop();
}

#[test]
fn status_without_a_sidecar_is_status_4() {
    let place = Place::empty(0);
    let absent = run(kvrail().args(["status", "--socket"]).arg(place.socket()));
    absent.expect(4, &["no sidecar at", "kvrail serve", "systemctl status kvrail"]);
}

/// A broken configuration file for the next start does not keep the running sidecar from answering.
#[test]
fn status_works_with_a_broken_configuration() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    let (socket, file) = (place.socket(), place.path("kvrail.toml"));
    let status_with = |text: &str| {
        fs::write(&file, text).unwrap();
        let mut command = kvrail();
        command.args(["status", "--config"]).arg(&file);
        command
    };
    // The readable part of the file counts.
    let unknown =
        run(&mut status_with(&format!("no_such_key = 1\n[sidecar]\nsocket = {socket:?}\n")));
    let line = format!("using the sidecar at {}", socket.display());
    assert!(unknown.stderr.contains(&line), "{unknown:#?}");
    assert!(unknown.stdout.contains("Serving"), "{unknown:#?}");
    // The environment and --set override it, also where the file is no TOML at all.
    let no_toml = "[[[\n";
    let named = run(status_with(no_toml).env("KVRAIL_SIDECAR__SOCKET", &socket));
    assert!(named.stdout.contains("Serving"), "{named:#?}");
    let set = format!("sidecar.socket={}", socket.display());
    let set = run(status_with(no_toml).args(["--set", &set]));
    assert!(set.stdout.contains("Serving"), "{set:#?}");
    let default = run(&mut status_with(no_toml));
    default.expect(4, &["using the sidecar at /run/kvrail/kvrail.sock"]);
    sidecar.stop();
}

#[test]
fn who_looks_is_no_session() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    let socket = place.socket();
    let status =
        |format: &str| run(kvrail().args(["status", "--format", format, "--socket"]).arg(&socket));
    let alone = status("json");
    alone.expect(0, &[]);
    let report: Value = serde_json::from_str(&alone.stdout).unwrap();
    assert_eq!(report["sessions"], Value::Array(Vec::new()));
    sidecar.stop();
}

#[test]
fn a_watch_goes_on_until_its_reader_goes() {
    let place = Place::with_volume(1, 4 << 20);
    let sidecar = Sidecar::start(&place);
    let mut command = kvrail();
    command.args(["status", "--watch", "1", "--format", "json", "--socket"]).arg(place.socket());
    let mut watch = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = BufReader::new(watch.stdout.take().unwrap());
    let mut reports = Deserializer::from_reader(output).into_iter::<Value>();
    let mut uptime = || reports.next().unwrap().unwrap()["sidecar"]["uptime_ms"].as_u64().unwrap();
    let (first, second) = (uptime(), uptime());
    assert!(second >= first + 900, "{first} {second}");
    drop(reports);
    assert!(watch.wait().unwrap().success());
    sidecar.stop();
}
