//! Plain cuFile, called directly: one blocking call after the other, and batches.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use kvrail_cufile::{CuFile, Direction, File};
use kvrail_gpu::{Backing, DirectEntry, DirectGpu, DirectWay, FileIndex};

use super::case::{Case, KV_BLOCKS, Meter, Run, Way};
use super::ground::Cache;

/// Entries one batch takes; more is never open at once, for cuFile's pool has 64 buffers.
const ENTRIES: usize = 64;

/// Entries of 1 MiB at most, as cuFile's own buffers are.
const ENTRY_BYTES: u64 = 1 << 20;

/// Batches of as many blocks as fit, each run of memory an entry; the next when all have ended.
pub(super) fn batches(
    gpu: &dyn DirectGpu,
    file: FileIndex,
    cache: &Cache,
    case: Case,
    (file_bytes, time): (u64, Duration),
) -> Result<Run> {
    let mut batch = gpu.batch(u32::try_from(ENTRIES)?)?;
    let way = match case.way {
        Way::Read => DirectWay::Read,
        Way::Write => DirectWay::Write,
    };
    let mut meter = Meter::new(time);
    let mut next = 0_u64;
    while !meter.is_over() {
        let mut entries = VecDeque::new();
        let mut blocks = Vec::new();
        let since = Instant::now();
        while blocks.len() < case.depth as usize && entries.len() < ENTRIES {
            let block = u32::try_from(next % u64::from(KV_BLOCKS))?;
            let volume_block = next % case.volume_blocks(file_bytes);
            next += 1;
            blocks.push((block, volume_block));
            let offset = volume_block * u64::from(case.block_bytes);
            for run in cache.region.layout().runs(block, 0, case.block_bytes) {
                for from in (0..run.bytes).step_by(usize::try_from(ENTRY_BYTES)?) {
                    entries.push_back(DirectEntry {
                        way,
                        file,
                        file_offset: offset + run.at + from,
                        region: &cache.region,
                        memory: run.memory,
                        offset: run.offset + from,
                        bytes: u32::try_from((run.bytes - from).min(ENTRY_BYTES))?,
                    });
                }
            }
        }
        while !entries.is_empty() {
            let count = entries.len().min(ENTRIES);
            let part: Vec<DirectEntry<'_>> = entries.drain(..count).collect();
            batch.submit(&part)?;
            let mut wrong = 0;
            while batch.open() > 0 {
                batch.reap(&mut |end| {
                    let expected = u64::from(part[end.index as usize].bytes);
                    wrong += u32::from(end.outcome != Ok(expected));
                })?;
            }
            ensure!(wrong == 0, "{wrong} entries of a cuFile batch failed");
        }
        for (block, volume_block) in blocks {
            meter.moved(case.block_bytes, block, volume_block, since);
        }
    }
    meter.finish()
}

/// One blocking call for each run of memory, one after the other.
pub(super) fn calls(
    library: &Arc<CuFile>,
    file: &File,
    cache: &Cache,
    case: Case,
    (file_bytes, time): (u64, Duration),
) -> Result<Run> {
    let Backing::Gpu(Some(buffer)) = &cache.region.memories()[0].backing else {
        bail!("the memory is not registered with cuFile");
    };
    let direction = match case.way {
        Way::Read => Direction::Read,
        Way::Write => Direction::Write,
    };
    let mut meter = Meter::new(time);
    let mut next = 0_u64;
    while !meter.is_over() {
        let block = u32::try_from(next % u64::from(KV_BLOCKS))?;
        let volume_block = next % case.volume_blocks(file_bytes);
        next += 1;
        let (since, offset) = (Instant::now(), volume_block * u64::from(case.block_bytes));
        for run in cache.region.layout().runs(block, 0, case.block_bytes) {
            let bytes = usize::try_from(run.bytes)?;
            let (from, to) = ((file, offset + run.at), (&**buffer, run.offset));
            let moved = library.transfer(direction, from, to, bytes)?;
            ensure!(moved == bytes, "cuFile moved {moved} of {bytes} bytes");
        }
        meter.moved(case.block_bytes, block, volume_block, since);
    }
    meter.finish()
}
