//! The endpoint answers, whatever other clients do to it, and never requests more reports than it
//! must.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kvrail_metrics::{Endpoint, Hosts, Listen, MemberMap, SidecarLife};
use kvrail_protocol::{SidecarState, StallReport, StatusReport};

use support::{busy, with_troubles};

/// Results of an endpoint so far: the address where it listens, or why it does not.
type Outcomes = Arc<Mutex<Vec<Result<Listen, String>>>>;

fn start(listen: &Listen, mode: u32, life: SidecarLife) -> (Option<Endpoint>, Outcomes) {
    let outcomes = Outcomes::default();
    let shown = Arc::clone(&outcomes);
    let listening = move |outcome: Result<&Listen, &str>| {
        shown.lock().unwrap().push(outcome.cloned().map_err(str::to_owned));
    };
    let started = Endpoint::start(listen, mode, Hosts::default(), life, Box::new(listening));
    (started.unwrap(), outcomes)
}

fn last(outcomes: &Outcomes) -> Result<Listen, String> {
    outcomes.lock().unwrap().last().cloned().expect("it is shown at once")
}

/// Waits until it listens.
fn eventually_listens(outcomes: &Outcomes) -> Listen {
    let begun = Instant::now();
    while last(outcomes).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{outcomes:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    last(outcomes).unwrap()
}

/// An endpoint of a sidecar with this report, and the number of its requests.
struct Served {
    address: SocketAddr,
    asked: Arc<AtomicU32>,
    _endpoint: Endpoint,
}

fn listen(life: SidecarLife) -> (SocketAddr, Endpoint) {
    let (endpoint, outcomes) = start(&"127.0.0.1:0".parse().unwrap(), 0o600, life);
    let Ok(Listen::Tcp(address)) = last(&outcomes) else { panic!("{outcomes:?}") };
    (address, endpoint.unwrap())
}

fn serve(report: StatusReport) -> Served {
    let (life, asked) = (SidecarLife::default(), Arc::new(AtomicU32::new(0)));
    let (address, endpoint) = listen(life.clone());
    let counter = Arc::clone(&asked);
    let report = with_troubles(report);
    life.serve(
        Box::new(move |answer| {
            counter.fetch_add(1, Ordering::Relaxed);
            answer(report.clone());
        }),
        Box::new(|| vec![MemberMap { device: 3, age_s: vec![None], ..MemberMap::default() }]),
    );
    Served { address, asked, _endpoint: endpoint }
}

/// Status, head and body of an answer.
fn exchange<S: Read + Write>(mut stream: S, request: &str) -> (u16, String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_lowercase(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    exchange(TcpStream::connect(address).unwrap(), &request)
}

#[test]
fn each_path_has_its_answer() {
    let served = serve(busy());
    let (status, head, body) = get(served.address, "/metrics");
    assert_eq!(status, 200);
    assert!(head.contains("text/plain; version=0.0.4") && !body.contains("# EOF"), "{head}");
    let asks =
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n\r\n";
    let (_, head, body) = exchange(TcpStream::connect(served.address).unwrap(), asks);
    assert!(head.contains("application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.ends_with("# EOF\n"));
    assert_eq!(get(served.address, "/livez").2, "ok\n");
    assert_eq!(get(served.address, "/healthz").2, "ok\n");
    assert_eq!(get(served.address, "/readyz").2, "ok\n");
    let (_, _, json) = get(served.address, "/status");
    assert_eq!(serde_json::from_str::<StatusReport>(&json).unwrap(), busy());
    let (status, head, json) = get(served.address, "/history");
    let history: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rings = history["rings"].as_array().unwrap();
    let steps: Vec<_> = rings.iter().map(|ring| ring["step_s"].as_u64().unwrap()).collect();
    assert_eq!((status, steps), (200, vec![10, 60, 600, 3600]), "{head}");
    let (_, head, json) = get(served.address, "/segments");
    let maps: serde_json::Value = serde_json::from_str(&json).unwrap();
    let member = &maps["members"][0];
    assert!(member["device"] == 3 && member["age_s"][0].is_null(), "{head} {json}");
    let (status, head, page) = get(served.address, "/");
    assert!(status == 200 && head.contains("text/html") && page.contains("</html>"), "{head}");
    let (status, _, body) = get(served.address, "/nothing");
    assert!(status == 404 && body.contains("/healthz"), "{body}");
    let post = "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let (status, head, _) = exchange(TcpStream::connect(served.address).unwrap(), post);
    assert!(status == 405 && head.contains("allow: get, head"), "{head}");
    let head_of = "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let (status, _, body) = exchange(TcpStream::connect(served.address).unwrap(), head_of);
    assert_eq!((status, body.as_str()), (200, ""));
}

#[test]
fn what_is_wrong_is_said() {
    let mut stalled = busy();
    stalled.pollers[3].stalled = Some(StallReport { for_s: 12, kernel: "state D at blk".into() });
    let served = serve(stalled);
    let (status, _, why) = get(served.address, "/healthz");
    assert_eq!((status, why.as_str()), (503, "poller 3 has not turned for 12 s: state D at blk\n"));
    assert_eq!(get(served.address, "/readyz").0, 200);
    let (_, _, text) = get(served.address, "/metrics");
    assert!(
        text.contains("kvrail_poller_stalled{poller=\"3\"} 1") && text.contains("kvrail_healthy 0")
    );

    // A restart would stop the pollers that turn.
    assert_eq!(get(served.address, "/livez").2, "ok\n");
    let mut hung = busy();
    let stall = || Some(StallReport { for_s: 12, kernel: "state D at blk".into() });
    hung.pollers.iter_mut().for_each(|poller| poller.stalled = stall());
    let (status, _, why) = get(serve(hung).address, "/livez");
    assert!(status == 503 && why.contains("poller 3 has not turned"), "{status} {why}");

    let mut draining = busy();
    draining.sidecar.state = SidecarState::Draining;
    let served = serve(draining);
    let (status, _, why) = get(served.address, "/readyz");
    assert!(status == 503 && why.contains("draining"), "{why}");
    assert_eq!(get(served.address, "/healthz").0, 200);

    let mut starting = busy();
    starting.shards.iter_mut().for_each(|shard| shard.state = "starting".into());
    let served = serve(starting.clone());
    let (status, _, why) = get(served.address, "/readyz");
    assert!(status == 503 && why.contains("no member of store kv0 serves: starting, "), "{why}");
    starting.shards[9].state = "warming".into();
    assert_eq!(get(serve(starting).address, "/readyz").0, 200);
}

#[test]
fn a_sidecar_that_opens_is_well_and_not_ready() {
    let life = SidecarLife::default();
    let (address, _endpoint) = listen(life.clone());
    assert_eq!(get(address, "/healthz").0, 200);
    let (status, _, why) = get(address, "/readyz");
    assert!(status == 503 && why.contains("opening"), "{why}");
    assert_eq!(get(address, "/metrics").0, 503);
    life.serve(Box::new(|answer| answer(busy())), Box::new(Vec::new));
    // An answer stays for a moment.
    while get(address, "/readyz").0 != 200 {
        std::thread::yield_now();
    }
    assert_eq!(get(address, "/metrics").0, 200);
}

/// Its control thread hangs: simultaneous requests are answered at once, and together.
#[test]
fn a_silent_sidecar_is_not_healthy() {
    let life = SidecarLife::default();
    let (address, _endpoint) = listen(life.clone());
    let kept = std::sync::Mutex::new(Vec::new());
    life.serve(Box::new(move |answer| kept.lock().unwrap().push(answer)), Box::new(Vec::new));
    let start = Instant::now();
    let askers: Vec<_> =
        (0..20).map(|_| std::thread::spawn(move || get(address, "/healthz"))).collect();
    for asker in askers {
        let (status, _, why) = asker.join().unwrap();
        assert!(status == 503 && why.contains("control thread has not answered"), "{why}");
    }
    assert!(start.elapsed() < Duration::from_secs(8), "{:?}", start.elapsed());
}

/// Scrapers that never read, that never send, and that send a letter a second.
#[test]
fn who_does_not_read_keeps_nobody_from_reading() {
    let served = serve(busy());
    let mut idle = Vec::new();
    for at in 0..500 {
        let mut stream = TcpStream::connect(served.address).unwrap();
        if at % 2 == 0 {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        } else {
            stream.write_all(b"GET /met").unwrap();
        }
        idle.push(stream);
    }
    assert_eq!(get(served.address, "/healthz").0, 200);
    assert_eq!(get(served.address, "/metrics").0, 200);
    // The oldest have been cut off.
    let mut first = &idle[1];
    first.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let ended = first
        .read(&mut [0; 64])
        .map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |length| length == 0);
    assert!(ended);
}

#[test]
fn ten_thousand_scrapes_ask_the_sidecar_ten_times_a_second() {
    let served = serve(busy());
    let (address, start) = (served.address, Instant::now());
    let scrape = move || (0..1000).for_each(|_| assert_eq!(get(address, "/healthz").0, 200));
    let scrapers: Vec<_> = (0..10).map(|_| std::thread::spawn(scrape)).collect();
    scrapers.into_iter().for_each(|scraper| scraper.join().unwrap());
    let (took, asked) = (start.elapsed(), served.asked.load(Ordering::Relaxed));
    let most = 2 + u32::try_from(took.as_millis() / 100).unwrap();
    assert!((1..=most).contains(&asked), "{asked} asks in {took:?}");
}

#[test]
fn a_head_without_end_is_refused() {
    let served = serve(busy());
    let mut stream = TcpStream::connect(served.address).unwrap();
    let line = format!("X-{}: {}\r\n", "a".repeat(100), "b".repeat(900));
    let _written = stream.write_all(b"GET / HTTP/1.1\r\n");
    // It may be cut off before all is written.
    let refused = (0..100).any(|_| stream.write_all(line.as_bytes()).is_err());
    let mut answer = Vec::new();
    let _cut = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer);
    assert!(refused || text.starts_with("HTTP/1.1 4"), "{text}");
    assert_eq!(get(served.address, "/healthz").0, 200);
}

#[test]
fn a_port_in_use_is_said_once_and_tried_again() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let listen = Listen::Tcp(address);
    let life = SidecarLife::default();
    life.serve(Box::new(|answer| answer(busy())), Box::new(Vec::new));
    let (_endpoint, outcomes) = start(&listen, 0o600, life);
    let why = format!("metrics.listen = \"{listen}\": Address already in use (os error 98)");
    assert_eq!(last(&outcomes), Err(why.clone()));
    drop(other);
    assert_eq!(eventually_listens(&outcomes), listen);
    assert_eq!(*outcomes.lock().unwrap(), [Err(why), Ok(listen)]);
    assert_eq!(get(address, "/healthz").0, 200);
    assert!(start(&Listen::Off, 0o600, SidecarLife::default()).0.is_none());
}

#[test]
fn a_unix_socket_takes_the_place_of_a_dead_one_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let listen = Listen::Unix(path.clone());
    drop(UnixListener::bind(&path).unwrap()); // what a killed sidecar leaves
    let life = SidecarLife::default();
    life.serve(Box::new(|answer| answer(busy())), Box::new(Vec::new));
    let (endpoint, _told) = start(&listen, 0o640, life.clone());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    let asks = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(exchange(UnixStream::connect(&path).unwrap(), asks).0, 200);
    let (second, outcomes) = start(&listen, 0o600, life.clone());
    assert!(last(&outcomes).unwrap_err().contains("in use"), "{outcomes:?}");
    drop(second);
    assert!(path.exists(), "the first one listens there");
    drop(endpoint);
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    let (third, outcomes) = start(&listen, 0o600, life);
    assert!(last(&outcomes).is_err());
    drop(third);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
}

/// A page whose name was made to lead here reads nothing.
#[test]
fn a_name_that_is_not_this_hosts_is_refused() {
    let served = serve(busy());
    let ask = |path: &str, host: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        exchange(TcpStream::connect(served.address).unwrap(), &request)
    };
    for path in ["/", "/status", "/metrics"] {
        let (status, _, body) = ask(path, "evil.example.org:9464");
        assert!(status == 421 && body.contains("metrics.hosts"), "{path}: {status} {body}");
        assert_eq!(ask(path, "127.0.0.1:9464").0, 200, "{path}");
    }
    for probe in ["/livez", "/healthz", "/readyz"] {
        assert_eq!(ask(probe, "probe.example.org").0, 200);
    }
}
