//! How long a store that was full takes to serve again, and what it wrote and keeps in memory.
//!
//! `cargo run --release -p kvrail-store --example recovery [GIGABYTES] [BLOCK BYTES] [FILE]`
//!
//! Without a file, summaries are kept in memory, and a drive of 100 us and 3 GB/s is reckoned with:
//! its time and the store's are added. With a file (which is made, sparse, and removed), they are
//! read from it past the page cache, one read after another. Blocks themselves are never written.

mod filled;

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kvrail_store::{
    Begun, Discard, Extent, Get, Got, MemberTask, Now, Outcome, Phase, Pool, SpaceId, Start,
    Status, Store, StoreConfig, TaskMemory, Times, Verb,
};

use crate::filled::key;

const PAGE: usize = 4096;
const LATENCY: Duration = Duration::from_micros(100);
const BYTES_PER_US: u64 = 3000;
/// `O_DIRECT`.
const DIRECT: i32 = 0x4000;
/// Puts given before tasks are drained.
const BATCH: u64 = 32;
/// One block of this number is read before its segment is reclaimed, and is therefore moved.
const READ_AGAIN: u64 = 5;

/// Where the store's own pages are.
enum Pages {
    Memory(HashMap<u64, Box<[u8]>>),
    File(File),
}

struct Medium {
    pages: Pages,
    /// Each with room to be aligned.
    buffers: Vec<Vec<u8>>,
}

fn aligned(buffer: &[u8]) -> usize {
    buffer.as_ptr().align_offset(PAGE)
}

