//! The arm of connectors without a dataplane: threads that block in reads or writes of pinned
//! buffers, with a copy to or from the GPU behind or before each.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};
use kvrail_gpu::cuda::{Copier, Cuda};
use kvrail_gpu::{Staging, StagingOptions, Way as CopyWay};
use kvrail_memory::{Lease, LeasePool, Region};
use rustix::io::{pread, pwrite};

use super::cache::KvCache;
use super::case::{GpuCase, KV_BLOCKS};
use super::meter::{Meter, Moved};
use super::volume::Volume;
use crate::port::Direction;

/// Threads of the pool. Each has KV blocks of its own: no two copies meet.
const THREADS: u32 = 16;

/// Runs the pool until the time is over.
pub(super) fn run(
    cuda: &Cuda,
    (volume, files): (&Volume, &[OwnedFd]),
    cache: &KvCache,
    case: GpuCase,
    mut meter: Meter<'_>,
) -> Result<Moved> {
    let pool = |_| {
        let options = StagingOptions { slot_bytes: case.block_bytes, slots: 1 };
        let staging = Arc::new(Staging::new(options)?);
        let memory: Arc<Region> = Arc::clone(staging.region());
        let lease = LeasePool::new(memory, 4096).lease(case.block_bytes as usize)?;
        Ok((cuda.copier(&staging)?, lease))
    };
    let buffers = (0..THREADS).map(pool).collect::<Result<Vec<_>>>()?;
    let region = &*cache.region;
    meter.begin()?;
    let meter = Mutex::new(meter);
    let work = |thread: u32, (copier, mut host): (Copier, Lease)| -> Result<()> {
        copier.begin()?;
        for number in (u64::from(thread)..).step_by(THREADS as usize) {
            let block = u32::try_from(number % u64::from(KV_BLOCKS))?;
            let volume_block = case.volume_block(number, volume.bytes());
            let since = Instant::now();
            let (file, offset) = volume.locate(case, volume_block)?;
            let range = (block, 0, case.block_bytes);
            let whole = host.len();
            match case.direction {
                Direction::Read => {
                    let moved = pread(&files[file], &mut host[..], offset)?;
                    ensure!(moved == whole, "read {moved} of {whole} bytes");
                    copier.start(CopyWay::Scatter, region, range, 0)?;
                    copier.wait()?;
                }
                Direction::Write => {
                    copier.start(CopyWay::Gather, region, range, 0)?;
                    copier.wait()?;
                    ensure!(pwrite(&files[file], &host[..], offset)? == whole, "a short write");
                }
            }
            let mut meter = meter.lock().unwrap_or_else(PoisonError::into_inner);
            meter.moved(case.block_bytes, block, volume_block, since);
            if meter.is_over() {
                break;
            }
        }
        Ok(())
    };
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..).zip(buffers).map(|(at, buffer)| scope.spawn(move || work(at, buffer))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow!("a thread of the pool panicked"))?
        })
    })?;
    meter.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
}
