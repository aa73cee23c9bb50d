//! Signals: the first SIGTERM, SIGINT or SIGUSR1 (of a parent that ended) drains, the second stops
//! at once; SIGHUP reads the configuration again.

use std::thread;

use kvrail_session::{HandleReceiver, ServerHandle, server_handle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::parent::Parent;
use super::reload::Reload;
use super::target::Door;
use crate::failure::{Exit, Failure, exhausted, no_thread};

/// Both ends of a server's handle.
type Handle = (ServerHandle, HandleReceiver);

/// Listens on a thread of its own until the process ends; the server gets its handle.
pub(super) fn listen(
    mut reload: Reload,
    target: Door,
    parent: Option<Parent>,
) -> Result<Handle, Failure> {
    let (sender, receiver) = server_handle().map_err(|errno| exhausted("an eventfd", errno))?;
    let handle = sender.clone();
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("signals cannot be received: {error}"))
    };
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP]).map_err(failed)?;
    let life = move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                reload.run(&sender, &target);
            } else if signal != SIGUSR1 || parent.is_none_or(Parent::signals_its_end) {
                // A supervisor that is not there is told nothing.
                let _told = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
                sender.stop();
            }
        }
    };
    let thread = thread::Builder::new().name("kvrail-signals".into()).spawn(life);
    thread.map_err(|error| no_thread("the signals'", &error))?;
    Ok((handle, receiver))
}
