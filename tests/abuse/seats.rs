//! Who runs on which core.

use kvrail_bench::cpu::usable_cores;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Cores from which on everybody gets one.
const ENOUGH: usize = 4;

/// The places of a run.
#[derive(Debug)]
pub(crate) enum Seats {
    /// Few cores: the scheduler places everybody.
    Shared,
    /// A core each; what is left goes to the sidecar's control thread and who asks it.
    Apart { poller: u32, quiet: u32, abuser: u32, rest: Vec<u32> },
}

impl Seats {
    pub(crate) fn find() -> Self {
        let cores = usable_cores().unwrap_or_default();
        match cores.as_slice() {
            [poller, quiet, abuser, rest @ ..] if cores.len() >= ENOUGH => {
                Self::Apart { poller: *poller, quiet: *quiet, abuser: *abuser, rest: rest.to_vec() }
            }
            _ => Self::Shared,
        }
    }

    /// For the head of the report.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Shared => "fewer than 4 cores: the abuser has no core of its own, so it takes \
                             its share of the poller's and of the quiet client's"
                .into(),
            Self::Apart { poller, quiet, abuser, rest } => format!(
                "poller on core {poller}, quiet client on {quiet}, abuser on {abuser}, control \
                 threads and the control client on {rest:?}"
            ),
        }
    }

    pub(crate) fn poller(&self) -> Option<u32> {
        match self {
            Self::Shared => None,
            Self::Apart { poller, .. } => Some(*poller),
        }
    }

    pub(crate) fn sidecar(&self) -> Vec<u32> {
        match self {
            Self::Shared => Vec::new(),
            Self::Apart { poller, rest, .. } => [&[*poller], rest.as_slice()].concat(),
        }
    }

    pub(crate) fn quiet(&self) -> Vec<u32> {
        match self {
            Self::Shared => Vec::new(),
            Self::Apart { quiet, .. } => vec![*quiet],
        }
    }

    pub(crate) fn abuser(&self) -> Vec<u32> {
        match self {
            Self::Shared => Vec::new(),
            Self::Apart { abuser, .. } => vec![*abuser],
        }
    }

    pub(crate) fn control(&self) -> Vec<u32> {
        match self {
            Self::Shared => Vec::new(),
            Self::Apart { rest, .. } => rest.clone(),
        }
    }
}

/// Starts a process that inherits these cores; none means all.
pub(crate) fn on<T>(cores: &[u32], start: impl FnOnce() -> T) -> T {
    if cores.is_empty() {
        return start();
    }
    let before = sched_getaffinity(None).expect("our own mask");
    let mut mask = CpuSet::new();
    cores.iter().for_each(|core| mask.set(*core as usize));
    sched_setaffinity(None, &mask).expect("cores that we may use");
    let started = start();
    sched_setaffinity(None, &before).expect("the mask we had");
    started
}
