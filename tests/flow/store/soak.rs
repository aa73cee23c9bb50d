//! A ring that wraps again and again under gets and puts: bytes written for each byte put, memory
//! and latencies stay constant. `KVRAIL_SOAK_SECONDS` is the duration; at least twenty laps are
//! made.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use comfy_table::Table;
use hdrhistogram::Histogram;
use kvrail_client::{
    Arena, BlockKey, BlockRequest, Completed, Identity, Namespace, Pages, Queue, Status,
};
use kvrail_tests::bytes_of;

use super::{counter, shards, small_store};
use crate::rig::{LONG, Sidecar, rounds, soak_seconds, until_some};

/// Bytes of the store's member.
const MEMBER_BYTES: u64 = 128 << 20;
/// Client threads, each with keys of its own.
const CLIENTS: u64 = 4;
/// Blocks that a client gets again and again: they are moved, lap after lap.
const HOT: u64 = 8;
/// Rows in which the ring fills and wraps for the first time.
const WARM: usize = 4;
/// Latencies in microseconds since the row began.
struct Times {
    get: Histogram<u64>,
    put: Histogram<u64>,
}

impl Times {
    fn new() -> Self {
        let empty = || Histogram::new(3).expect("three digits");
        Self { get: empty(), put: empty() }
    }
}

/// Data that clients and watcher share.
struct Shared {
    stop: AtomicBool,
    times: Mutex<Times>,
    verified_bytes: AtomicU64,
    misses: AtomicU64,
}

struct Client {
    arena: Arena,
    queue: Queue,
    space: Namespace,
    first: u64,
    /// Blocks that were put.
    put: u64,
    dice: fastrand::Rng,
}

fn length(number: u64) -> u32 {
    fastrand::Rng::with_seed(number).u32(1..=128 << 10)
}

impl Client {
    fn open(sidecar: &Sidecar, number: u64) -> Self {
        let client = sidecar.attach();
        let identity = Identity::new([("model", "soak")]).expect("a document");
        let store = client.store("kv").expect("the store is there");
        let space = store.namespace("soak", &identity).expect("a namespace");
        let arena = client.create_arena(1 << 20, Pages::Auto).expect("memory");
        let queue = client.open_queue(8).expect("a queue");
        let dice = fastrand::Rng::with_seed(number);
        Self { arena, queue, space, first: number << 40, put: 0, dice }
    }

    fn end(&mut self, request: BlockRequest) -> (Completed, u64) {
        let began = Instant::now();
        self.queue.submit(request).expect("room for one");
        let done = self.queue.wait(LONG).expect("the sidecar lives").expect("it ends");
        (done, u64::try_from(began.elapsed().as_micros()).expect("short"))
    }

    /// Puts the next block, again while the store is busy; returns the time of the last try.
    fn put(&mut self) -> u64 {
        let number = self.first + self.put;
        let bytes = bytes_of(number, 1, length(number));
        until_some("a put is taken", || {
            let mut lease = self.arena.lease(bytes.len()).expect("one at a time");
            lease.copy_from_slice(&bytes);
            let (done, us) = self.end(BlockRequest::put(&self.space, key(number), lease));
            match done.status {
                Status::Ok => {
                    self.put += 1;
                    Some(us)
                }
                Status::Declined => None,
                other => panic!("put of {number}: {other}"),
            }
        })
    }

    /// Gets a block, and compares every byte of it; the time it took, or `None` if the block is
    /// gone.
    fn get(&mut self, shared: &Shared) -> Option<u64> {
        let recent = self.put - self.dice.u64(1..=self.put.min(32));
        let hot = self.dice.u64(..HOT.min(self.put));
        // One in five blocks is read again, and so moved once.
        let number = self.first + if self.dice.u8(..5) == 0 { recent } else { hot };
        let bytes = bytes_of(number, 1, length(number));
        let lease = self.arena.lease(bytes.len()).expect("one at a time");
        let (done, us) = self.end(BlockRequest::get(&self.space, key(number), lease));
        match done.status {
            Status::Ok => {
                let lease = done.lease.expect("a get brings its lease back");
                assert!(lease[..] == bytes[..], "{number} has other bytes");
                // A statistic.
                shared.verified_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Some(us)
            }
            Status::Miss => {
                shared.misses.fetch_add(1, Ordering::Relaxed); // a statistic
                None
            }
            other => panic!("get of {number}: {other}"),
        }
    }

