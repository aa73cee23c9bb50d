//! Signals that would end a command: noted, and followed where stopping leaves nothing half done.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use crate::failure::{Exit, Failure};

/// The signals that end a command: a hangup unless it was ignored from the start (`nohup`). Shells
/// have scripts' background commands ignore SIGINT; those end by it all the same.
pub fn ending_signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let hangup = Some(SIGHUP).filter(|signal| ignored >> (signal - 1) & 1 == 0);
    [SIGINT, SIGTERM].into_iter().chain(hangup).collect()
}

/// From now on the limit of file sizes (`ulimit -f`) fails the write, which cleans up and reports
/// the error, instead of ending the process.
pub fn outlive_file_limit() -> Result<(), Failure> {
    let nobody = Arc::new(AtomicBool::new(false));
    let caught = signal_hook::flag::register(SIGXFSZ, nobody);
    caught
        .map(drop)
        .map_err(|error| Failure::new(Exit::Failed, format!("catching SIGXFSZ: {error}")))
}

/// Set by the signals that end a command.
#[derive(Clone, Debug)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// From now on the signals that end a command set the flag and do nothing else.
    pub fn register() -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in ending_signals() {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| {
                Failure::new(Exit::Failed, format!("catching signal {signal}: {error}"))
            })?;
        }
        Ok(Self(stop))
    }

    /// Whether one of the signals came.
    pub fn is_set(&self) -> bool {
        // Relaxed: pairs with the store in the signal handler; a moment later is soon enough.
        self.0.load(Ordering::Relaxed)
    }
}
