//! Waiting without the interpreter lock, in slices short enough for Ctrl-C.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use kvrail_client::{Completed, Queue};
use pyo3::prelude::*;

use crate::errors::from_client;
use crate::errors::raised::KvrailError;
use crate::session::Session;

/// Longest wait between two looks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// What a wait does between two slices: runs signal handlers, and ends with `ClosedError` when
/// another thread has closed the client. What is in flight stays so.
pub(crate) fn pause(py: Python<'_>, session: &Session) -> PyResult<()> {
    py.check_signals()?;
    session.client().map(drop)
}

/// Waits until `count` ends or notices were pushed to `done`, nothing is in flight, or the time is
/// over. A signal handler that raises ends the wait; what is in flight stays so.
pub(crate) fn wait_for(
    py: Python<'_>,
    (queue, session): (&mut Queue, &Session),
    count: usize,
    done: &mut Vec<Completed>,
    until: Option<Instant>,
) -> PyResult<()> {
    let wanted = done.len() + count;
    loop {
        let missing = wanted - done.len().min(wanted);
        let left = until.map_or(SLICE, |until| until.saturating_duration_since(Instant::now()));
        let outcome = py.detach(|| queue.wait_for(missing, done, left.min(SLICE)));
        outcome.map_err(from_client)?;
        let over = until.is_some_and(|until| until <= Instant::now());
        if done.len() >= wanted || queue.outstanding() == 0 || over {
            return py.check_signals();
        }
        pause(py, session)?;
    }
}

/// When a time that starts now is over; never if there is none.
pub(crate) fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Asks the sidecar something in a thread of its own, so that Ctrl-C ends the wait for an answer
/// that may take long. What comes after that is undone.
pub(crate) fn ask<T: Send + 'static>(
    py: Python<'_>,
    ask: impl FnOnce() -> T + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> PyResult<T> {
    let (answers, mut answer) = channel();
    let work = move || {
        if let Err(unheard) = answers.send(ask()) {
            undo(unheard.0);
        }
    };
    thread::Builder::new()
        .name("kvrail-ask".into())
        .spawn(work)
        .map_err(|error| KvrailError::new_err(format!("starting a thread: {error}")))?;
    loop {
        let heard;
        // A receiver is for one thread at a time, and goes to where the lock is given away.
        (heard, answer) = py.detach(move || (answer.recv_timeout(SLICE), answer));
        match heard {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(KvrailError::new_err("a bug in kvrail: an ask has panicked"));
            }
        }
    }
}
