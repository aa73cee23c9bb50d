//! Signals that end a command: noted, and obeyed where stopping leaves nothing half done.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};

use crate::failure::{Exit, Failure};

/// How long a process takes to end that was killed: the kernel frees some 10 GiB a second. Where
/// only a thread of it has ended, we end so much later.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The signals that end a command: a hangup unless it was ignored from the start (`nohup`). Shells
/// have scripts' background commands ignore SIGINT; those end by it all the same.
pub(crate) fn ending_signals() -> Vec<i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let hangup = Some(SIGHUP).filter(|signal| ignored >> (signal - 1) & 1 == 0);
    [SIGINT, SIGTERM].into_iter().chain(hangup).collect()
}

/// From now on the limit of file sizes (`ulimit -f`) fails the write, which cleans up and says so,
/// instead of ending the process.
pub(crate) fn outlive_file_limit() -> Result<(), Failure> {
    let nobody = Arc::new(AtomicBool::new(false));
    let caught = signal_hook::flag::register(SIGXFSZ, nobody);
    caught
        .map(drop)
        .map_err(|error| Failure::new(Exit::Failed, format!("catching SIGXFSZ: {error}")))
}

/// The process that started this one, if we are to end with it.
#[derive(Debug)]
pub(crate) struct Parent {
    pid: Option<Pid>,
    ending: Arc<AtomicBool>,
}

impl Parent {
    pub(crate) fn remember() -> Self {
        Self { pid: getppid(), ending: Arc::default() }
    }

    /// Has the kernel send SIGUSR1 when the parent's thread that started this process ends. Call it
    /// once that signal stops the sidecar.
    pub(crate) fn watch(&self) -> Result<(), Failure> {
        let failed = |what: String| {
            Failure::new(Exit::Failed, format!("watching the parent process: {what}"))
        };
        signal_hook::flag::register(SIGUSR1, Arc::clone(&self.ending))
            .map_err(|error| failed(error.to_string()))?;
        set_parent_process_death_signal(Some(Signal::USR1))
            .map_err(|errno| failed(errno.to_string()))?;
        if getppid() != self.pid {
            kill_process(getpid(), Signal::USR1).map_err(|errno| failed(errno.to_string()))?;
        }
        Ok(())
    }

    /// Whether the whole process has ended. One that was killed does so thread by thread, and gives
    /// its memory back last.
    pub(crate) fn has_ended(&self) -> bool {
        let gone = || getppid() != self.pid;
        // Relaxed: pairs with the store in the signal handler, which was obeyed long ago.
        if self.ending.load(Ordering::Relaxed) {
            let deadline = Instant::now() + ENDS_WITHIN;
            while !gone() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(1));
            }
        }
        gone()
    }
}

/// Set by the signals that end a command.
#[derive(Clone, Debug)]
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// From now on the signals that end a command set the flag and do nothing else.
    pub(crate) fn register() -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in ending_signals() {
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
