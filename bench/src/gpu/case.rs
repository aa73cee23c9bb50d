//! Cases: what is moved, and what a run of one arm found.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use kvrail_gpu::Fragment;

use crate::drive::latency_histogram;

/// Which way blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// File to GPU.
    Read,
    /// GPU to file.
    Write,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) way: Way,
    pub(super) block_bytes: u32,
    pub(super) fragments: u32,
    pub(super) depth: u32,
}

/// All cases.
pub(super) const CASES: [Case; 7] = [
    read("read 4 KiB", 4 << 10, 1, 1),
    read("read 1 MiB", 1 << 20, 1, 16),
    read("read 2 MiB", 2 << 20, 1, 16),
    read("read 2 MiB paged", 2 << 20, 64, 16),
    write("write 1 MiB", 1 << 20, 1, 16),
    write("write 2 MiB", 2 << 20, 1, 16),
    write("write 2 MiB paged", 2 << 20, 64, 16),
];

const fn read(name: &'static str, block_bytes: u32, fragments: u32, depth: u32) -> Case {
    Case { name, way: Way::Read, block_bytes, fragments, depth }
}

const fn write(name: &'static str, block_bytes: u32, fragments: u32, depth: u32) -> Case {
    Case { name, way: Way::Write, block_bytes, fragments, depth }
}

/// KV blocks in GPU memory.
pub(super) const KV_BLOCKS: u32 = 64;

impl Case {
    /// The layout: fragment after fragment, each with all blocks one behind the other.
    pub(super) fn layout(&self) -> Vec<Fragment> {
        let bytes = u64::from(self.block_bytes / self.fragments);
        let whole = bytes * u64::from(KV_BLOCKS);
        let fragment = |index: u32| Fragment {
            memory: 0,
            base: u64::from(index) * whole,
            stride: bytes,
            bytes,
        };
        (0..self.fragments).map(fragment).collect()
    }

    /// Blocks of the volume that a file of this size holds.
    pub(super) fn volume_blocks(&self, file_bytes: u64) -> u64 {
        file_bytes / u64::from(self.block_bytes)
    }
}

/// What one run of one arm found.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) latency_ns: Histogram<u64>,
    /// Volume block last moved from or to each KV block.
    pub(super) last: Vec<Option<u64>>,
    /// Bytes read back and compared afterwards.
    pub(super) verified_bytes: u64,
}

/// CPU seconds of this process so far, all threads.
fn cpu_seconds() -> f64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    #[expect(clippy::cast_precision_loss, reason = "seconds of a benchmark")]
    let seconds = clock.tv_sec as f64 + clock.tv_nsec as f64 / 1e9;
    seconds
}

/// Counts a run.
#[derive(Debug)]
pub(super) struct Meter {
    begun: Instant,
    cpu: f64,
    pub(super) run: Run,
    stop_after: Duration,
}

impl Meter {
    pub(super) fn new(stop_after: Duration) -> Self {
        let last = vec![None; KV_BLOCKS as usize];
        let latency_ns = latency_histogram();
        let run =
            Run { bytes: 0, seconds: 0.0, cpu_seconds: 0.0, latency_ns, last, verified_bytes: 0 };
        Self { begun: Instant::now(), cpu: cpu_seconds(), run, stop_after }
    }

    /// Whether the time is over.
    pub(super) fn is_over(&self) -> bool {
        self.begun.elapsed() >= self.stop_after
    }

    /// One block was moved.
    pub(super) fn moved(&mut self, bytes: u32, block: u32, volume_block: u64, since: Instant) {
        self.run.bytes += u64::from(bytes);
        self.run.last[block as usize] = Some(volume_block);
        let nanoseconds = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.run.latency_ns.saturating_record(nanoseconds);
    }

    /// The end.
    pub(super) fn finish(mut self) -> Result<Run> {
        self.run.seconds = self.begun.elapsed().as_secs_f64();
        self.run.cpu_seconds = cpu_seconds() - self.cpu;
        ensure!(self.run.bytes > 0, "nothing was moved");
        Ok(self.run)
    }
}
