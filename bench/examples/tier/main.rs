//! Hot gets beside what they are made of: a copy of the same bytes, their checksum, and a read
//! through the page cache. One thread, arms in turns, medians of rounds.
//!
//! `tier SOCKET STORE [BLOCK_KIB] [BLOCKS]`, with a sidecar whose `[memory_tier]` has room for the
//! blocks.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use crc_fast::{CrcAlgorithm, checksum};
use kvrail_client::{
    Arena, BlockKey, BlockRequest, Client, Identity, Lookup, LookupExtent, Namespace, Pages, Queue,
    Recency, Status,
};
use kvrail_protocol::StatusReport;

const ROUNDS: usize = 15;
const LONG: Duration = Duration::from_secs(30);

/// A client of the store, with its blocks.
struct User {
    client: Client,
    queue: Queue,
    space: Namespace,
    arena: Arena,
    bytes: usize,
    keys: Vec<BlockKey>,
}

impl User {
    fn attach(socket: &str, store: &str, (bytes, blocks): (usize, u64)) -> Result<Self> {
        let client = Client::attach(socket)?;
        let identity = Identity::new([("for", "bench")])?;
        let space = client.store(store)?.namespace("tier", &identity)?;
        space.clear()?;
        ensure!(space.store().reads_from_memory(), "{store}: this client sees no memory tier");
        let arena = client.create_arena(64 << 20, Pages::Base)?;
        let queue = client.open_queue(64)?;
        let keys = (0..blocks).map(|number| BlockKey::of(&number.to_le_bytes())).collect();
        Ok(Self { client, queue, space, arena, bytes, keys })
    }

    fn run(&mut self, request: BlockRequest) -> Result<Status> {
        self.queue.submit(request).map_err(|refused| refused.reason)?;
        Ok(self.queue.wait(LONG)?.context("no completion in time")?.status)
    }

    /// Puts all blocks, and waits until all lie in the tier.
    fn fill(&mut self) -> Result<()> {
        for key in self.keys.clone() {
            let mut lease = self.arena.lease(self.bytes)?;
            lease.fill(7);
            let put = BlockRequest::put(&self.space, key, lease);
            ensure!(self.run(put)? == Status::Ok, "a put was declined");
        }
        let (extent, recency) = (LookupExtent::All, Recency::Expected);
        let how = Lookup { extent, recency, ..Lookup::default() };
        let deadline = Instant::now() + LONG;
        while self.cold_gets()?.is_some() {
            ensure!(Instant::now() < deadline, "the tier has no room for all blocks");
            self.queue.lookup(&self.space, &self.keys, &how)?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// How many gets of all blocks reached the store, if any did.
    fn cold_gets(&mut self) -> Result<Option<u64>> {
        std::thread::sleep(Duration::from_millis(20)); // counters are shown now and then
        let before = hits(&self.client.status()?);
        self.gets()?;
        std::thread::sleep(Duration::from_millis(20));
        let cold = hits(&self.client.status()?) - before;
        Ok(Some(cold).filter(|cold| *cold > 0))
    }

    /// Gets every block once; seconds.
    fn gets(&mut self) -> Result<f64> {
        let begun = Instant::now();
        for key in self.keys.clone() {
            let get = BlockRequest::get(&self.space, key, self.arena.lease(self.bytes)?);
            ensure!(self.run(get)? == Status::Ok, "a hot block is gone");
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Gets that found their block in the store.
fn hits(report: &StatusReport) -> u64 {
    report.shards.iter().filter_map(|shard| shard.counters.store.hits).sum()
}

/// What the client's copies are compared with: the same bytes in memory and in a file.
struct Plain {
    source: Vec<u8>,
    file: File,
    out: Vec<u8>,
}

impl Plain {
    fn new(bytes: usize, blocks: usize) -> Result<Self> {
        let (source, file) = (vec![7; bytes * blocks], tempfile::tempfile()?);
        file.write_all_at(&source, 0)?;
        Ok(Self { source, file, out: vec![0; bytes] })
    }

    fn copies(&mut self) -> f64 {
        let begun = Instant::now();
        for block in self.source.chunks_exact(self.out.len()) {
            self.out.copy_from_slice(block);
            std::hint::black_box(&mut self.out);
        }
        begun.elapsed().as_secs_f64()
    }

    fn verified_copies(&mut self) -> f64 {
        let begun = Instant::now();
        for block in self.source.chunks_exact(self.out.len()) {
            self.out.copy_from_slice(block);
            std::hint::black_box(checksum(CrcAlgorithm::Crc64Nvme, &self.out));
        }
        begun.elapsed().as_secs_f64()
    }

    fn reads(&mut self) -> Result<f64> {
        let begun = Instant::now();
        for block in 0..self.source.len() / self.out.len() {
            let at = (block * self.out.len()) as u64;
            self.file.read_exact_at(&mut self.out, at)?;
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, store, sizes @ ..] = &arguments[..] else {
        bail!("usage: tier SOCKET STORE [BLOCK_KIB] [BLOCKS]")
    };
    let size = |at: usize, default: usize| sizes.get(at).map_or(Ok(default), |text| text.parse());
    let (bytes, blocks) = (size(0, 1024)? << 10, size(1, 200)?);
    let mut user = User::attach(socket, store, (bytes, blocks as u64))?;
    user.fill()?;
    user.gets()?;
    let mut plain = Plain::new(bytes, blocks)?;
    let mut rounds = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        rounds[0].push(plain.copies());
        rounds[1].push(plain.verified_copies());
        rounds[2].push(plain.reads()?);
        rounds[3].push(user.gets()?);
    }
    let names = ["memcpy", "memcpy and checksum", "page cache", "hot get"];
    let seconds = rounds.map(median);
    println!("{blocks} blocks of {bytes} bytes, one thread, medians of {ROUNDS} rounds in turns");
    for (name, time) in names.iter().zip(seconds) {
        let rate = (bytes * blocks) as f64 / time / 1e9;
        let (each, ratio) = (time / blocks as f64 * 1e6, seconds[0] / time);
        println!("{name:<20} {rate:6.2} GB/s {each:8.1} us each {ratio:5.2} of memcpy");
    }
    Ok(())
}
