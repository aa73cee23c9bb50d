//! Copies without pollers: what the bus gives to plain copies, and what one block takes.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use kvrail_gpu::cuda::Cuda;
use kvrail_gpu::{Gpu, GpuRegion, LaunchProgress, Move, Staging, StagingOptions, Way as CopyWay};

use super::case::{GpuCase, KV_BLOCKS};
use super::meter::{Meter, Moved};
use crate::port::Direction;

/// Copies between two waits, where more than one may be in flight: waiting costs less than one
/// part in a hundred then.
const TRAIN: u32 = 128;

fn way(case: GpuCase) -> CopyWay {
    match case.direction {
        Direction::Read => CopyWay::Scatter,
        Direction::Write => CopyWay::Gather,
    }
}

fn staging(case: GpuCase) -> Result<Arc<Staging>> {
    let options = StagingOptions { slot_bytes: case.block_bytes, slots: 16 };
    Ok(Arc::new(Staging::new(options)?))
}

/// Plain copies of whole blocks between pinned and GPU memory, back to back.
pub(super) fn plain(
    cuda: &Cuda,
    region: &GpuRegion,
    case: GpuCase,
    mut meter: Meter<'_>,
) -> Result<Moved> {
    let copier = cuda.copier(&staging(case)?)?;
    copier.begin()?;
    meter.begin()?;
    let train = if case.depth == 1 { 1 } else { TRAIN };
    while !meter.is_over() {
        let since = Instant::now();
        for block in 0..train {
            let slot = (block % 16 * case.block_bytes) as usize;
            let range = (block % KV_BLOCKS, 0, case.block_bytes);
            copier.start(way(case), region, range, slot)?;
        }
        copier.wait()?;
        for block in 0..train {
            meter.moved(case.block_bytes, block % KV_BLOCKS, 0, since);
        }
    }
    meter.finish()
}

/// One block after the other by the mover that a GPU's poller uses.
pub(super) fn mover(
    gpu: &dyn Gpu,
    region: &GpuRegion,
    case: GpuCase,
    mut meter: Meter<'_>,
) -> Result<Moved> {
    let mut mover = gpu.mover(&staging(case)?, 1)?;
    mover.begin()?;
    let mut block = 0;
    meter.begin()?;
    while !meter.is_over() {
        let since = Instant::now();
        let it = Move { region, block, start: 0, length: case.block_bytes, staged: 0 };
        if let Some(launch) = mover.launch(way(case), &[it])? {
            while mover.progress(launch)? == LaunchProgress::Running {
                std::hint::spin_loop();
            }
            meter.moved(case.block_bytes, block, 0, since);
            block = (block + 1) % KV_BLOCKS;
        }
    }
    meter.finish()
}
