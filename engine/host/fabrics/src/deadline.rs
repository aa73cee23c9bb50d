//! A deadline for a system call that has none: making a connection may take the kernel minutes
//! where an address does not answer, and only a signal ends its wait.
#![expect(unsafe_code, reason = "installing a signal handler")]
// UNSAFETY: one sigaction, of a handler that does nothing.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nix::sys::pthread::{pthread_kill, pthread_self};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// Nobody else in this program uses it.
const SIGNAL: Signal = Signal::SIGALRM;

/// A signal that comes a moment before the call is lost: it is sent again in this rhythm.
const AGAIN: Duration = Duration::from_millis(50);

static INSTALL: Once = Once::new();

extern "C" fn nothing(_: c_int) {}

fn install() {
    INSTALL.call_once(|| {
        // Without SA_RESTART: the call that is interrupted ends with EINTR.
        let action =
            SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
        // SAFETY: the handler touches nothing, so it may run at any moment on any thread.
        let installed = unsafe { sigaction(SIGNAL, &action) };
        installed.expect("SIGALRM can be handled");
    });
}

/// Runs `call` on this thread; from `patience` on its system calls end with EINTR.
pub(crate) fn within<T>(patience: Duration, call: impl FnOnce() -> T) -> T {
    install();
    let me = pthread_self();
    let (done, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut wait = patience;
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                // This thread lives until the scope ends, which waits for this loop.
                let _ = pthread_kill(me, SIGNAL);
                wait = AGAIN;
            }
        });
        let result = call();
        drop(done);
        result
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::io::{Errno, read};
    use rustix::pipe::pipe;

    use super::within;

    #[test]
    fn a_call_that_blocks_is_ended() {
        let (reader, _writer) = pipe().unwrap();
        let mut bytes = [0; 1];
        let ended = within(Duration::from_millis(10), || read(&reader, &mut bytes));
        assert_eq!(ended, Err(Errno::INTR));
    }

    #[test]
    fn a_call_that_ends_is_left_alone() {
        assert_eq!(within(Duration::from_secs(3600), || 7), 7);
    }
}
