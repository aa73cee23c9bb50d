//! The process that a sidecar ends with, and the folders it leaves when it is killed. What its
//! signal then stops is not here: `signals` has that.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};
use signal_hook::consts::SIGUSR1;

use crate::failure::{Exit, Failure};

/// How long a process takes to end that was killed: the kernel frees some 10 GiB a second. Where
/// only a thread of it has ended, we end so much later.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The process that started this one.
#[derive(Debug)]
pub(crate) struct Parent {
    pid: Option<Pid>,
    /// Its thread that started this process has ended.
    ending: Arc<AtomicBool>,
}

impl Parent {
    /// Has the kernel send SIGUSR1 when the parent's thread that started this process ends.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let (pid, ending) = (getppid(), Arc::default());
        signal_hook::flag::register(SIGUSR1, Arc::clone(&ending)).map_err(failed)?;
        set_parent_process_death_signal(Some(Signal::USR1)).map_err(failed)?;
        Ok(Self { pid, ending })
    }

    /// Sends the signal again if it came before anybody listened. Call it once that signal stops
    /// the sidecar.
    pub(crate) fn catch_up(&self) -> Result<(), Failure> {
        if self.is_ending() {
            kill_process(getpid(), Signal::USR1).map_err(failed)?;
        }
        Ok(())
    }

    /// Removes what the parent could not, because it was killed.
    pub(crate) fn clean_up(&self, folders: &[PathBuf]) {
        // A process that was killed ends thread by thread, and gives its memory back last.
        let deadline = Instant::now() + ENDS_WITHIN;
        while self.is_ending() && !self.has_ended() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        if self.has_ended() {
            for folder in folders {
                // Somebody else may have been quicker.
                let _gone = fs::remove_dir_all(folder);
            }
        }
    }

    fn is_ending(&self) -> bool {
        // Relaxed: pairs with the store in the signal handler; nothing else is read by it.
        self.ending.load(Ordering::Relaxed) || self.has_ended()
    }

    fn has_ended(&self) -> bool {
        getppid() != self.pid
    }
}

/// A folder that nobody but its maker can have anything in.
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
