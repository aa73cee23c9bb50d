//! Pins and names threads, and verifies that it worked.
//!
//! `sched_setaffinity` alone is not enough: it leaves a mask set with `taskset` without a word,
//! and a CPU number beyond the fixed mask would be out of bounds. So every CPU is checked before
//! and the mask is read back after. (core_affinity reports only one CPU after the first pin,
//! cannot see isolated CPUs and aborts on numbers of 1024 and more; hence rustix.)

use std::ffi::CString;

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use thiserror::Error;

use crate::topology::{CpuList, Topology};

/// Longest thread name the kernel keeps, in bytes (`TASK_COMM_LEN` of 16 less the final zero).
pub const THREAD_NAME_BYTES_MAX: usize = 15;

/// Why a thread was not pinned or named.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AffinityError {
    /// The number does not fit into the kernel interface's mask.
    #[error("CPU {cpu} is beyond the {max} CPUs a mask can name; choose one of {allowed}")]
    BeyondMask {
        /// The requested CPU.
        cpu: u32,
        /// CPUs in a mask.
        max: usize,
        /// The permitted CPUs.
        allowed: CpuList,
    },
    /// No such CPU runs.
    #[error("CPU {cpu} is not online; choose one of {allowed}")]
    Offline {
        /// The requested CPU.
        cpu: u32,
        /// The permitted CPUs.
        allowed: CpuList,
    },
    /// The cpuset or the mask this process was started with excludes it.
    #[error(
        "CPU {cpu} is not granted to this process; choose one of {allowed}, or widen its cpuset \
         or taskset mask"
    )]
    NotAllowed {
        /// The requested CPU.
        cpu: u32,
        /// The permitted CPUs.
        allowed: CpuList,
    },
    /// The kernel refused.
    #[error("pinning a thread to CPU {cpu} failed ({errno}); check its cpuset and seccomp filter")]
    Refused {
        /// The requested CPU.
        cpu: u32,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel agreed, yet the thread's mask is another one.
    #[error(
        "a thread pinned to CPU {cpu} has mask {mask} and runs on CPU {runs_on}; stop what moves it"
    )]
    Moved {
        /// The requested CPU.
        cpu: u32,
        /// The mask read back.
        mask: CpuList,
        /// Where the thread runs.
        runs_on: usize,
    },
    /// The name cannot be kept whole.
    #[error("thread name `{name}`: use 1 to {THREAD_NAME_BYTES_MAX} bytes, none of them zero")]
    Name {
        /// The requested name.
        name: String,
    },
}

/// A CPU that this process may pin threads to. The machine is read once; threads that are pinned
/// afterwards need not read it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedCpu {
    cpu: u32,
    bit: usize,
}

impl AllowedCpu {
    /// Looks a CPU up.
    ///
    /// # Errors
    /// `AffinityError` names the CPU and those that could be chosen.
    pub fn of(cpu: u32, topology: &Topology) -> Result<Self, AffinityError> {
        let allowed = || topology.allowed().clone();
        let bit = usize::try_from(cpu).unwrap_or(usize::MAX);
        if bit >= CpuSet::MAX_CPU {
            let max = CpuSet::MAX_CPU;
            return Err(AffinityError::BeyondMask { cpu, max, allowed: allowed() });
        }
        if !topology.online().contains(cpu) {
            return Err(AffinityError::Offline { cpu, allowed: allowed() });
        }
        if !topology.allowed().contains(cpu) {
            return Err(AffinityError::NotAllowed { cpu, allowed: allowed() });
        }
        Ok(Self { cpu, bit })
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.cpu
    }
}

/// Pins the calling thread to one CPU and verifies it.
///
/// # Errors
/// `AffinityError`; the thread's mask is unchanged unless the error is `Moved`.
pub fn pin_current_thread(to: AllowedCpu) -> Result<(), AffinityError> {
    let AllowedCpu { cpu, bit } = to;
    let refused = |errno| AffinityError::Refused { cpu, errno };
    let mut wanted = CpuSet::new();
    wanted.set(bit);
    sched_setaffinity(None, &wanted).map_err(refused)?;
    let mask = sched_getaffinity(None).map_err(refused)?;
    let runs_on = sched_getcpu();
    if mask != wanted || runs_on != bit {
        return Err(AffinityError::Moved { cpu, mask: listed(&mask), runs_on });
    }
    Ok(())
}

/// CPUs the calling thread may run on now.
///
/// # Errors
/// The kernel's, for a machine with more CPUs than the mask of 1024.
pub fn current_affinity() -> Result<CpuList, Errno> {
    sched_getaffinity(None).map(|mask| listed(&mask))
}

/// Names the calling thread, as `top -H` and core dumps show it.
///
/// # Errors
/// `AffinityError::Name` for a name the kernel would cut short.
pub fn name_current_thread(name: &str) -> Result<(), AffinityError> {
    let refused = || AffinityError::Name { name: name.to_owned() };
    if name.is_empty() || name.len() > THREAD_NAME_BYTES_MAX {
        return Err(refused());
    }
    let text = CString::new(name).map_err(|_| refused())?;
    rustix::thread::set_name(&text).map_err(|_| refused())
}

fn listed(mask: &CpuSet) -> CpuList {
    let set = (0..CpuSet::MAX_CPU).filter(|bit| mask.is_set(*bit));
    set.filter_map(|bit| u32::try_from(bit).ok()).collect()
}
