//! Counting what a run moves: blocks, bytes, latency, CPU.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use kvrail_device::{Clock, MonotonicClock};

use super::case::KV_BLOCKS;
use crate::cpu::{Account, Meters};
use crate::drive::{Sample, Tally};

/// The result of one run of one arm.
#[derive(Debug)]
pub(super) struct Moved {
    pub(super) sample: Sample,
    /// Volume block last moved from or to each KV block.
    pub(super) last: Vec<Option<u64>>,
}

/// A run that goes on.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    account: Account<'a>,
    begun: Instant,
    begun_ns: u64,
    stop_after: Duration,
    tally: Tally,
    last: Vec<Option<u64>>,
}

impl<'a> Meter<'a> {
    /// Looks at the neighbours; `begin` then starts the time.
    pub(super) fn new(meters: &'a Meters, stop_after: Duration) -> Self {
        let (account, last) = (Account::open(meters), vec![None; KV_BLOCKS as usize]);
        let (begun, tally) = (Instant::now(), Tally::default());
        Self { account, begun, begun_ns: 0, stop_after, tally, last }
    }

    /// Preparation is done: the time begins.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.account.begin()?;
        (self.begun, self.begun_ns) = (Instant::now(), MonotonicClock.now_ns());
        Ok(())
    }

    /// Whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.stop_after
    }

    /// One block was moved.
    pub(super) fn moved(&mut self, bytes: u32, block: u32, volume_block: u64, since: Instant) {
        self.last[block as usize] = Some(volume_block);
        let nanoseconds = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.tally.count(nanoseconds, bytes);
    }

    /// The end.
    pub(super) fn finish(self) -> Result<Moved> {
        let seconds = self.begun.elapsed().as_secs_f64();
        let (tally, begun_ns, cpu) = (self.tally, self.begun_ns, self.account.close()?);
        ensure!(tally.bytes > 0, "nothing was moved");
        Ok(Moved { sample: Sample { tally, seconds, cpu, begun_ns }, last: self.last })
    }
}
