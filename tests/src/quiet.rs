//! The client with small blocks of its own only: 4 KiB reads and writes, one in flight, every byte
//! compared. Its latencies show what other clients do to it.

use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use kvrail_bench::pattern::Pattern;
use kvrail_bench::statistics::Latency;
use kvrail_client::{
    AttachOptions, Client, ClientError, Completed, Lease, Pages, Queue, Request, Status, Volume,
};
use serde::{Deserialize, Serialize};

use crate::worker::PATIENCE;

/// Bytes of one request.
pub const QUIET_BLOCK_BYTES: usize = 4096;

/// Blocks at the volume's begin that belong to this client.
const BLOCKS: usize = 64;

/// Figures of one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QuietRound {
    /// Requests that ended.
    pub operations: u64,
    /// From submission until the completion was taken, in nanoseconds.
    pub latency_ns: Latency,
    /// Sectors that differ from what was written.
    pub wrong: u64,
    /// Requests that ended otherwise than OK, or not at all.
    pub errors: u64,
    /// The first fault of both kinds, in words.
    pub first: Option<String>,
}

/// An attached quiet client.
#[derive(Debug)]
pub struct Quiet {
    queue: Queue,
    volume: Volume,
    pattern: Pattern,
    /// Version of each block.
    versions: [u32; BLOCKS],
    lease: Option<Lease>,
    dice: fastrand::Rng,
}

impl Quiet {
    /// Attaches and writes every block once.
    ///
    /// # Errors
    /// When it cannot attach or gets no memory.
    ///
    /// # Panics
    /// When a write fails before any other client runs.
    pub fn attach(socket: &Path, volume: &str) -> Result<Self, ClientError> {
        let options = AttachOptions { name: "quiet".into(), ..AttachOptions::default() };
        let client = Client::attach_with(socket, &options)?;
        let volume = client.volume(volume)?;
        let arena = client.create_arena(QUIET_BLOCK_BYTES, Pages::Base)?;
        let mut quiet = Self {
            queue: client.open_queue(2)?,
            pattern: Pattern::new(volume.uuid()),
            volume,
            versions: [0; BLOCKS],
            lease: Some(arena.lease(QUIET_BLOCK_BYTES)?),
            dice: fastrand::Rng::with_seed(1),
        };
        for block in 0..BLOCKS {
            quiet.write(block).expect("no other client runs");
        }
        Ok(quiet)
    }

    /// Reads and writes for this time, or until a request fails.
    ///
    /// # Panics
    /// When latencies cannot be counted.
    pub fn round(&mut self, time: Duration) -> QuietRound {
        let (mut round, start) = (QuietRound::default(), Instant::now());
        let mut latencies = Histogram::<u64>::new(3).expect("three digits are few");
        while start.elapsed() < time && round.errors == 0 {
            let block = self.dice.usize(..BLOCKS);
            let outcome = match self.dice.bool() {
                true => self.write(block),
                false => self.read(block, &mut round),
            };
            match outcome {
                Ok(took) => {
                    round.operations += 1;
                    latencies += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                }
                Err(what) => {
                    round.errors += 1;
                    round.first.get_or_insert(what);
                }
            }
        }
        round.latency_ns = Latency::of(&latencies);
        round
    }

    fn write(&mut self, block: usize) -> Result<Duration, String> {
        let (mut lease, offset) = (self.lease()?, offset_of(block));
        let version = self.versions[block] + 1;
        self.pattern.fill(&mut lease, offset, version);
        let (took, lease) = self.run(Request::write(&self.volume, offset, lease))?;
        self.lease = Some(lease);
        self.versions[block] = version;
        Ok(took)
    }

    fn read(&mut self, block: usize, round: &mut QuietRound) -> Result<Duration, String> {
        let (mut lease, offset) = (self.lease()?, offset_of(block));
        lease.fill(0xee); // stale bytes cannot pass for the read ones
        let (took, lease) = self.run(Request::read(&self.volume, offset, lease))?;
        let (wrong, first) = self.pattern.verify(&lease, offset, self.versions[block]);
        self.lease = Some(lease);
        round.wrong += wrong;
        if let Some(first) = first {
            round.first.get_or_insert(first.to_string());
        }
        Ok(took)
    }

    fn lease(&mut self) -> Result<Lease, String> {
        self.lease.take().ok_or_else(|| "its memory is lost with an earlier request".to_owned())
    }

    /// One request to its end.
    fn run(&mut self, request: Request) -> Result<(Duration, Lease), String> {
        let start = Instant::now();
        self.queue.submit(request).map_err(|refused| format!("refused: {}", refused.reason))?;
        let outcome = self.queue.wait(PATIENCE);
        let took = start.elapsed();
        match outcome.map_err(|error| error.to_string())? {
            Some(Completed { status: Status::Ok, lease: Some(lease), .. }) => Ok((took, lease)),
            Some(done) => Err(format!("ended {}", done.status)),
            None => Err(format!("did not end in {PATIENCE:?}")),
        }
    }
}

fn offset_of(block: usize) -> u64 {
    (block * QUIET_BLOCK_BYTES) as u64
}