    fn work(mut self, shared: &Shared) {
        // A hint that orders nothing.
        while !shared.stop.load(Ordering::Relaxed) {
            let put = self.put();
            let get = self.get(shared);
            let mut times = shared.times.lock().unwrap_or_else(PoisonError::into_inner);
            times.put.saturating_record(put);
            get.into_iter().for_each(|us| times.get.saturating_record(us));
        }
    }
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

/// Figures of a twentieth of the time.
#[derive(Debug)]
struct Row {
    laps: f64,
    amplification: f64,
    resident_kib: u64,
    /// p50 and p99, in microseconds.
    get: [u64; 2],
    put: [u64; 2],
}

/// Resident memory of a process.
fn resident_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("as on all Linux");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Takes the rows: each ends when its part of the time is over, and a lap at least.
fn watch(sidecar: &Sidecar, shared: &Shared, seconds: f64) -> Vec<Row> {
    let (began, ring) = (Instant::now(), shards(sidecar)[0].capacity_bytes);
    let (mut rows, mut before) = (Vec::new(), [0; 2]);
    let most: u32 = rounds(20, 10);
    for row in 1..=most {
        let until = Duration::from_secs_f64(seconds * f64::from(row) / f64::from(most));
        let bytes = || [counter(sidecar, "written_bytes"), counter(sidecar, "put_bytes")];
        while began.elapsed() < until || bytes()[0] < ring * u64::from(row) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let (now, fresh) = (bytes(), Times::new());
        let mut times = shared.times.lock().unwrap_or_else(PoisonError::into_inner);
        let times = std::mem::replace(&mut *times, fresh);
        let [written, put] = [0, 1].map(|at| (now[at] - before[at]) as f64);
        before = now;
        let middle = |of: &Histogram<u64>| [0.5, 0.99].map(|at| of.value_at_quantile(at));
        rows.push(Row {
            laps: written / ring as f64,
            amplification: written / put,
            resident_kib: resident_kib(sidecar.pid()),
            get: middle(&times.get),
            put: middle(&times.put),
        });
    }
    rows
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.set_header([
        "row",
        "laps",
        "written / put",
        "RSS KiB",
        "get p50",
        "p99",
        "put p50",
        "p99",
    ]);
    for (number, row) in rows.iter().enumerate() {
        let mut cells = vec![
            (number + 1).to_string(),
            format!("{:.2}", row.laps),
            format!("{:.3}", row.amplification),
            row.resident_kib.to_string(),
        ];
        cells.extend(row.get.iter().chain(&row.put).map(|us| format!("{us} us")));
        table.add_row(cells);
    }
    table
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// The rows after the first laps: the later half equals the earlier one. Latencies are only for the
/// reader of the table: they depend on the machine, too.
fn assert_constant(rows: &[Row]) {
    let (early, late) = rows[WARM..].split_at((rows.len() - WARM) / 2);
    let ratio = |of: &dyn Fn(&Row) -> f64| {
        median(late.iter().map(of).collect()) / median(early.iter().map(of).collect())
    };
    let amplification = ratio(&|row| row.amplification);
    assert!((0.9..1.1).contains(&amplification), "written / put: times {amplification:.3}");
    let most = rows[WARM..].iter().map(|row| row.amplification).fold(0.0, f64::max);
    assert!(most <= 1.35, "{most:.3} bytes are written for one that is put");
    let grown = rows[rows.len() - 1].resident_kib.saturating_sub(rows[WARM].resident_kib);
    assert!(grown <= 4096, "the sidecar has grown by {grown} KiB");
}

#[test]
fn a_ring_that_comes_round_stays_what_it_is() {
    let place = small_store(MEMBER_BYTES);
    let sidecar = Sidecar::start(&place);
    let shared = Shared {
        stop: AtomicBool::new(false),
        times: Mutex::new(Times::new()),
        verified_bytes: AtomicU64::new(0),
        misses: AtomicU64::new(0),
    };
    let rows = std::thread::scope(|scope| {
        for number in 0..CLIENTS {
            let client = Client::open(&sidecar, number);
            let shared = &shared;
            scope.spawn(move || client.work(shared));
        }
        let rows = watch(&sidecar, &shared, soak_seconds());
        shared.stop.store(true, Ordering::Relaxed); // a hint that orders nothing
        rows
    });
    println!("{}", table(&rows));
    let (verified, misses) = (shared.verified_bytes.into_inner(), shared.misses.into_inner());
    let of = |name| counter(&sidecar, name);
    println!(
        "store soak: {verified} B compared, {misses} misses, {} B put, {} written, {} moved; {} \
         evicted, {} declined",
        of("put_bytes"),
        of("written_bytes"),
        of("moved_bytes"),
        of("evicted"),
        of("declined")
    );
    let status = sidecar.status();
    assert!(
        status.pollers.iter().all(|poller| poller.counters.allocations == Some(0)),
        "{:?}",
        status.pollers
    );
    assert!(verified > 0 && of("moved_bytes") > 0, "no block was read twice");
    assert_eq!(of("corrupt") + of("failures") + of("suspects"), 0);
    assert_constant(&rows);
    sidecar.stop();
}
