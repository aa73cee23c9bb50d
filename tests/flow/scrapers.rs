//! Hostile scrapers, together with a client that compares every byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvrail_tests::Quiet;

use crate::rig::{Place, Sidecar, VOLUME};

/// Connections that send a request and never read.
const SILENT: usize = 300;
/// Scrapers, and the scrapes of each.
const SCRAPERS: usize = 10;
const SCRAPES: usize = 1000;

/// The status of an answer; `None` for a connection that was cut off.
fn ask(address: &str, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    text.split(' ').nth(1)?.parse().ok()
}

/// Requests a long answer, and reads none of it.
fn ask_and_wait(address: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream
}

#[test]
fn ten_thousand_scrapes_and_scrapers_that_never_read_leave_clients_alone() {
    let mut place = Place::with_volume(2, 8 << 20);
    // Scrapers take all cores of a small machine: a poller may be without one for a while.
    place.configure("pollers.stall_after = \"1m\"");
    let (sidecar, address) = Sidecar::start_with_metrics(&place);
    let mut quiet = Quiet::attach(sidecar.socket(), VOLUME).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let rounds = scope.spawn(|| {
            let mut operations = 0;
            // Relaxed: pairs with the store below, a round later is soon enough.
            while !over.load(Ordering::Relaxed) {
                let round = quiet.round(Duration::from_millis(200));
                assert_eq!((round.wrong, round.errors), (0, 0), "{round:?}");
                operations += round.operations;
            }
            operations
        });
        let silent: Vec<_> = (0..SILENT).map(|_| ask_and_wait(&address)).collect();
        let scrape = || {
            // Where there are many connections, the oldest are cut off: those that do not read.
            let answered = (0..SCRAPES).filter(|_| ask(&address, "/metrics") == Some(200));
            answered.count()
        };
        let scrapers: Vec<_> = (0..SCRAPERS).map(|_| scope.spawn(scrape)).collect();
        let answered: usize = scrapers.into_iter().map(|scraper| scraper.join().unwrap()).sum();
        over.store(true, Ordering::Relaxed);
        assert_eq!(answered, SCRAPERS * SCRAPES);
        assert!(rounds.join().unwrap() > 0);
        assert_eq!(ask(&address, "/healthz"), Some(200));
        drop(silent);
    });
    drop(quiet);
    let report = sidecar.status();
    assert!(
        report
            .pollers
            .iter()
            .all(|poller| poller.counters.allocations == Some(0) && poller.stalled.is_none())
    );
    assert_eq!(report.sidecar.counters.log_lines_lost, Some(0));
    sidecar.stop();
}
