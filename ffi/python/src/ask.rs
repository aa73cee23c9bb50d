//! Questions to the sidecar that may take long, without the interpreter lock.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::raised::KvrailError;

/// Longest wait between two looks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Sends the sidecar a request in a thread of its own, so that Ctrl-C ends the wait for an answer
/// that may take long. A later answer is undone.
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
