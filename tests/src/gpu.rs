//! The traffic of one process with a paged cache on a GPU: blocks of the volume are written from
//! any block of the cache and read into any other, every byte verified.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use kvrail_bench::pattern::Pattern;
use kvrail_client::{
    AttachOptions, Client, ClientError, GpuRegion, Queue, Request, Status, Volume,
};
use serde::{Deserialize, Serialize};

use crate::paged::{BLOCK_BYTES, Device, Export, PagedCache};
use crate::tally::{Acknowledged, Tally};
use crate::worker::{PATIENCE, inspect};

/// Bytes of a block, in the volume and in the cache.
pub const GPU_BLOCK_BYTES: u64 = BLOCK_BYTES as u64;

/// Requests in flight at most.
const DEPTH: usize = 8;

/// What a process does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuPlan {
    /// The sidecar's socket.
    pub socket: PathBuf,
    /// The volume's name.
    pub volume: String,
    /// Its blocks: the first byte of the first, and how many.
    pub offset: u64,
    /// How many.
    pub blocks: u32,
    /// Version that all blocks have at least; 0 where they were never written.
    pub least_version: u32,
    /// Which GPU its cache is on.
    pub device: Device,
    /// How memory is handed over.
    pub export: Export,
    /// For how long, once each block was read and written once.
    pub seconds: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// State of a block of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Unseen,
    Version(u32),
}

/// The request in flight for a block: its block of the cache, and the version being written.
#[derive(Clone, Copy, Debug)]
struct Flight {
    page: u32,
    writes: Option<u32>,
}

#[derive(Debug)]
struct Driver<'a> {
    plan: &'a GpuPlan,
    volume: Volume,
    pattern: Pattern,
    queue: Queue,
    cache: PagedCache,
    region: GpuRegion,
    /// Blocks of the cache that nothing uses.
    pages: Vec<u32>,
    content: Vec<Content>,
    flights: Vec<Option<Flight>>,
    tally: Tally,
    dice: fastrand::Rng,
}

/// Attaches a cache, moves blocks, adds up. Calls `running` once, when every block was written.
///
/// # Errors
/// When the process cannot attach.
///
/// # Panics
/// When a request does not end.
pub fn drive_gpu(plan: &GpuPlan, running: impl FnOnce()) -> Result<Tally, ClientError> {
    let options = AttachOptions { name: "gpu".into(), ..AttachOptions::default() };
    let client = Client::attach_with(&plan.socket, &options)?;
    let mut driver = Driver::new(plan, &client)?;
    for step in 0..u64::from(plan.blocks) * 2 {
        // Each is read, and then written.
        driver.settle(DEPTH - 1);
        let block = usize::try_from(step / 2).expect("few");
        driver.settle_block(block);
        driver.begin(block, step % 2 == 1);
    }
    driver.settle(0);
    running();
    let until = Instant::now() + Duration::from_secs_f64(plan.seconds);
    while Instant::now() < until {
        let block = driver.dice.usize(..driver.content.len());
        if driver.flights[block].is_none() {
            let write = driver.dice.bool();
            driver.begin(block, write);
        }
        driver.settle(DEPTH - 1);
    }
    driver.settle(0);
    driver.region.detach()?;
    Ok(driver.finish())
}

impl<'a> Driver<'a> {
    fn new(plan: &'a GpuPlan, client: &Client) -> Result<Self, ClientError> {
        let volume = client.volume(&plan.volume)?;
        // More blocks than requests, so that a block is read to another block than it was written
        // from.
        let pages = u32::try_from(2 * DEPTH).expect("few");
        let cache = PagedCache::new(plan.device, pages, plan.export).expect("memory is left");
        let region = client.attach_gpu(cache.described().expect("our own memory"))?;
        let count = usize::try_from(plan.blocks).expect("few");
        Ok(Self {
            plan,
            pattern: Pattern::new(volume.uuid()),
            volume,
            queue: client.open_queue(64)?,
            cache,
            region,
            pages: (0..pages).collect(),
            content: vec![Content::Unseen; count],
            flights: vec![None; count],
            tally: Tally::default(),
            dice: fastrand::Rng::with_seed(plan.seed),
        })
    }

    fn offset(&self, block: usize) -> u64 {
        self.plan.offset + block as u64 * GPU_BLOCK_BYTES
    }

    fn begin(&mut self, block: usize, write: bool) {
        let offset = self.offset(block);
        let page = self.pages.swap_remove(self.dice.usize(..self.pages.len()));
        let mut bytes = vec![0xee; BLOCK_BYTES]; // stale bytes cannot pass for the read ones
        let writes = match self.content[block] {
            Content::Version(now) if write => Some(now + 1),
            _ => None,
        };
        if let Some(version) = writes {
            self.pattern.fill(&mut bytes, offset, version);
        }
        self.cache.store(page, &bytes);
        let range = self.region.block(page).expect("a block of ours");
        let request = match writes {
            Some(_) => Request::write_gpu(&self.volume, offset, range),
            None => Request::read_gpu(&self.volume, offset, range),
        };
        self.queue.submit(request.tag(block as u64)).expect("a good request");
        self.tally.submitted += 1;
        self.flights[block] = Some(Flight { page, writes });
    }

    /// Waits until this number of requests is in flight at most.
    fn settle(&mut self, most: usize) {
        while self.flights.iter().flatten().count() > most {
            self.end_one();
        }
    }

    fn settle_block(&mut self, block: usize) {
        while self.flights[block].is_some() {
            self.end_one();
        }
    }

    fn end_one(&mut self) {
        let done = self.queue.wait(PATIENCE).expect("a session").expect("a request ends");
        let block = usize::try_from(done.tag).expect("ours");
        let Flight { page, writes } = self.flights[block].take().expect("it ends once");
        self.tally.ended += 1;
        *self.tally.statuses.entry(done.status.name().to_owned()).or_default() += 1;
        if done.status != Status::Ok || done.bytes != GPU_BLOCK_BYTES {
            let (status, bytes) = (done.status, done.bytes);
            self.tally.blame(format!("block {block} ended {status} with {bytes} bytes"));
        }
        self.tally.bytes += done.bytes;
        match writes {
            Some(version) => self.content[block] = Content::Version(version),
            None => self.compare(block, page),
        }
        // Old bytes would hide a read that moves none.
        self.cache.store(page, &[0x77; BLOCK_BYTES]);
        self.pages.push(page);
    }

    fn compare(&mut self, block: usize, page: u32) {
        let (bytes, offset) = (self.cache.load(page), self.offset(block));
        match self.content[block] {
            Content::Version(version) => {
                let (count, first) = self.pattern.verify(&bytes, offset, version);
                if let Some(first) = first {
                    self.tally.blame(format!("block {block}: {count} sectors wrong: {first}"));
                }
                self.tally.verified += 1;
            }
            Content::Unseen => {
                let (lowest, highest) = inspect(&self.pattern, &mut self.tally, &bytes, offset);
                let least = self.plan.least_version;
                if lowest < least {
                    self.tally.blame(format!("block {block} has version {lowest}, not {least}"));
                }
                self.content[block] = Content::Version(highest);
            }
        }
    }

    fn finish(mut self) -> Tally {
        for block in 0..self.content.len() {
            if let Content::Version(version) = self.content[block] {
                let offset = self.offset(block);
                self.tally.acknowledged.push(Acknowledged { offset, bytes: BLOCK_BYTES, version });
            }
        }
        self.tally
    }
}