impl Pool for Medium {
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]) {
        let buffer = &self.buffers[usize::from(buffer)];
        bytes.copy_from_slice(&buffer[aligned(buffer) + at as usize..][..bytes.len()]);
    }

    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]) {
        let buffer = &mut self.buffers[usize::from(buffer)];
        let at = aligned(buffer) + at as usize;
        buffer[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Medium {
    fn new(config: &StoreConfig, file: Option<&PathBuf>) -> Self {
        let large = (0..config.buffers).map(|_| vec![0; config.buffer_bytes as usize + PAGE]);
        let small = (0..config.images).map(|_| vec![0; 8192 + PAGE]);
        let pages = file.map_or_else(
            || Pages::Memory(HashMap::new()),
            |path| {
                let mut options = File::options();
                options.read(true).write(true).create(true).truncate(true).custom_flags(DIRECT);
                let file = options.open(path).expect("a file to write");
                file.set_len(config.area_bytes).expect("a file system with large files");
                Pages::File(file)
            },
        );
        Self { pages, buffers: large.chain(small).collect() }
    }

    /// Reads, or writes what is no moved block.
    fn perform(&mut self, task: &MemberTask) {
        let (TaskMemory::Pool { buffer, at }, false) = (task.memory, task.length == 0) else {
            return;
        };
        let buffer = &mut self.buffers[usize::from(buffer)];
        let at = aligned(buffer) + at as usize;
        let bytes = &mut buffer[at..at + usize::try_from(task.length).expect("a buffer")];
        let first = task.offset / PAGE as u64;
        let own = task.length <= 8192;
        match (&mut self.pages, task.verb) {
            (Pages::File(file), Verb::Read) => {
                file.read_exact_at(bytes, task.offset).expect("our file");
            }
            (Pages::File(file), _) if own => {
                file.write_all_at(bytes, task.offset).expect("our file");
            }
            (Pages::Memory(pages), Verb::Read) => {
                for (at, bytes) in (first..).zip(bytes.chunks_mut(PAGE)) {
                    match pages.get(&at) {
                        Some(page) => bytes.copy_from_slice(page),
                        None => bytes.fill(0),
                    }
                }
            }
            (Pages::Memory(pages), _) if own => {
                for (at, bytes) in (first..).zip(bytes.chunks(PAGE)) {
                    pages.insert(at, bytes.into());
                }
            }
            _ => {}
        }
    }
}

struct Life {
    store: Store,
    medium: Medium,
    now: Now,
    /// Time in the store's steps, and of the drive.
    stepped: Duration,
    drive: Duration,
}

impl Life {
    fn new(config: &StoreConfig, medium: Medium, start: Start) -> Self {
        let (store, now) = filled::started(config, start);
        Self { store, medium, now, stepped: Duration::ZERO, drive: Duration::ZERO }
    }

    fn turn(&mut self) {
        self.now.ns += 1000;
        let begin = Instant::now();
        self.store.step(&self.medium, 4096, self.now);
        self.stepped += begin.elapsed();
        let (begin, mut bytes) = (Instant::now(), 0);
        while let Some(task) = self.store.next_task(&mut self.medium) {
            bytes += task.length;
            self.medium.perform(&task);
            self.store.finish(task.id, Outcome::Done, self.now);
        }
        while self.store.next_reply().is_some() {}
        if bytes > 0 {
            self.drive += match self.medium.pages {
                Pages::File(_) => begin.elapsed(),
                // Requests run in parallel, as fast as the drive moves bytes.
                Pages::Memory(_) => LATENCY.max(Duration::from_micros(bytes / BYTES_PER_US)),
            };
        }
    }

    fn run_to(&mut self, done: impl Fn(&Store) -> bool) -> Duration {
        while !done(&self.store) {
            self.turn();
        }
        self.stepped + self.drive
    }

    fn put(&mut self, space: SpaceId, number: u64, length: u32) {
        let put = filled::put(space, number, length);
        while let Begun::Done(answer) = self.store.put(&put, self.now) {
            assert!(matches!(answer.status, Status::Declined(_)), "{answer:?}");
            self.turn();
        }
        if number.is_multiple_of(BATCH) {
            self.turn();
        }
    }

    fn get(&mut self, space: SpaceId, number: u64, length: u32) {
        let extent = Extent::Whole { capacity: length };
        if let Got::Read(reading) = self.store.get(&Get { space, key: key(number), extent }) {
            self.store.read_ended(reading.id, Outcome::Done);
        }
    }
}

/// The configuration that `kvrail serve` gives a member of this size.
fn config(area_bytes: u64, block_mean: u32) -> StoreConfig {
    StoreConfig {
        area_bytes,
        logical_block: 4096,
        segment_bytes: 256 << 20,
        block_mean,
        spaces: 256,
        puts: 1024,
        writes: 4096,
        holds: u32::try_from(area_bytes / u64::from(block_mean) / 32)
            .unwrap_or(u32::MAX)
            .clamp(8192, 65_536),
        owners: 65,
        owner_holds: 4096,
        buffers: 6,
        buffer_bytes: 8 << 20,
        images: 64,
        times: Times::default(),
        discard: Discard::Off,
        budget: kvrail_store::Budget::Unlimited,
    }
}

/// Fills the ring, and goes round once more with blocks that are read again.
fn fill(life: &mut Life, blocks: u64, length: u32) {
    life.run_to(|store| store.phase() == Phase::Serving);
    let _ = life.store.create_space((1, 0), b"recovery", b"{}", 77, life.now);
    life.run_to(|store| store.space(b"recovery").is_some());
    let space = life.store.space(b"recovery").expect("made").id;
    let amplification = |life: &Life, what: &str, before: (u64, u64)| {
        let stats = life.store.stats();
        let (written, put) = (stats.written_bytes - before.0, stats.put_bytes - before.1);
        println!("written / put, {what}: {:.4}", written as f64 / put as f64);
        (stats.written_bytes, stats.put_bytes)
    };
    (0..blocks).for_each(|number| life.put(space, number, length));
    let before = amplification(life, "nothing moved", (0, 0));
    for number in blocks..2 * blocks {
        if number.is_multiple_of(READ_AGAIN) {
            life.get(space, number - blocks / 2, length);
        }
        life.put(space, number, length);
    }
    amplification(life, &format!("one block in {READ_AGAIN} read again and moved"), before);
    life.now.ns += 10_000_000_000;
    (0..1000).for_each(|_| life.turn());
}

fn main() {
    let mut words = std::env::args().skip(1);
    let gigabytes: u64 = words.next().map_or(1000, |word| word.parse().expect("gigabytes"));
    let length: u32 = words.next().map_or(1 << 20, |word| word.parse().expect("bytes of a block"));
    let file = words.next().map(PathBuf::from);
    let config = config(gigabytes * 1_000_000_000 / 4096 * 4096, length);
    let medium = Medium::new(&config, file.as_ref());
    let mut life = Life::new(&config, medium, filled::create());
    println!("{}", life.store.sizing());
    let blocks = life.store.sizing().blocks;
    fill(&mut life, blocks, length);
    let there = life.store.entries();
    let mut medium = Some(life.medium);
    for round in 1..=5 {
        let pages = medium.take().expect("the medium");
        let mut life = Life::new(&config, pages, filled::open());
        let serving = life.run_to(|store| store.phase() != Phase::Starting);
        let complete = life.run_to(|store| store.phase() == Phase::Serving);
        let (stepped, found) = (life.stepped, life.store.entries());
        println!(
            "round {round}: serving after {serving:.3?}, complete after {complete:.3?}, of which \
             {stepped:.3?} are the store's own; {found} of {there} blocks"
        );
        medium = Some(life.medium);
    }
    if let Some(path) = file {
        std::fs::remove_file(path).expect("our file");
    }
}
