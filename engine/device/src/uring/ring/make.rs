//! Makes io_uring instances. Plain ones with the bare system call, because the library that maps
//! them does not know every flag there is; wide ones (128-byte entries, 32-byte completions) with
//! the library's builder, because it maps no other descriptor than its own as wide.
#![expect(unsafe_code, reason = "io_uring: setup of a ring and taking over its descriptor")]
// UNSAFETY: the parameters the kernel filled in describe the memory that is mapped from the ring.

use std::mem::transmute;
use std::os::fd::IntoRawFd;

use io_uring::{IoUring, Parameters, cqueue, squeue};
use rustix::io::Errno;
use rustix::io_uring::{IoringSetupFlags, io_uring_params, io_uring_setup};

use crate::uring::kernel_thread::KernelThread;

/// A ring to be made.
#[derive(Clone, Copy, Debug)]
pub struct RingSetup {
    /// Flags, all of them.
    pub(crate) flags: IoringSetupFlags,
    /// Room for requests.
    pub(crate) entries: u32,
    /// Room for completions.
    pub(crate) completions: u32,
    /// For rings with a kernel thread.
    pub(crate) thread: KernelThread,
}

/// A ring of 64-byte entries and 16-byte completions.
pub(crate) fn make_plain(setup: &RingSetup) -> Result<IoUring, Errno> {
    let mut params = io_uring_params::default();
    params.flags = setup.flags | IoringSetupFlags::CQSIZE;
    params.cq_entries = setup.completions;
    params.sq_thread_idle = setup.thread.idle_ms;
    if let Some(cpu) = setup.thread.cpu.filter(|_| setup.has(IoringSetupFlags::SQPOLL)) {
        params.flags |= IoringSetupFlags::SQ_AFF;
        params.sq_thread_cpu = cpu;
    }
    // SAFETY: the kernel reads and writes `params` within the call; no other memory is passed.
    let fd = unsafe { io_uring_setup(setup.entries, &mut params) }?;
    // SAFETY: both are the kernel's `struct io_uring_params`, plain numbers without padding; by its
    // documentation the library's type may be made from any such memory.
    let params = unsafe { transmute::<io_uring_params, Parameters>(params) };
    // SAFETY: the descriptor is a ring made above, owned here and given away, and these are the
    // parameters the kernel filled in for it.
    unsafe { IoUring::from_fd(fd.into_raw_fd(), params) }.map_err(errno_of)
}

/// A ring of 128-byte entries and 32-byte completions, with an issuer of its own.
pub(crate) fn make_wide(
    setup: &RingSetup,
) -> Result<IoUring<squeue::Entry128, cqueue::Entry32>, Errno> {
    let mut builder = IoUring::<squeue::Entry128, cqueue::Entry32>::builder();
    builder.setup_cqsize(setup.completions).setup_submit_all();
    builder.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun().setup_r_disabled();
    if setup.has(IoringSetupFlags::TASKRUN_FLAG) {
        builder.setup_taskrun_flag();
    }
    if setup.has(IoringSetupFlags::IOPOLL) {
        builder.setup_iopoll();
    }
    if setup.has(IoringSetupFlags::NO_SQARRAY) {
        builder.setup_no_sqarray();
    }
    builder.build(setup.entries).map_err(errno_of)
}

impl RingSetup {
    fn has(&self, flag: IoringSetupFlags) -> bool {
        self.flags.contains(flag)
    }
}

pub(in crate::uring) fn errno_of(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
