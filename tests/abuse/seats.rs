//! Which processes run on which cores.

use kvrail_bench::cpu::usable_cores;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// With this number of cores, each process gets one of its own.
const ENOUGH: usize = 4;

/// The places of a run.
#[derive(Debug)]
pub(crate) enum Seats {
    /// Few cores: the scheduler places all processes.
    Shared,
    /// A core each; the rest is for the sidecar's control thread and the control client.
    Apart { poller: u32, quiet: u32, abuser: u32, rest: Vec<u32> },
}

impl Seats {
    pub(crate) fn find() -> Self {
        Self::of(&usable_cores().unwrap_or_default())
    }

    fn of(cores: &[u32]) -> Self {
        match cores {
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

#[cfg(test)]
mod tests {
    use super::{Seats, on};

    #[test]
    fn four_cores_are_one_for_each_and_one_for_the_rest() {
        assert!(matches!(Seats::of(&[0, 1, 2]), Seats::Shared));
        let seats = Seats::of(&[0, 2, 4, 6, 8]);
        assert_eq!((seats.poller(), seats.quiet(), seats.abuser()), (Some(0), vec![2], vec![4]));
        assert_eq!((seats.sidecar(), seats.control()), (vec![0, 6, 8], vec![6, 8]));
        assert!(seats.words().contains("abuser on 4"));
    }

    #[test]
    fn cores_are_inherited_and_given_back() {
        let mask = || rustix::thread::sched_getaffinity(None).unwrap();
        let before = mask();
        let first = (0..1024).find(|core| before.is_set(*core)).unwrap();
        let within = on(&[u32::try_from(first).unwrap()], mask);
        assert_eq!((within.count(), within.is_set(first)), (1, true));
        assert_eq!(mask(), before);
    }
}
