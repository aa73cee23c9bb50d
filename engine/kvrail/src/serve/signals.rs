//! Signals: the first SIGTERM or SIGINT drains, the second stops at once.

use std::thread;

use kvrail_session::{StopReceiver, stop_channel};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::sidecar::exhausted;
use crate::failure::{Exit, Failure};

/// The end that hears of signals.
#[derive(Debug)]
pub(super) struct Stop {
    pub(super) receiver: StopReceiver,
}

/// Listens on a thread of its own until the process ends.
pub(super) fn listen() -> Result<Stop, Failure> {
    let (sender, receiver) = stop_channel().map_err(|errno| exhausted("an eventfd", errno))?;
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("signals cannot be received: {error}"))
    };
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let life = move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                tracing::warn!("SIGHUP: the configuration is read at start only; restart kvrail");
            } else {
                // A supervisor that is not there is told nothing.
                let _told = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
                sender.request();
            }
        }
    };
    thread::Builder::new().name("kvrail-signals".into()).spawn(life).map_err(failed)?;
    Ok(Stop { receiver })
}
