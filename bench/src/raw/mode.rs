//! Rings as the sidecar makes them, mode for mode. For hybrid polling it is `iopoll`: what it
//! naps for is the ceiling it gives up.

use anyhow::{Result, anyhow};
use io_uring::{Builder, IoUring, cqueue, squeue};
use kvrail_device::{KernelThread, ModeName};

/// A ring of this mode with the sidecar's flags; its kernel thread, if it has one, on this core.
pub(super) fn ring<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    mode: ModeName,
    entries: u32,
    kernel_core: Option<u32>,
) -> Result<IoUring<S, C>> {
    let mut builder = IoUring::<S, C>::builder();
    builder.setup_submit_all();
    if mode.has_kernel_thread() {
        builder.setup_sqpoll(KernelThread::default().idle_ms);
        if let Some(core) = kernel_core {
            builder.setup_sqpoll_cpu(core);
        }
    } else {
        builder.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun();
    }
    if mode.polls_device() {
        builder.setup_iopoll();
    } else if !mode.has_kernel_thread() {
        builder.setup_taskrun_flag();
    }
    let plain = builder.clone();
    builder.setup_no_sqarray();
    match attempt(&builder, entries) {
        // Kernels before 6.6 do not know NO_SQARRAY; everything else wrong is wrong again.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => attempt(&plain, entries),
        made => made,
    }
    .map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                "allow io_uring: sysctl kernel.io_uring_disabled=0, and in the seccomp profile"
            }
            Some(libc::ENOMEM) => {
                "allow more pinned memory: sudo prlimit --pid $$ --memlock=unlimited"
            }
            Some(libc::EINVAL) => "this mode needs Linux 6.1 or later",
            _ => "read the cause in the kernel log",
        };
        anyhow!("the raw arm cannot set up a ring in mode {mode}: {error}; {remedy}")
    })
}

fn attempt<S: squeue::EntryMarker, C: cqueue::EntryMarker>(
    builder: &Builder<S, C>,
    entries: u32,
) -> std::io::Result<IoUring<S, C>> {
    builder.build(entries.next_power_of_two())
}
