//! Stops or fails the n-th call, as a power cut or the kernel would.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::FakeTree;

/// The event at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    /// The program ends before the call does anything.
    StopBefore,
    /// The program ends when the call has done its work.
    StopAfter,
    /// The call fails.
    Fail(Errno),
}

/// Counts calls; shared by a tree and a store. An unwinding stands for the end of the program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fuse {
    calls: Arc<AtomicUsize>,
    blow: Option<(usize, Blow)>,
    meddling: Option<(usize, Meddle)>,
}

/// A foreign change of the tree.
pub(crate) type Meddle = fn(&mut FakeTree);

impl Fuse {
    pub(crate) fn at(call: usize, blow: Blow) -> Self {
        Self { blow: Some((call, blow)), ..Self::default() }
    }

    /// A foreign change happens right before the n-th call, and the program goes on.
    pub(crate) fn meddling(call: usize, meddle: Meddle) -> Self {
        Self { meddling: Some((call, meddle)), ..Self::default() }
    }

    /// The foreign change due before the call that was counted last.
    pub(crate) fn meddle(&self) -> Option<Meddle> {
        self.meddling.filter(|(call, _)| call + 1 == self.calls()).map(|(_, meddle)| meddle)
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed) // one thread
    }

    /// Whether the chosen call was reached.
    pub(crate) fn is_blown(&self) -> bool {
        self.blow.is_some_and(|(call, _)| self.calls() > call)
    }

    pub(crate) fn before(&self) -> Result<(), Errno> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed); // one thread
        match self.blow {
            Some((at, Blow::StopBefore)) if at == call => stop("before", call),
            Some((at, Blow::Fail(errno))) if at == call => Err(errno),
            _ => Ok(()),
        }
    }

    pub(crate) fn after(&self) {
        let call = self.calls() - 1;
        if self.blow == Some((call, Blow::StopAfter)) {
            stop("after", call);
        }
    }
}

/// Ends the program that is tested. Nothing is printed: thousands of such ends are wanted.
fn stop(when: &str, call: usize) -> ! {
    resume_unwind(Box::new(format!("stopped {when} call {call}")))
}
