//! A store above dm-log-writes: the content that the drive had for sure at each flush, with some of
//! the later writes, is written to another drive, and the sidecar opens the store there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};

use super::history::{BULKY, History, Horizon};
use super::load::{Client, Habits, look, seat};
use super::log::{Entry, Log};
use super::{create, place_on};
use crate::machine::{self, namespace, tool};
use crate::rig::{Place, Sidecar, VOLUME, kvrail, run};

/// A store and its load.
#[derive(Clone, Copy, Debug)]
struct Case {
    member_bytes: u64,
    habits: Habits,
}

/// Nothing is evicted, and many requests wait for the medium.
const ROOMY: Case = Case {
    member_bytes: 96 << 20,
    habits: Habits { first_key: 0, keys: 400, durable: 6, drop: 4 },
};
/// The ring is overwritten.
const TIGHT: Case = Case {
    member_bytes: 9 << 20,
    habits: Habits { first_key: BULKY, keys: 48, durable: 40, drop: 6 },
};

/// How long the load runs.
const LOAD: Duration = Duration::from_secs(7);
/// Flushes at which the replay stops by default.
const POINTS: usize = 4;
/// From a put's answer to the end of the write of its record: 100 ms on a usual machine; this one
/// has a fifteenth of a processor.
const SOON: Duration = Duration::from_millis(500);
/// Between two marks with the time.
const MARK_EACH: Duration = Duration::from_millis(150);

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::try_from(now).expect("after the machine's start")
}

