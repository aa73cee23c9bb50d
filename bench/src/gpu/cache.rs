//! GPU memory of one case.

use std::sync::Arc;

use anyhow::Result;
use kvrail_device::DirectIo;
use kvrail_gpu::{Gpu, GpuRegion, OwnMemory};
use rustix::io::pread;

use super::case::{GpuCase, KV_BLOCKS};
use super::volume::Volume;
use crate::drive::Tally;
use crate::pattern::Pattern;
use crate::port::Direction;

/// A cache of KV blocks.
#[derive(Debug)]
pub(super) struct KvCache {
    memories: Vec<Box<dyn OwnMemory>>,
    pub(super) region: Arc<GpuRegion>,
    case: GpuCase,
}

impl KvCache {
    /// Each memory with bytes of its own, which no place of the volume has.
    pub(super) fn new(gpu: &dyn Gpu, case: GpuCase, pattern: &Pattern) -> Result<Self> {
        let mut memories = Vec::new();
        for (number, bytes) in (1_u64..).zip(case.memories()) {
            let mut content = vec![0; usize::try_from(bytes)?];
            pattern.fill(&mut content, number << 40, 1);
            let mut memory = gpu.allocate(bytes)?;
            memory.write(0, &content)?;
            memories.push(memory);
        }
        let handles = memories.iter().map(|memory| memory.export()).collect::<Result<_, _>>()?;
        let region = gpu.import(handles, case.layout(), KV_BLOCKS)?;
        Ok(Self { memories, region, case })
    }

    /// The bytes of a KV block, read back.
    fn block(&self, block: u32) -> Result<Vec<u8>> {
        let mut out = vec![0; self.case.block_bytes as usize];
        for run in self.region.layout().runs(block, 0, self.case.block_bytes) {
            let from = usize::try_from(run.at)?;
            let to = from + usize::try_from(run.bytes)?;
            self.memories[usize::from(run.memory)].read(run.offset, &mut out[from..to])?;
        }
        Ok(out)
    }

    /// Compares every KV block that was moved with what its volume block holds.
    pub(super) fn verify(
        &self,
        volume: &mut Volume,
        last: &[Option<u64>],
        tally: &mut Tally,
    ) -> Result<()> {
        let files = volume.open(DirectIo::Off)?;
        for (block, number) in (0..).zip(last) {
            let Some(number) = *number else { continue };
            let seen = self.block(block)?;
            tally.verified_bytes += seen.len() as u64;
            if self.case.direction == Direction::Read {
                let offset = number * u64::from(self.case.block_bytes);
                let Volume { map, pattern, .. } = volume;
                let (wrong, first) = map.whole().verify(pattern, &seen, offset);
                if let Some(first) = first {
                    tally.mismatched(wrong, format_args!("KV block {block}: {first}"));
                }
                continue;
            }
            let mut stored = vec![0; seen.len()];
            let (file, at) = volume.locate(self.case, number)?;
            let read = pread(&files[file], &mut stored, at)?;
            if read != stored.len() || seen != stored {
                let words = format_args!("KV block {block} differs from volume block {number}");
                tally.mismatched(1, words);
            }
        }
        Ok(())
    }
}
