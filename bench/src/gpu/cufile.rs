//! Plain cuFile, called directly: one blocking call after the other, and batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kvrail_cufile::{Buffer, CuFile, File, TransferDirection as Way};
use kvrail_gpu::{Backing, BatchIo, DirectEntry, DirectGpu, DirectWay, FileIndex};

use super::cache::KvCache;
use super::case::{GpuCase, KV_BLOCKS};
use super::meter::{Meter, Moved};
use super::volume::Volume;
use crate::port::Direction;

/// Batch handles: while one waits for its last entry, the others move.
const HANDLES: u32 = 4;

/// Entries that one handle takes; at most 64 are open at once, because cuFile's pool has 64
/// buffers.
const ENTRIES: usize = 64 / HANDLES as usize;

/// Entries of 1 MiB at most, as cuFile's own buffers are.
const ENTRY_BYTES: u64 = 1 << 20;

/// One handle and the blocks it works on.
struct Hand<'a> {
    batch: Box<dyn BatchIo>,
    /// Entries not submitted yet.
    waiting: VecDeque<DirectEntry<'a>>,
    open: Vec<DirectEntry<'a>>,
    blocks: Vec<(u32, u64)>,
    since: Instant,
}

impl<'a> Hand<'a> {
    fn new(gpu: &dyn DirectGpu) -> Result<Self> {
        let batch = gpu.batch(u32::try_from(ENTRIES)?)?;
        let (waiting, open) = (VecDeque::new(), Vec::new());
        Ok(Self { batch, waiting, open, blocks: Vec::new(), since: Instant::now() })
    }

    /// Takes the entries of the next blocks.
    fn take(&mut self, job: &Job<'a>, next: &mut u64) -> Result<()> {
        self.since = Instant::now();
        for _ in 0..(job.case.depth / HANDLES).max(1) {
            let block = u32::try_from(*next % u64::from(KV_BLOCKS))?;
            let volume_block = job.case.volume_block(*next, job.volume.bytes());
            *next += 1;
            self.blocks.push((block, volume_block));
            let (file, offset) = job.volume.locate(job.case, volume_block)?;
            for run in job.cache.region.layout().runs(block, 0, job.case.block_bytes) {
                for from in (0..run.bytes).step_by(usize::try_from(ENTRY_BYTES)?) {
                    self.waiting.push_back(DirectEntry {
                        way: job.way,
                        file: job.files[file],
                        file_offset: offset + run.at + from,
                        region: &job.cache.region,
                        memory: run.memory,
                        offset: run.offset + from,
                        bytes: u32::try_from((run.bytes - from).min(ENTRY_BYTES))?,
                    });
                }
            }
        }
        Ok(())
    }

    /// Reaps and submits; true when all of its blocks are done.
    fn turn(&mut self) -> Result<bool> {
        let (open, mut wrong) = (&self.open, 0);
        if self.batch.open() > 0 {
            self.batch.reap(&mut |end| {
                let expected = u64::from(open[end.index as usize].bytes);
                wrong += u32::from(end.outcome != Ok(expected));
            })?;
        }
        ensure!(wrong == 0, "{wrong} entries of a cuFile batch failed");
        if self.batch.open() > 0 {
            return Ok(false);
        }
        self.open.clear();
        self.open.extend(self.waiting.drain(..self.waiting.len().min(ENTRIES)));
        if self.open.is_empty() {
            return Ok(true);
        }
        self.batch.submit(&self.open)?;
        Ok(false)
    }
}

/// The state that all handles share.
struct Job<'a> {
    cache: &'a KvCache,
    case: GpuCase,
    way: DirectWay,
    volume: &'a Volume,
    files: &'a [FileIndex],
}

/// Batches, each run of memory an entry; a handle takes its next blocks when all before have ended.
pub(super) fn batches(
    gpu: &dyn DirectGpu,
    (volume, files): (&Volume, &[FileIndex]),
    cache: &KvCache,
    case: GpuCase,
    mut meter: Meter<'_>,
) -> Result<Moved> {
    let way = match case.direction {
        Direction::Read => DirectWay::Read,
        Direction::Write => DirectWay::Write,
    };
    let job = Job { cache, case, way, volume, files };
    let hands = case.depth.min(HANDLES);
    let mut hands = (0..hands).map(|_| Hand::new(gpu)).collect::<Result<Vec<_>>>()?;
    let (mut next, mut busy) = (0_u64, 0);
    meter.begin()?;
    for hand in &mut hands {
        hand.take(&job, &mut next)?;
        busy += 1;
    }
    while busy > 0 {
        for hand in &mut hands {
            if hand.blocks.is_empty() || !hand.turn()? {
                continue;
            }
            for (block, volume_block) in hand.blocks.drain(..) {
                meter.moved(case.block_bytes, block, volume_block, hand.since);
            }
            if meter.is_over() {
                busy -= 1;
            } else {
                hand.take(&job, &mut next)?;
            }
        }
    }
    meter.finish()
}

/// One blocking call for each run of memory, one after the other.
pub(super) fn calls(
    library: &Arc<CuFile>,
    (volume, files): (&Volume, &[File]),
    cache: &KvCache,
    case: GpuCase,
    mut meter: Meter<'_>,
) -> Result<Moved> {
    let registered = |memory: &kvrail_gpu::RegionMemory| match &memory.backing {
        Backing::Gpu(Some(buffer)) => Some(Arc::clone(buffer)),
        _ => None,
    };
    let buffers: Option<Vec<Arc<Buffer>>> =
        cache.region.memories().iter().map(registered).collect();
    let buffers = buffers.context("the memory is not registered with cuFile")?;
    let direction = match case.direction {
        Direction::Read => Way::Read,
        Direction::Write => Way::Write,
    };
    let mut next = 0_u64;
    meter.begin()?;
    while !meter.is_over() {
        let block = u32::try_from(next % u64::from(KV_BLOCKS))?;
        let volume_block = case.volume_block(next, volume.bytes());
        next += 1;
        let since = Instant::now();
        let (file, offset) = volume.locate(case, volume_block)?;
        for run in cache.region.layout().runs(block, 0, case.block_bytes) {
            let bytes = usize::try_from(run.bytes)?;
            let buffer = &*buffers[usize::from(run.memory)];
            let (from, to) = ((&files[file], offset + run.at), (buffer, run.offset));
            let moved = library.transfer(direction, from, to, bytes)?;
            ensure!(moved == bytes, "cuFile moved {moved} of {bytes} bytes");
        }
        meter.moved(case.block_bytes, block, volume_block, since);
    }
    meter.finish()
}