/// A device of device-mapper; removed on drop.
struct Mapped(&'static str);

impl Mapped {
    fn new(name: &'static str, table: &str) -> Self {
        tool(&format!(
            "modprobe -a dm-log-writes dm-snapshot; dmsetup create {name} --table '{table}'"
        ));
        // Without udev no other program makes the node.
        tool(&format!("dmsetup mknodes {name}; test -b /dev/mapper/{name}"));
        Self(name)
    }

    fn path(&self) -> PathBuf {
        Path::new("/dev/mapper").join(self.0)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        tool(&format!("dmsetup remove --retry {}", self.0));
    }
}

/// The log of the drive's writes, and the clients' history.
struct Recorded {
    log: Log,
    history: History,
    evicted: u64,
}

/// Writes the time into the log again and again, until the load ends.
fn mark(stop: &AtomicBool) {
    // A hint that orders nothing.
    while !stop.load(Ordering::Relaxed) {
        tool(&format!("dmsetup message recorded 0 mark {}", now().as_nanos()));
        std::thread::sleep(MARK_EACH);
    }
}

/// Load on a store whose drive is recorded.
fn record(case: Case) -> Recorded {
    let [data, log] = [("kvr-main", 1), ("kvr-slow", 1)].map(|(serial, n)| namespace(serial, n));
    machine::wipe_label(&data);
    tool(&format!("dd if=/dev/zero of={} bs=4k count=1 conv=fsync 2>&1", log.display()));
    // The label and the area before the segments.
    let sectors = (case.member_bytes + (8 << 20)) / 512;
    let table = format!("0 {sectors} log-writes {} {}", data.display(), log.display());
    let device = Mapped::new("recorded", &table);
    let place = place_on(device.path(), "interrupt");
    create(&place, case.member_bytes).expect(0, &[]);
    let sidecar = Sidecar::start(&place);
    let stop = AtomicBool::new(false);
    let (history, evicted) = std::thread::scope(|scope| {
        let marks = scope.spawn(|| mark(&stop));
        let mut client = Client::new(seat(&sidecar), History::default(), case.habits, now, |_| {});
        client.work(Instant::now() + LOAD).expect("the sidecar stays");
        // Two flushes and some marks more.
        std::thread::sleep(Duration::from_millis(2500));
        stop.store(true, Ordering::Relaxed); // a hint that orders nothing
        marks.join().expect("marks are taken");
        let counters = &sidecar.status().shards[0].counters;
        let Client { drops, right, misses, .. } = client;
        println!("store-power: {drops} drops, {right} right, {misses} misses, {counters:?}");
        assert!(drops > 0 && right > 0, "nothing was done");
        let evicted = counters.store.evicted.expect("the sidecar sends it");
        assert!(misses == 0 || evicted > 0, "blocks are gone that were not evicted");
        (client.history, evicted)
    });
    sidecar.kill();
    drop(device);
    Recorded { log: Log::read(&log), history, evicted }
}

/// Times of the marks in these entries, in order.
fn marks(entries: &[Entry]) -> impl DoubleEndedIterator<Item = Duration> {
    entries.iter().filter_map(|entry| match *entry {
        Entry::Mark(at) => Some(at),
        _ => None,
    })
}

impl Recorded {
    /// Indices of the flushes.
    fn flushes(&self) -> Vec<usize> {
        let entries = self.log.entries.iter().enumerate();
        entries.filter(|(_, entry)| **entry == Entry::Flush).map(|(at, _)| at).collect()
    }

    /// The content of a drive that has all entries up to one flush, and perhaps more up to another.
    fn horizon(&self, before: usize, flush: usize, up_to: usize) -> Horizon {
        let entries = &self.log.entries;
        // A mark has a time before its entry was made: the next one's is certainly after it.
        let last = marks(&entries[up_to..]).nth(1).unwrap_or(Duration::MAX);
        let dropped = marks(&entries[..flush]).next_back().unwrap_or_default();
        let flushed = marks(&entries[..before]).next_back().and_then(|at| at.checked_sub(SOON));
        let required = |until: Option<Duration>| until.filter(|_| self.evicted == 0);
        Horizon { dropped, kept: required(Some(dropped)), flushed: required(flushed), last }
    }
}

/// A drive that is written from the log, and a snapshot of it that drops its writes.
struct Bench {
    origin: PathBuf,
    scratch: PathBuf,
    sectors: u64,
}

impl Bench {
    fn new(member_bytes: u64) -> Self {
        let (origin, scratch) = (namespace("kvr-pull", 1), namespace("kvr-main", 2));
        machine::wipe_label(&origin);
        Self { origin, scratch, sectors: (member_bytes + (8 << 20)) / 512 }
    }

    fn view(&self) -> Mapped {
        let (origin, scratch) = (self.origin.display(), self.scratch.display());
        tool(&format!("dd if=/dev/zero of={scratch} bs=64k count=1 conv=fsync 2>&1"));
        Mapped::new("view", &format!("0 {} snapshot {origin} {scratch} N 16", self.sectors))
    }
}

fn open(path: &Path) -> File {
    File::options().write(true).open(path).expect("our own device")
}

/// Whether there is the label of a complete store: its creation itself may have been cut.
fn has_store(place: &Place) -> bool {
    run(kvrail().args(["volume", "inspect", VOLUME]).args(&place.members)).code == Some(0)
}

fn points() -> usize {
    let text = std::env::var("KVRAIL_STORE_POINTS").ok();
    text.map_or(POINTS, |text| text.parse().expect("KVRAIL_STORE_POINTS is a number"))
}

fn replay(case: Case) {
    let seed = seed();
    fastrand::seed(seed);
    let recorded = record(case);
    assert_eq!(recorded.evicted > 0, case.member_bytes == TIGHT.member_bytes, "its size is wrong");
    let bench = Bench::new(case.member_bytes);
    let (flushes, mut dice) = (recorded.flushes(), Rng::with_seed(seed));
    let each = flushes.len().div_ceil(points()).max(1);
    let (mut applied, mut looks, mut required, mut found, mut unmade) = (0, 0, 0, 0, 0);
    for (number, &flush) in flushes.iter().enumerate() {
        let to = open(&bench.origin);
        recorded.log.entries[applied..flush]
            .iter()
            .for_each(|entry| recorded.log.apply(entry, &to));
        to.sync_all().expect("our own device");
        applied = flush;
        if (number + 1) % each != 0 && number + 1 != flushes.len() {
            continue;
        }
        let view = bench.view();
        let next = flushes.get(number + 1).copied().unwrap_or(recorded.log.entries.len());
        // Every other time the drive also has a part of the writes that no flush has followed yet.
        let more = looks % 2 == 1;
        if more {
            let to = open(&view.path());
            let after = recorded.log.entries[flush..next].iter().filter(|_| dice.bool());
            after.for_each(|entry| recorded.log.apply(entry, &to));
            to.sync_all().expect("our own device");
        }
        let before = if number == 0 { 0 } else { flushes[number - 1] };
        let horizon = recorded.horizon(before, flush, if more { next } else { flush });
        let place = place_on(view.path(), "interrupt");
        if horizon.dropped == Duration::ZERO && !has_store(&place) {
            unmade += 1;
            continue;
        }
        let sidecar = Sidecar::start(&place);
        let it = look(&sidecar, &recorded.history, &horizon);
        assert!(it.wrong.is_empty(), "seed {seed}, flush {number}: {:#?}", it.wrong);
        looks += 1;
        required += it.required;
        found += it.found.iter().filter(|(_, version)| version.is_some()).count();
        sidecar.kill();
    }
    println!(
        "store-power: seed {seed}: {} entries, {} flushes, {looks} replayed, {unmade} before the \
         store was made, {required} blocks required and found, {found} found, {} evicted",
        recorded.log.entries.len(),
        flushes.len(),
        recorded.evicted
    );
    assert!(
        looks > 2 && found > 0 && (required > 0 || recorded.evicted > 0),
        "nothing was looked at"
    );
}

fn seed() -> u64 {
    let text = std::env::var("KVRAIL_STORE_SEED").ok();
    let seed = text.map_or_else(|| fastrand::u64(..1 << 32), |text| text.parse().expect("a seed"));
    println!("store-power: KVRAIL_STORE_SEED={seed}");
    seed
}

/// All puts that were acknowledged as durable before a flush are there, and all puts of more than
/// 100 ms before the flush; no byte is wrong, no dropped key is back, every start succeeds.
#[test]
fn each_flush_leaves_what_was_promised() {
    if machine::is_ours() {
        replay(ROOMY);
    }
}

/// The same for a ring that is overwritten: evicted blocks are not required, and no old block
/// appears in the place of another one.
#[test]
fn each_flush_of_a_ring_that_is_overwritten_leaves_nothing_wrong() {
    if machine::is_ours() {
        replay(TIGHT);
    }
}
