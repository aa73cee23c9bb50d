//! The process that a sidecar ends with, and the folders it leaves when it is killed. What its
//! signal then stops is not here: `signals` has that.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};
use signal_hook::consts::SIGUSR1;

use kvrail_cli::failure::{Exit, Failure};

/// The process that started this one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    /// None: it is in another PID namespace.
    pid: Option<Pid>,
}

impl Parent {
    /// Has the kernel send SIGUSR1 when the parent's thread that started this process ends, then
    /// when the thread ends that has it instead, and so on: the last one is the end of the parent.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let pid = getppid();
        // Until `signals` listens it would kill us.
        signal_hook::flag::register(SIGUSR1, Arc::default()).map_err(failed)?;
        set_parent_process_death_signal(Some(Signal::USR1)).map_err(failed)?;
        Ok(Self { pid })
    }

    /// Whether a signal that came means the parent's end, not that of a thread of it. One that
    /// cannot be looked at is believed.
    pub(crate) fn signals_its_end(self) -> bool {
        self.pid.is_none() || self.has_ended()
    }

    /// Sends the signal again if it came before anybody listened. Call it once that signal stops
    /// the sidecar.
    pub(crate) fn catch_up(self) -> Result<(), Failure> {
        if self.has_ended() {
            kill_process(getpid(), Signal::USR1).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes what the parent could not, because it was killed.
    pub(crate) fn clean_up(self, folders: &[PathBuf]) {
        if self.has_ended() {
            for folder in folders {
                // Somebody else may have been quicker.
                let _gone = fs::remove_dir_all(folder);
            }
        }
    }

    pub(super) fn has_ended(self) -> bool {
        self.pid.is_some() && getppid() != self.pid
    }
}

/// A folder in which only its owner can make files.
pub(crate) fn temporary(path: &str) -> Result<PathBuf, String> {
    let name = Path::new(path).file_name().unwrap_or_default();
    if name.to_string_lossy().starts_with("kvrail-") {
        return Ok(path.into());
    }
    Err("only a folder whose name begins with kvrail- is removed".into())
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Failed, format!("watching the parent process: {error}"))
}
