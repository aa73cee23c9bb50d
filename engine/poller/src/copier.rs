//! The copier: a thread that copies what clients put into a memory tier, so that no poller does.
//!
//! A client may change or punch its memory at any moment: the kernel copies, and a hole costs the
//! put, not the process. One copier has the jobs of one tier, so both queues have one producer and
//! one consumer.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use arrayvec::ArrayVec;
use crossbeam_queue::ArrayQueue;
use kvrail_memory::{Pinned, store};
use kvrail_ring::wake::{Sleeper, Waker, settle};
use kvrail_ring::{TIER_PAGE_BYTES, ThreadWaker, drain_doorbell};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Jobs in flight at most; as many ends wait to be read, so neither queue is ever full.
pub(crate) const COPIES_MAX: usize = 64;

/// A range of a client's memory.
#[derive(Clone, Debug)]
pub(crate) struct CopyPiece {
    pub(crate) memory: Arc<dyn Pinned>,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
}

/// A block's bytes, and where in the tier they go. Zeroes follow up to the end of a page: the
/// device writes whole logical blocks.
#[derive(Clone, Debug)]
pub(crate) struct CopyJob {
    pub(crate) number: u8,
    /// The body, and the bytes that fill no logical block.
    pub(crate) from: ArrayVec<CopyPiece, 2>,
    pub(crate) offset: u64,
}

/// A job that has ended. What it held is given up by the poller, which holds it too.
#[derive(Debug)]
pub(crate) struct CopyEnd {
    pub(crate) job: CopyJob,
    pub(crate) outcome: Result<(), Errno>,
}

/// What a poller and a copier share.
#[derive(Debug)]
pub struct CopyQueues {
    jobs: ArrayQueue<CopyJob>,
    ends: ArrayQueue<CopyEnd>,
    to_copier: ThreadWaker,
    to_poller: Arc<ThreadWaker>,
    /// The poller is gone.
    is_over: AtomicBool,
    tier: Arc<dyn Pinned>,
}

impl CopyQueues {
    /// Queues for the jobs of this tier, whose ends wake a poller.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn new(tier: Arc<dyn Pinned>, to_poller: Arc<ThreadWaker>) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            jobs: ArrayQueue::new(COPIES_MAX),
            ends: ArrayQueue::new(COPIES_MAX),
            to_copier: ThreadWaker::new()?,
            to_poller,
            is_over: AtomicBool::new(false),
            tier,
        }))
    }

    /// Starts a copier, which ends with the poller of these queues.
    ///
    /// # Errors
    /// The kernel's, when threads run out.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        let queues = Arc::clone(self);
        let run = move || queues.run();
        thread::Builder::new().name("kvrail-copier".into()).spawn(run)?;
        Ok(())
    }

    /// Does all jobs that are there: what the thread does, for tests without one.
    pub fn work(&self) {
        let mut waker = Waker::default();
        self.work_with(&mut waker);
    }

    fn work_with(&self, waker: &mut Waker) {
        while let Some(job) = self.jobs.pop() {
            let outcome = self.copy(&job);
            let full = self.ends.push(CopyEnd { job, outcome }).is_err();
            assert!(!full, "there are no more ends than jobs");
            self.to_poller.wake(waker);
        }
    }

    fn copy(&self, job: &CopyJob) -> Result<(), Errno> {
        let mut at = place(job.offset);
        for CopyPiece { memory, offset, bytes } in &job.from {
            let bytes = *bytes as usize;
            memory.copy_to(place(*offset), &*self.tier, at, bytes)?;
            at += bytes;
        }
        let zeroes = [0; TIER_PAGE_BYTES as usize];
        let end = at.next_multiple_of(TIER_PAGE_BYTES as usize);
        store(&*self.tier, at, &zeroes[..end - at]);
        Ok(())
    }

    fn run(&self) {
        let (mut sleeper, mut waker) = (Sleeper::default(), Waker::default());
        loop {
            self.work_with(&mut waker);
            self.to_copier.announce(&mut sleeper);
            settle();
            // Pairs with Release in `drop`.
            let is_over = self.is_over.load(Ordering::Acquire);
            if self.jobs.is_empty() && !is_over {
                let bell = self.to_copier.as_fd();
                let _woken = poll(&mut [PollFd::new(&bell, PollFlags::IN)], None);
                drain_doorbell(bell);
            }
            self.to_copier.retract(&mut sleeper);
            if is_over {
                return;
            }
        }
    }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("memory that is mapped")
}

