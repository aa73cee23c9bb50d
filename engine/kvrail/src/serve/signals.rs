//! Signals: the first SIGTERM, SIGINT or SIGUSR1 (of a parent that ended) drains, a later one stops
//! at once; SIGHUP reads the configuration again.

use std::thread;

use kvrail_session::{AUDIT, ServerHandle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use super::early_stop::EarlyStop;
use super::parent::Parent;
use super::reload::ReloadHandle;
use kvrail_cli::failure::{Exit, Failure, no_thread};

/// Listens on a thread of its own until the process ends. What came before is not forgotten.
pub(super) fn listen(
    server: ServerHandle,
    configuration: ReloadHandle,
    early: &EarlyStop,
) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Failed, format!("signals cannot be received: {error}"))
    };
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP]).map_err(failed)?;
    if early.is_asked() {
        server.stop();
    }
    let parent = early.parent();
    let life = move || {
        for signal in signals.forever() {
            if signal == SIGHUP {
                configuration.signal();
            } else if signal != SIGUSR1 || parent.is_none_or(Parent::signals_its_end) {
                let name = signal_name(signal).unwrap_or("the end of its parent");
                tracing::info!(target: AUDIT, "stop by {name}");
                // Without a supervisor there is no notification.
                let _told = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
                server.stop();
            }
        }
    };
    let thread = thread::Builder::new().name("kvrail-signals".into()).spawn(life);
    thread.map(drop).map_err(|error| no_thread("the signals'", &error))
}
