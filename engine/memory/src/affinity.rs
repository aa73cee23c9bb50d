//! Pinning.
use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread.
///
/// # Errors
/// The kernel's.
pub fn pin_current_thread(cpu: usize) -> Result<(), rustix::io::Errno> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}
