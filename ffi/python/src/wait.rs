//! Waiting without the interpreter lock, in slices short enough for Ctrl-C.

use std::time::{Duration, Instant};

use kvrail_client::{Completed, Queue};
use pyo3::prelude::*;

use crate::ask::SLICE;
use crate::errors::from_client;
use crate::session::Session;

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
