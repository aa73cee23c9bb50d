//! A stop that is asked for before there is a server to be stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use super::parent::Parent;
use kvrail_cli::failure::{Exit, Failure};

/// Set by SIGTERM and SIGINT, and by the end of a parent.
#[derive(Clone, Debug)]
pub(crate) struct EarlyStop {
    signalled: Arc<AtomicBool>,
    parent: Option<Parent>,
}

impl EarlyStop {
    /// From now on the signals are remembered, and end nothing by themselves.
    pub(crate) fn register(parent: Option<Parent>) -> Result<Self, Failure> {
        let signalled = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, Arc::clone(&signalled)).map_err(|error| {
                Failure::new(Exit::Failed, format!("catching signal {signal}: {error}"))
            })?;
        }
        Ok(Self { signalled, parent })
    }

    pub(super) fn parent(&self) -> Option<Parent> {
        self.parent
    }

    pub(crate) fn is_asked(&self) -> bool {
        // Relaxed: pairs with the store in the signal handler; a moment later is soon enough.
        self.signalled.load(Ordering::Relaxed) || self.parent.is_some_and(Parent::has_ended)
    }
}
