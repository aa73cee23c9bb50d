//! The machine is reset, or its emulator killed, in the middle of a store's load; the next boot
//! finds the acknowledged blocks. The clients' history is in a file of the host, written before and
//! after each request, which no reset reaches. `vm/power.sh` boots again and again.
//!
//! `KVRAIL_POWER`: `reset` or `kill` ends this boot; `look` only checks.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::history::{Event, History, Horizon, What};
use super::load::{Client, Habits, look, seat};
use super::{create, place_on};
use crate::machine::{self, namespace};
use crate::monitor::Monitor;
use crate::rig::Sidecar;

/// Bytes of the store's member.
const MEMBER_BYTES: u64 = 200 << 20;
/// How long the load runs before the end of power.
const LOAD: Duration = Duration::from_secs(8);
/// From a put's answer to the flush behind its record: a second, and the extra time of this
/// machine.
const FLUSHED_WITHIN: Duration = Duration::from_millis(2500);
/// The host's folder.
const OUT: &str = "/out";

/// The clock that continues while the machine is off.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Realtime);
    Duration::try_from(now).expect("after 1970")
}

fn lines(events: &[Event]) -> String {
    events.iter().map(|event| format!("{event}\n")).collect()
}

/// The history of earlier boots. A line that a reset has cut does not count.
fn history(ledger: &Path) -> (History, Duration) {
    let text = fs::read_to_string(ledger).unwrap_or_default();
    let (mut history, mut last) = (History::default(), Duration::ZERO);
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in whole.lines() {
        let event: Event = line.parse().expect("our own line");
        last = event.at;
        history.add(event);
    }
    (history, last)
}

/// Ends the machine, with requests in flight.
fn end_power(how: &str) {
    let out = Path::new(OUT);
    let marker = File::create(out.join("cut")).expect("the host's folder");
    marker.sync_all().expect("the host's folder");
    if how == "reset" {
        Monitor::open().reset();
    } else {
        fs::write(out.join("kill"), "").expect("the host's folder");
    }
}

#[test]
fn what_was_acknowledged_is_there_after_a_reset() {
    let how = std::env::var("KVRAIL_POWER").ok();
    let Some(how) = how.filter(|_| machine::is_ours()) else {
        return println!("skipped: only `vm/power.sh` boots a machine twice");
    };
    let ledger = Path::new(OUT).join("ledger");
    let is_first = !ledger.exists();
    let place = place_on(namespace("kvr-main", 1), "interrupt");
    if is_first {
        create(&place, MEMBER_BYTES).expect(0, &[]);
    }
    let (mut history, last) = history(&ledger);
    let sidecar = Sidecar::start(&place);
    let flushed = last.checked_sub(FLUSHED_WITHIN);
    let (dropped, kept, last) = (Duration::MAX, Some(Duration::MAX), Duration::MAX);
    let horizon = Horizon { dropped, kept, flushed, last };
    let it = look(&sidecar, &history, &horizon);
    assert!(it.wrong.is_empty(), "{:#?}", it.wrong);
    let there = it.found.iter().filter(|(_, version)| version.is_some()).count();
    println!(
        "store-power: {} keys, {} required and found, {there} found",
        it.found.len(),
        it.required
    );
    assert!(is_first || it.required > 10, "the ledger requires too few keys");
    let mut file = File::options().create(true).append(true).open(&ledger).expect("a ledger");
    // A cut line is ended now, and the content that this boot found is recorded.
    let at = now();
    let found = it.found.iter().map(|(key, version)| {
        let what = version.map_or(What::Gone, What::Kept);
        Event { at, key: *key, what }
    });
    let found: Vec<Event> = found.collect();
    found.iter().for_each(|event| history.add(*event));
    trim(&ledger);
    file.write_all(lines(&found).as_bytes()).expect("the host's folder");
    if how == "look" {
        return sidecar.kill();
    }
    let write = |events: &[Event]| {
        file.write_all(lines(events).as_bytes()).expect("the host's folder");
    };
    let habits = Habits { first_key: 0, keys: 400, durable: 6, drop: 8 };
    let mut client = Client::new(seat(&sidecar), history, habits, now, write);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(LOAD);
            end_power(&how);
        });
        let ended = client.work(Instant::now() + 10 * LOAD);
        panic!("the machine goes on: {ended:?}");
    });
}

/// Cuts the ledger behind its last whole line.
fn trim(ledger: &Path) {
    let bytes = fs::read(ledger).expect("a ledger");
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let file = File::options().write(true).open(ledger).expect("a ledger");
    file.set_len(whole as u64).expect("the host's folder");
}
