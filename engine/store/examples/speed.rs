//! How fast the store is against a device that answers at once: gets, puts, lookups, recovery.
//!
//! `cargo run --release -p kvrail-store --example speed [MILLIONS OF BLOCKS]`

mod filled;

use std::time::{Duration, Instant};

use kvrail_store::{
    Begun, Budget, Discard, Extent, Get, Got, Hold, Now, Outcome, Phase, Pool, SpaceId, Start,
    Status, Store, StoreConfig, TaskMemory, Times, Verb,
};

use crate::filled::key;

/// Operations given before tasks are drained.
const BATCH: u64 = 32;
const BLOCK: u32 = 4096;

/// The summaries of all segments, and nothing else: blocks are never looked at.
struct SummaryMedium {
    pages: std::collections::HashMap<u64, Box<[u8]>>,
    buffers: Vec<Vec<u8>>,
}

impl Pool for SummaryMedium {
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.buffers[usize::from(buffer)][at as usize..][..bytes.len()]);
    }

    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]) {
        self.buffers[usize::from(buffer)][at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

fn config(blocks: u64) -> StoreConfig {
    let segment_bytes = 64 << 20;
    StoreConfig {
        area_bytes: (16 << 20) + (blocks * 4096 / segment_bytes * 11 / 10 + 8) * segment_bytes,
        logical_block: 512,
        segment_bytes,
        block_mean: 4096,
        spaces: 256,
        puts: 1024,
        writes: 4096,
        holds: 16_384,
        owners: 64,
        owner_holds: 4096,
        buffers: 16,
        buffer_bytes: 1 << 20,
        images: 64,
        times: Times::default(),
        discard: Discard::Off,
        budget: Budget::Unlimited,
    }
}

struct Bench {
    store: Store,
    medium: SummaryMedium,
    now: Now,
    /// Time in the store's steps: what is left is the medium's copying.
    stepped: Duration,
}

impl Bench {
    fn new(config: &StoreConfig, medium: SummaryMedium, start: Start) -> Self {
        let (store, now) = filled::started(config, start);
        Self { store, medium, now, stepped: Duration::ZERO }
    }

    /// Does everything that is to do, at once.
    fn turn(&mut self, budget: u32) {
        self.now.ns += 1000;
        let since = Instant::now();
        self.store.step(&self.medium, budget, self.now);
        self.stepped += since.elapsed();
        while let Some(task) = self.store.next_task(&mut self.medium) {
            if let TaskMemory::Pool { buffer, at } = task.memory {
                let bytes = &mut self.medium.buffers[usize::from(buffer)][at as usize..];
                let length = usize::try_from(task.length).expect("small");
                for (page, bytes) in (0..).zip(bytes[..length].chunks_mut(4096)) {
                    let at = task.offset / 4096 + page;
                    if task.verb == Verb::Read {
                        match self.medium.pages.get(&at) {
                            Some(page) => bytes.copy_from_slice(page),
                            None => bytes.fill(0),
                        }
                    } else {
                        self.medium.pages.insert(at, bytes.to_vec().into_boxed_slice());
                    }
                }
            }
            self.store.finish(task.id, Outcome::Done, self.now);
        }
        while self.store.next_reply().is_some() {}
    }

    fn put(&mut self, space: SpaceId, number: u64) {
        let put = filled::put(space, number, BLOCK);
        while let Begun::Done(answer) = self.store.put(&put, self.now) {
            assert!(matches!(answer.status, Status::Declined(_)), "{answer:?}");
            self.turn(256);
        }
    }
}

fn report(what: &str, count: u64, time: Duration) {
    println!("{what:<24}{:>8.2} M/s", count as f64 / time.as_secs_f64() / 1e6);
}

fn main() {
    let millions: u64 = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(4);
    let blocks = millions * 1_000_000;
    let config = config(blocks);
    let buffers = (0..config.buffers).map(|_| vec![0; config.buffer_bytes as usize]);
    let images = (0..config.images).map(|_| vec![0; 8192]);
    let buffers = buffers.chain(images).collect();
    let medium = SummaryMedium { pages: std::collections::HashMap::new(), buffers };
    let mut bench = Bench::new(&config, medium, filled::create());
    println!("{}", bench.store.sizing());
    while bench.store.phase() != Phase::Serving {
        bench.turn(4096);
    }
    let _ = bench.store.create_space((1, 0), b"speed", b"{}", 77, bench.now);
    while bench.store.space(b"speed").is_none() {
        bench.turn(4096);
    }
    let space = bench.store.space(b"speed").expect("made").id;
    puts_gets_lookups(&mut bench, space, blocks);
    // The last page is written.
    bench.now.ns += 10_000_000_000;
    for _ in 0..100 {
        bench.turn(4096);
    }
    let puts = bench.store.stats().puts;
    recoveries(bench.medium, &config, puts);
}

/// Starts the store that is there several times; the median counts.
fn recoveries(medium: SummaryMedium, config: &StoreConfig, puts: u64) {
    let mut times = Vec::new();
    let mut medium = Some(medium);
    for _ in 0..5 {
        let mut bench = Bench::new(config, medium.take().expect("the medium"), filled::open());
        while bench.store.phase() == Phase::Starting {
            bench.turn(4096);
        }
        bench.stepped = Duration::ZERO;
        while bench.store.phase() != Phase::Serving {
            bench.turn(4096);
        }
        assert_eq!(bench.store.stats().recovered, puts, "every record");
        times.push(bench.stepped);
        medium = Some(bench.medium);
    }
    times.sort();
    report("records recovered", puts, times[times.len() / 2]);
}

fn puts_gets_lookups(bench: &mut Bench, space: SpaceId, blocks: u64) {
    let since = Instant::now();
    for batch in 0..blocks / BATCH {
        for number in batch * BATCH..(batch + 1) * BATCH {
            bench.put(space, number);
        }
        bench.turn(256);
    }
    report("puts", blocks, since.elapsed());
    let mut random = fastrand::Rng::with_seed(1);
    let since = Instant::now();
    for _ in 0..blocks / BATCH {
        for _ in 0..BATCH {
            let key = key(random.u64(..blocks));
            let extent = Extent::Whole { capacity: BLOCK };
            let Got::Read(reading) = bench.store.get(&Get { space, key, extent }) else {
                panic!("it is there")
            };
            bench.store.read_ended(reading.id, Outcome::Done);
        }
        bench.turn(256);
    }
    report("gets", blocks, since.elapsed());
    for (name, hold) in [("lookups", Hold::No), ("lookups, one in 64 held", Hold::For(1))] {
        let rounds = blocks / 16;
        let mut found = 0;
        let mut keys = [0; 64];
        let mut time = Duration::ZERO;
        for round in 0..rounds {
            keys.fill_with(|| key(random.u64(..2 * blocks)).lo());
            let hold = if round % 64 == 0 { hold } else { Hold::No };
            let since = Instant::now();
            let answer = bench.store.lookup(space, 0, &keys, hold, bench.now);
            time += since.elapsed();
            found += u64::from(answer.expect("a namespace").found.count_ones());
        }
        assert!(found > rounds * 64 / 3, "half of the keys are there");
        report(name, rounds * 64, time);
    }
}
