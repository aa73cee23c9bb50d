//! How long a thread may run before others have their turn.
#![expect(unsafe_code, reason = "sched_setattr has no safe wrapper")]
// UNSAFETY: each call gets an attribute block of this file, which outlives it, and its size.

use std::ptr::{from_mut, from_ref};

use rustix::io::Errno;

/// A short slice: the least that kernels take.
const SLICE_NS: u64 = 100_000;

/// Requests short slices for the calling thread: it keeps its share of the CPU, and has its turns
/// sooner. A thread that it wakes on its own CPU does not run before it sleeps. Threads of other
/// scheduling classes stay as they are, and kernels before 6.12 ignore the request.
///
/// # Errors
/// The kernel's; the thread is as before.
pub fn shorten_slices() -> Result<(), Errno> {
    let bytes = u32::try_from(size_of::<libc::sched_attr>()).expect("a small structure");
    let mut wanted = libc::sched_attr {
        size: bytes,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let into = from_mut(&mut wanted);
    // SAFETY: the kernel writes no more than `bytes` there.
    checked(unsafe { libc::syscall(libc::SYS_sched_getattr, 0, into, bytes, 0) })?;
    if i32::try_from(wanted.sched_policy) != Ok(libc::SCHED_OTHER) {
        return Ok(());
    }
    (wanted.size, wanted.sched_runtime) = (bytes, SLICE_NS);
    let from = from_ref(&wanted);
    // SAFETY: the kernel reads `size` bytes from there.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, from, 0) })
}

fn checked(result: libc::c_long) -> Result<(), Errno> {
    let failed = || Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO);
    if result < 0 { Err(failed()) } else { Ok(()) }
}
