//! Writes every byte of a file member once, so that later writes find allocated, initialized
//! blocks (no extent conversion, no zeroing), and so that no device answers reads from holes or
//! by compression.

use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::io::Errno;
use serde::Serialize;

use crate::bytes::{AlignedBytes, write_at};

/// Bytes of one write: large enough for full bandwidth at queue depth 1, small enough for smooth
/// progress.
const CHUNK_BYTES: usize = 4 << 20;

/// How far the writing is, over all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FillProgress {
    /// Bytes written.
    pub done_bytes: u64,
    /// Bytes to write.
    pub total_bytes: u64,
}

/// A member's part to be written.
#[derive(Debug)]
pub(crate) struct FillJob<'a> {
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) range: Range<u64>,
    /// Differs for each member, so that no two hold the same bytes.
    pub(crate) seed: u64,
}

/// Why the filling ended early.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FillStop {
    /// By the caller's choice.
    ByCaller,
    /// The member with this index in the list could not be written.
    Failed(usize, Errno),
}

/// Writes all jobs, one thread each (members are different devices as a rule), and reports from
/// the caller's thread.
pub(crate) fn fill(
    jobs: &[FillJob<'_>],
    progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
) -> Result<(), FillStop> {
    let total_bytes = jobs.iter().map(|job| job.range.end - job.range.start).sum();
    let stop = AtomicBool::new(false);
    let (sender, receiver) = channel();
    std::thread::scope(|scope| {
        for (index, job) in jobs.iter().enumerate() {
            let (sender, stop) = (sender.clone(), &stop);
            scope.spawn(move || {
                if let Err(errno) = write_job(job, stop, &sender) {
                    // The receiver is gone only when the filling has failed already.
                    let _ = sender.send(Err((index, errno)));
                }
            });
        }
        drop(sender);
        let outcome = follow(&receiver, total_bytes, progress);
        if outcome.is_err() {
            // Relaxed: only a hint to end soon; the scope's joins order everything else.
            stop.store(true, Ordering::Relaxed);
        }
        outcome
    })
}

type FillStep = Result<u64, (usize, Errno)>;

fn follow(
    steps: &Receiver<FillStep>,
    total_bytes: u64,
    progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
) -> Result<(), FillStop> {
    let mut done_bytes = 0;
    let mut report = |done_bytes| match progress(FillProgress { done_bytes, total_bytes }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(FillStop::ByCaller),
    };
    report(0)?;
    for step in steps {
        done_bytes += step.map_err(|(index, errno)| FillStop::Failed(index, errno))?;
        report(done_bytes)?;
    }
    Ok(())
}

fn write_job(job: &FillJob<'_>, stop: &AtomicBool, steps: &Sender<FillStep>) -> Result<(), Errno> {
    let mut noise = Noise(job.seed);
    let mut chunk = AlignedBytes::zeroed(CHUNK_BYTES);
    let mut at = job.range.start;
    while at < job.range.end {
        let left = job.range.end - at;
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        noise.fill(&mut chunk[..length]);
        // Relaxed: pairs with the store in `fill`; late is harmless.
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        write_at(job.fd.as_fd(), &chunk[..length], at)?;
        at += length as u64;
        let _ = steps.send(Ok(length as u64));
    }
    rustix::fs::fdatasync(job.fd)
}

/// SplitMix64 (Steele, Lea, Flood 2014): incompressible, never repeats within 2^64 words, several
/// GB/s on one core.
#[derive(Debug)]
struct Noise(u64);

impl Noise {
    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..word.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use rustix::io::Errno;

    use super::{FillJob, FillProgress, FillStop, fill};

    const BYTES: u64 = 9 << 20;

    #[test]
    fn writes_every_block_of_the_range_once_and_differently() {
        let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        let jobs: Vec<FillJob<'_>> = (0..)
            .zip(&files)
            .map(|(seed, file)| FillJob { fd: file.as_fd(), range: 4096..BYTES, seed: seed << 32 })
            .collect();
        let mut seen = Vec::new();
        fill(&jobs, &mut |progress| {
            seen.push(progress);
            ControlFlow::Continue(())
        })
        .unwrap();
        let total_bytes = 2 * (BYTES - 4096);
        assert_eq!(seen.first(), Some(&FillProgress { done_bytes: 0, total_bytes }));
        assert_eq!(seen.last(), Some(&FillProgress { done_bytes: total_bytes, total_bytes }));
        assert!(seen.is_sorted_by_key(|progress| progress.done_bytes));
        let mut blocks = std::collections::HashSet::new();
        let mut block = [0; 512];
        for file in &files {
            for at in (4096..BYTES).step_by(512) {
                file.read_exact_at(&mut block, at).unwrap();
                assert!(blocks.insert(block), "two equal blocks");
            }
            file.read_exact_at(&mut block, 0).unwrap();
            assert_eq!(block, [0; 512], "written in front of the range");
        }
    }

    #[test]
    fn stops_when_told() {
        let file = tempfile::tempfile().unwrap();
        let jobs = [FillJob { fd: file.as_fd(), range: 0..BYTES, seed: 1 }];
        assert_eq!(fill(&jobs, &mut |_| ControlFlow::Break(())), Err(FillStop::ByCaller));
    }

    #[test]
    fn names_the_member_that_failed() {
        let good = tempfile::tempfile().unwrap();
        let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
            println!("skipped: no /dev/full on this machine");
            return;
        };
        let jobs = [
            FillJob { fd: good.as_fd(), range: 0..BYTES, seed: 1 },
            FillJob { fd: full.as_fd(), range: 0..BYTES, seed: 2 },
        ];
        let outcome = fill(&jobs, &mut |_| ControlFlow::Continue(()));
        assert_eq!(outcome, Err(FillStop::Failed(1, Errno::NOSPC)));
    }
}
