//! Faults of the stand-in, injected from outside, each taken once in the order given.

use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_queue::ArrayQueue;

/// Faults that may wait at once.
const FAULTS_MAX: usize = 1024;

/// A fault to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuFault {
    /// The next launch fails, and the GPU with it.
    Launch,
    /// The next launch starts, and fails while it runs, and the GPU with it.
    Running,
    /// The next launch runs until `release`.
    Hang,
    /// The next batch is refused.
    Submit,
    /// The first entry of the next batch moves half of its bytes.
    Short,
    /// The first entry of the next batch fails.
    Entry,
    /// Entries of the next batch run until `release`.
    HungBatch,
    /// The next look at the status of a batch fails.
    Status,
}

/// The outside's hold on a stand-in.
#[derive(Debug)]
pub struct GpuControl {
    faults: ArrayQueue<GpuFault>,
    released: AtomicBool,
}

impl Default for GpuControl {
    fn default() -> Self {
        Self { faults: ArrayQueue::new(FAULTS_MAX), released: AtomicBool::new(false) }
    }
}

impl GpuControl {
    /// Has this go wrong next.
    ///
    /// # Panics
    /// If 1,024 faults wait already.
    pub fn inject(&self, fault: GpuFault) {
        self.faults.push(fault).expect("faults are taken as fast as they come");
    }

    /// Lets everything hung go on, now and later.
    pub fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_released(&self) -> bool {
        self.released.load(Ordering::Relaxed)
    }

    /// Takes the next fault, if it is one of these.
    pub(super) fn take(&self, kinds: &[GpuFault]) -> Option<GpuFault> {
        let fault = self.faults.pop()?;
        if kinds.contains(&fault) {
            return Some(fault);
        }
        // Another call's turn: it stays the next one. Tests inject faults of one kind at a time.
        let _back = self.faults.push(fault);
        None
    }
}
