//! Counts a run of an arm.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;

use super::case::KV_BLOCKS;
use crate::cpu::{Account, CpuSeconds, Meters};
use crate::drive::latency_histogram;
use crate::report::Latency;
use crate::statistics::Figures;

/// What one run of one arm found.
#[derive(Debug)]
pub(super) struct Counts {
    operations: u64,
    bytes: u64,
    seconds: f64,
    cpu: CpuSeconds,
    latency_ns: Histogram<u64>,
    /// Volume block last moved from or to each KV block.
    pub(super) last: Vec<Option<u64>>,
}

impl Counts {
    /// As figures of a round, with the blocks that came back wrong.
    pub(super) fn figures(&self, wrong_blocks: u64) -> Figures {
        let gib = self.bytes as f64 / f64::from(1 << 30);
        Figures {
            operations: self.operations,
            seconds: self.seconds,
            iops: self.operations as f64 / self.seconds,
            bytes_per_second: self.bytes as f64 / self.seconds,
            latency_ns: Latency::of(&self.latency_ns),
            whole_cpu_per_gib: self.cpu.whole.map(|cpu| cpu / gib),
            process_cpu_per_gib: Some(self.cpu.processes / gib),
            errors: 0,
            verify_failures: wrong_blocks,
        }
    }
}

/// A run under way.
#[derive(Debug)]
pub(super) struct Meter<'a> {
    begun: Instant,
    account: Account<'a>,
    counts: Counts,
    stop_after: Duration,
}

impl<'a> Meter<'a> {
    /// Looks at the neighbours; `begin` then starts the time.
    pub(super) fn new(meters: &'a Meters, stop_after: Duration) -> Self {
        let account = Account::open(meters);
        let counts = Counts {
            operations: 0,
            bytes: 0,
            seconds: 0.0,
            cpu: CpuSeconds::default(),
            latency_ns: latency_histogram(),
            last: vec![None; KV_BLOCKS as usize],
        };
        Self { begun: Instant::now(), account, counts, stop_after }
    }

    /// What is needed is there: the time begins.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.account.begin()?;
        self.begun = Instant::now();
        Ok(())
    }

    /// Whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.stop_after
    }

    /// One block was moved.
    pub(super) fn moved(&mut self, bytes: u32, block: u32, volume_block: u64, since: Instant) {
        let counts = &mut self.counts;
        counts.operations += 1;
        counts.bytes += u64::from(bytes);
        counts.last[block as usize] = Some(volume_block);
        let nanoseconds = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        counts.latency_ns.saturating_record(nanoseconds);
    }

    /// The end.
    pub(super) fn finish(mut self) -> Result<Counts> {
        self.counts.seconds = self.begun.elapsed().as_secs_f64();
        self.counts.cpu = self.account.close()?;
        ensure!(self.counts.bytes > 0, "nothing was moved");
        Ok(self.counts)
    }
}