/// The poller's end.
#[derive(Debug)]
pub(crate) struct CopyPort {
    queues: Arc<CopyQueues>,
    waker: Waker,
    in_flight: usize,
}

impl CopyPort {
    pub(crate) fn new(queues: Arc<CopyQueues>) -> Self {
        Self { queues, waker: Waker::default(), in_flight: 0 }
    }

    /// Whether another job can be given.
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight < COPIES_MAX
    }

    pub(crate) fn push(&mut self, job: CopyJob) {
        self.in_flight += 1;
        let full = self.queues.jobs.push(job).is_err();
        assert!(!full, "the caller has asked for room");
        self.queues.to_copier.wake(&mut self.waker);
    }

    /// Whether an end waits: the second look before sleeping.
    pub(crate) fn is_ready(&self) -> bool {
        !self.queues.ends.is_empty()
    }

    pub(crate) fn next_end(&mut self) -> Option<CopyEnd> {
        // `pop` passes a full fence even when it finds nothing.
        let end = if self.queues.ends.is_empty() { None } else { self.queues.ends.pop() };
        self.in_flight -= usize::from(end.is_some());
        end
    }
}

impl Drop for CopyPort {
    fn drop(&mut self) {
        self.queues.is_over.store(true, Ordering::Release); // pairs with Acquire in `run`
        self.queues.to_copier.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrayvec::ArrayVec;
    use kvrail_memory::{HeapBlock, Pinned, load, store};
    use kvrail_ring::ThreadWaker;

    use super::{CopyJob, CopyPiece, CopyPort, CopyQueues};

    fn job(number: u8, memory: &Arc<dyn Pinned>, pieces: &[(u64, u32)], offset: u64) -> CopyJob {
        let piece = |(offset, bytes): &(u64, u32)| CopyPiece {
            memory: Arc::clone(memory),
            offset: *offset,
            bytes: *bytes,
        };
        let from = pieces.iter().map(piece).collect::<ArrayVec<_, 2>>();
        CopyJob { number, from, offset }
    }

    #[test]
    fn pieces_lie_one_behind_the_other_and_zeroes_follow() {
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(8192));
        let tier: Arc<dyn Pinned> = Arc::new(HeapBlock::new(16384));
        store(&*memory, 0, &[1; 4096]);
        store(&*memory, 4096, &[2; 100]);
        store(&*tier, 0, &[9; 16384]);
        let waker = Arc::new(ThreadWaker::new().unwrap());
        let queues = CopyQueues::new(Arc::clone(&tier), waker).unwrap();
        let mut port = CopyPort::new(Arc::clone(&queues));
        port.push(job(7, &memory, &[(0, 4096), (4096, 100)], 4096));
        assert!(!port.is_ready());
        queues.work();
        assert!(port.is_ready());
        let end = port.next_end().unwrap();
        assert_eq!((end.job.number, end.outcome), (7, Ok(())));
        let mut seen = [0; 16384];
        load(&*tier, 0, &mut seen);
        assert!(seen[..4096].iter().all(|byte| *byte == 9));
        assert!(seen[4096..8192].iter().all(|byte| *byte == 1));
        assert!(seen[8192..8292].iter().all(|byte| *byte == 2));
        assert!(seen[8292..12288].iter().all(|byte| *byte == 0), "the end of its last page");
        assert!(seen[12288..].iter().all(|byte| *byte == 9));
    }

    #[test]
    fn a_thread_copies_and_ends_with_its_poller() {
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
        let tier: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
        let waker = Arc::new(ThreadWaker::new().unwrap());
        let queues = CopyQueues::new(tier, waker).unwrap();
        queues.start().unwrap();
        let mut port = CopyPort::new(Arc::clone(&queues));
        for round in 0..1000_u32 {
            port.push(job(1, &memory, &[(0, 4096)], 0));
            while !port.is_ready() {
                std::thread::yield_now();
            }
            assert_eq!(port.next_end().unwrap().outcome, Ok(()), "round {round}");
        }
        drop(port);
        while Arc::strong_count(&queues) > 1 {
            std::thread::yield_now();
        }
    }
}
