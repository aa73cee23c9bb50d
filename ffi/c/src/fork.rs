//! Notices that this process is a fork, without a system call for each request.
#![expect(unsafe_code, reason = "asks libc to call back after fork")]
// UNSAFETY: one handler for the life of the process; it adds to an atomic and nothing else, which
// is allowed between fork and exec.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::code::{Failure, KVRAIL_E_FORKED, KVRAIL_E_SYSTEM};

/// Forks between the first attach of the first process and this one. A child has one thread, and
/// the handler runs before anything else in it, so nothing has to be ordered.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which an object was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkGeneration(u32);

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed); // see `FORKS`
}

impl ForkGeneration {
    /// Here and now.
    pub(crate) fn now() -> Result<Self, Failure> {
        static WATCH: Once = Once::new();
        let mut outcome = 0;
        WATCH.call_once(|| {
            // SAFETY: the handler is a function of this library, which libc unregisters when the
            // library is unloaded; it touches an atomic only.
            outcome = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
        if outcome != 0 {
            return Err(Failure::new(KVRAIL_E_SYSTEM, "pthread_atfork failed: no memory"));
        }
        Ok(Self(FORKS.load(Ordering::Relaxed))) // see `FORKS`
    }

    /// Whether this is still that process.
    #[inline]
    pub(crate) fn check(self) -> Result<(), Failure> {
        if self.0 == FORKS.load(Ordering::Relaxed) {
            return Ok(()); // see `FORKS`
        }
        let text = "a client cannot be used across fork(); attach in the child";
        Err(Failure::new(KVRAIL_E_FORKED, text))
    }
}
