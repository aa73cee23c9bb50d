//! Latencies of clients beside each other, at one or more sidecars in turns (the arms):
//! `beside mixed|single|attach|puts SECONDS ROUNDS NAME=SOCKET...`. `scripts/dev beside` starts
//! them.
#![forbid(unsafe_code)]

mod puts;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvrail_client::{Client, Lease, Pages, Queue, Request, Status, Volume};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const VOLUME: &str = "kv";
const SMALL: usize = 4 << 10;
const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// Regions that come one after the other and go together, and the bytes of each.
const REGIONS: usize = 4;
const REGION: u64 = 3 << 30;

/// Which way the bytes of a load go.
#[derive(Clone, Copy)]
enum LoadWay {
    Read,
    Write,
}

/// A closed loop of blocks of one size.
#[derive(Clone, Copy)]
struct ClosedLoop {
    way: LoadWay,
    bytes: usize,
    depth: usize,
}

const LARGE: ClosedLoop = ClosedLoop { way: LoadWay::Read, bytes: 4 * MIB, depth: 128 };

/// One row's values, one for each round.
type Rows = BTreeMap<(usize, String, &'static str), Vec<f64>>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, workload, seconds, rounds, arms @ ..] = arguments.as_slice() else {
        return Err("usage: beside mixed|single|attach|puts SECONDS ROUNDS NAME=SOCKET...".into());
    };
    let time = Duration::from_secs_f64(seconds.parse()?);
    let rounds: u32 = rounds.parse()?;
    let arms: Vec<_> = arms.iter().filter_map(|arm| arm.split_once('=')).collect();
    for (_, socket) in arms.iter().filter(|_| workload != "puts") {
        fill(socket)?;
    }
    let mut rows = Rows::new();
    for _ in 0..rounds {
        for (name, socket) in &arms {
            let figures = match workload.as_str() {
                "mixed" => mixed(socket, time)?,
                "single" => single(socket, time)?,
                "attach" => attach(socket, time)?,
                "puts" => puts::puts(socket, time)?,
                other => return Err(format!("no workload {other}").into()),
            };
            for (at, (what, unit, value)) in figures.into_iter().enumerate() {
                rows.entry((at, format!("{what:34} {name:10}"), unit)).or_default().push(value);
            }
        }
    }
    println!("{:45} {:>9} {:>9} {:>9}", "medians over rounds", "median", "least", "most");
    for ((_, what, unit), mut values) in rows {
        values.sort_by(f64::total_cmp);
        let (least, most) = (values[0], values[values.len() - 1]);
        println!("{what} {:9.3} {least:9.3} {most:9.3} {unit}", values[values.len() / 2]);
    }
    Ok(())
}

