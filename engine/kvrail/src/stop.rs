//! Signals that end a command: noted, and obeyed where stopping leaves nothing half done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Exit, Failure};

/// Set by the signals that end a command.
#[derive(Clone, Debug)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// From now on SIGINT, SIGTERM and SIGHUP set the flag and do nothing else.
    pub(crate) fn register() -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| {
                Failure::new(Exit::Failed, format!("catching signal {signal}: {error}"))
            })?;
        }
        Ok(Self(stop))
    }

    pub(crate) fn is_set(&self) -> bool {
        // Relaxed: pairs with the store in the signal handler; a moment later is soon enough.
        self.0.load(Ordering::Relaxed)
    }

    /// `Failure` with status 130 when a signal came.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.is_set() {
            return Err(Failure::new(Exit::Interrupted, "interrupted, after the work was done"));
        }
        Ok(())
    }
}