type Measured = Vec<(String, &'static str, f64)>;

/// A 4 KiB reader alone, a reader of 4 MiB blocks alone, and both.
fn mixed(socket: &str, time: Duration) -> Result<Measured, Failure> {
    let mut quiet = Quiet::open(socket)?;
    let mut figures = quiet.read("4 KiB alone", time)?;
    let alone = large(socket, LARGE, &Until::after(time))?;
    let stop = Until::told();
    let (small, beside) = thread::scope(|scope| {
        let other = scope.spawn(|| large(socket, LARGE, &stop));
        thread::sleep(Duration::from_millis(700)); // until it has its memory
        let small = quiet.read("4 KiB beside", time);
        stop.now();
        (small, other.join().expect("no panic"))
    });
    figures.extend(small?);
    figures.push(("4 MiB depth 128 alone".into(), "GB/s", alone));
    figures.push(("4 MiB depth 128 beside".into(), "GB/s", beside?));
    Ok(figures)
}

/// One client by itself at each size, both ways.
fn single(socket: &str, time: Duration) -> Result<Measured, Failure> {
    let mut figures = Measured::new();
    for (way, verb) in [(LoadWay::Read, "read"), (LoadWay::Write, "write")] {
        for (kib, depth) in [(256, 8), (1024, 8), (4096, 1), (32 << 10, 1)] {
            let load = ClosedLoop { way, bytes: kib << 10, depth };
            let rate = large(socket, load, &Until::after(time))?;
            figures.push((format!("{verb} {kib} KiB depth {depth}"), "GB/s", rate));
        }
    }
    Ok(figures)
}

/// A 4 KiB reader alone, and while another client attaches and detaches ordinary pages.
fn attach(socket: &str, time: Duration) -> Result<Measured, Failure> {
    let mut quiet = Quiet::open(socket)?;
    let mut figures = quiet.read("4 KiB alone", time)?;
    let (stop, memory) = (Until::told(), ordinary_pages()?);
    let (small, times) = thread::scope(|scope| {
        let other = scope.spawn(|| regions(socket, &memory, &stop));
        let small = quiet.read("4 KiB beside", time);
        stop.now();
        (small, other.join().expect("no panic"))
    });
    figures.extend(small?);
    let (attach, detach) = times?;
    figures.push(("attach 12 GiB".into(), "s", attach));
    figures.push(("detach 12 GiB".into(), "s", detach));
    Ok(figures)
}

/// Attaches and detaches; returns the means of both, in seconds.
fn regions(socket: &str, memory: &[OwnedFd], until: &Until) -> Result<(f64, f64), Failure> {
    let client = Client::attach(socket)?;
    let (mut times, mut count) = ((0.0, 0.0), 0.0);
    let begin = Instant::now();
    while !until.is_over(begin) {
        let start = Instant::now();
        let arenas: Vec<_> = memory
            .iter()
            .map(|memory| Ok(client.import_arena(memory.try_clone()?, REGION)?))
            .collect::<Result<_, Failure>>()?;
        times.0 += start.elapsed().as_secs_f64();
        let start = Instant::now();
        for arena in arenas {
            arena.detach()?;
        }
        times.1 += start.elapsed().as_secs_f64();
        count += 1.0;
    }
    eprintln!("{count} regions came and went");
    Ok((times.0 / count, times.1 / count))
}

/// Sealed memory with all of its pages.
fn ordinary_pages() -> Result<Vec<OwnedFd>, Failure> {
    let one = |_| {
        let fd = memfd_create("beside", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&fd, REGION)?;
        fallocate(&fd, FallocateFlags::empty(), 0, REGION)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(fd)
    };
    (0..REGIONS).map(one).collect()
}

/// When a load ends.
struct Until {
    time: Option<Duration>,
    told: AtomicBool,
}

impl Until {
    fn after(time: Duration) -> Self {
        Self { time: Some(time), told: AtomicBool::new(false) }
    }

    fn told() -> Self {
        Self { time: None, told: AtomicBool::new(false) }
    }

    fn now(&self) {
        self.told.store(true, Ordering::Relaxed); // ends a loop, orders nothing
    }

    fn is_over(&self, start: Instant) -> bool {
        // Relaxed: as above.
        self.time.is_some_and(|time| start.elapsed() >= time) || self.told.load(Ordering::Relaxed)
    }
}

/// Writes all of the volume, so that reads reach the disk.
fn fill(socket: &str) -> Result<(), Failure> {
    let client = Client::attach(socket)?;
    let volume = client.volume(VOLUME)?;
    let arena = client.create_arena(4 * MIB, Pages::Auto)?;
    let mut queue = client.open_queue(16)?;
    let mut lease = arena.lease(4 * MIB)?;
    lease.fill(0x5a);
    for place in 0..volume.capacity() / (4 * MIB as u64) {
        queue.submit(Request::write(&volume, place * 4 * MIB as u64, lease))?;
        let done = queue.wait(LONG)?.ok_or("no answer")?;
        lease = done.lease.ok_or("no lease")?;
    }
    Ok(())
}

/// Reads 4 KiB at a time.
struct Quiet {
    queue: Queue,
    volume: Volume,
    lease: Option<Lease>,
    _client: Client,
}

impl Quiet {
    fn open(socket: &str) -> Result<Self, Failure> {
        let client = Client::attach(socket)?;
        let volume = client.volume(VOLUME)?;
        let lease = client.create_arena(MIB, Pages::Auto)?.lease(SMALL)?;
        Ok(Self { queue: client.open_queue(16)?, volume, lease: Some(lease), _client: client })
    }

    /// One read after the other.
    fn read(&mut self, what: &str, time: Duration) -> Result<Measured, Failure> {
        let mut samples = Vec::with_capacity(1 << 20);
        let (start, places) = (Instant::now(), self.volume.capacity() / SMALL as u64);
        let mut place = 0;
        while start.elapsed() < time {
            place = (place + 7_919_003) % places;
            let before = Instant::now();
            let lease = self.lease.take().ok_or("no lease")?;
            self.queue.submit(Request::read(&self.volume, place * SMALL as u64, lease))?;
            let done = self.queue.wait(LONG)?.ok_or("no answer")?;
            samples.push(before.elapsed().as_secs_f64() * 1e3);
            assert_eq!(done.status, Status::Ok);
            self.lease = done.lease;
        }
        samples.sort_by(f64::total_cmp);
        let at = |thousandth: usize| samples[(samples.len() - 1) * thousandth / 1000];
        let shares = [("p50", 500), ("p99", 990), ("p99.9", 999), ("worst", 1000)];
        Ok(shares.map(|(name, share)| (format!("{what}, {name}"), "ms", at(share))).to_vec())
    }
}

/// A closed loop; returns GB/s.
fn large(socket: &str, load: ClosedLoop, until: &Until) -> Result<f64, Failure> {
    let client = Client::attach(socket)?;
    let volume = client.volume(VOLUME)?;
    let arena = client.create_arena(load.bytes * load.depth, Pages::Auto)?;
    let mut queue = client.open_queue(load.depth)?;
    let lease = |_| arena.lease(load.bytes);
    let mut idle: Vec<Lease> = (0..load.depth).map(lease).collect::<Result<_, _>>()?;
    let places = volume.capacity() / load.bytes as u64;
    let (start, mut place, mut bytes) = (Instant::now(), 0, 0);
    while !until.is_over(start) {
        post(&mut queue, &volume, load, (&mut idle, &mut place, places));
        let mut done = Vec::new();
        queue.wait_for(1, &mut done, LONG)?;
        for done in done {
            assert_eq!(done.status, Status::Ok);
            bytes += load.bytes;
            idle.push(done.lease.ok_or("no lease")?);
        }
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e9)
}

/// One request for each idle lease.
fn post(
    queue: &mut Queue,
    volume: &Volume,
    load: ClosedLoop,
    (idle, place, places): (&mut Vec<Lease>, &mut u64, u64),
) {
    for lease in idle.drain(..) {
        *place = (*place + 7919) % places;
        let offset = *place * load.bytes as u64;
        let request = match load.way {
            LoadWay::Read => Request::read(volume, offset, lease),
            LoadWay::Write => Request::write(volume, offset, lease),
        };
        queue.stage(request).expect("room");
    }
    queue.publish();
}
