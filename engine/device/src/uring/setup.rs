//! Makes rings: flags of the mode, registered file, sparse table of registered buffers.

use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{Builder, IoUring};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use crate::contract::BUFFERS_MAX;
use crate::error::DeviceError;
use crate::uring::mode::{Drive, Interrupt, KernelThread, ModeName};
use crate::uring::remedy;
use crate::uring::ring::{Ring, errno_of};

/// Entries of the second ring of a polled device: flushes and discards at once.
pub(super) const SIDE_ENTRIES: u32 = 64;

/// The feature that is known for certain only after the first submission.
pub(super) const REGISTERED_RING: &str = "registered ring";

/// A ring to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    pub(super) path: &'a str,
    pub(super) file: BorrowedFd<'a>,
    pub(super) entries: u32,
    pub(super) thread: KernelThread,
}

/// A ring and what to say about it.
pub(super) struct Made {
    pub(super) ring: Ring,
    pub(super) features: Vec<String>,
}

/// Makes the main ring of a device.
pub(super) fn main_ring<M: Drive>(plan: &Plan<'_>) -> Result<Made, DeviceError> {
    let (io, mut features) = build::<M>(plan)?;
    register_file::<M>(&io, plan)?;
    let table = io.submitter().register_buffers_sparse(u32::from(BUFFERS_MAX));
    table.map_err(|error| failed::<M>(plan, "registering the buffer table", errno_of(error)))?;
    features.push(REGISTERED_RING.into());
    features.push("registered file".into());
    if M::NAME == ModeName::Interrupt {
        features.push("registered eventfd".into());
    }
    features.push(format!("registered buffers with tags ({BUFFERS_MAX} entries)"));
    Ok(Made { ring: wake::<M>(io, plan)?, features })
}

/// Makes the second, small interrupt ring of a polled device.
pub(super) fn side_ring(plan: &Plan<'_>) -> Result<Ring, DeviceError> {
    let plan = Plan { entries: SIDE_ENTRIES, ..*plan };
    let (io, _) = build::<Interrupt>(&plan)?;
    register_file::<Interrupt>(&io, &plan)?;
    wake::<Interrupt>(io, &plan)
}

/// Wraps a ring, with the event descriptor that wakes its issuer where one is needed.
fn wake<M: Drive>(io: IoUring, plan: &Plan<'_>) -> Result<Ring, DeviceError> {
    let mut ring = Ring::new(io, M::SUBMISSION, M::COMPLETING);
    if M::NAME == ModeName::Interrupt {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let registered = event.and_then(|event| ring.register_event(event));
        registered.map_err(|errno| failed::<M>(plan, "registering an eventfd", errno))?;
    }
    Ok(ring)
}

fn register_file<M: Drive>(io: &IoUring, plan: &Plan<'_>) -> Result<(), DeviceError> {
    let registered = io.submitter().register_files(&[plan.file.as_raw_fd()]);
    registered.map_err(|error| failed::<M>(plan, "registering the file", errno_of(error)))
}

fn build<M: Drive>(plan: &Plan<'_>) -> Result<(IoUring, Vec<String>), DeviceError> {
    if let Some(remedy) = remedy::old_kernel() {
        let (path, mode) = (plan.path.into(), M::NAME.to_string());
        let step = "checking the kernel";
        return Err(DeviceError::Ring { path, mode, step, errno: Errno::NOSYS, remedy });
    }
    let mut builder = IoUring::builder();
    // Room for every answer and every tag, so that completions do not overflow.
    let completions = plan.entries + plan.entries.max(u32::from(BUFFERS_MAX));
    builder.setup_cqsize(completions.next_power_of_two()).setup_submit_all();
    M::configure(&mut builder, plan.thread);
    let plain = builder.clone();
    builder.setup_no_sqarray();
    let (io, array) = match attempt::<M>(&builder, plan) {
        // Kernels before 6.6 do not know NO_SQARRAY; everything else wrong is wrong again.
        Err(DeviceError::Ring { errno: Errno::INVAL, .. }) => (attempt::<M>(&plain, plan)?, false),
        made => (made?, true),
    };
    Ok((io, features_of::<M>(array)))
}

fn attempt<M: Drive>(builder: &Builder, plan: &Plan<'_>) -> Result<IoUring, DeviceError> {
    let built = builder.build(plan.entries);
    built.map_err(|error| failed::<M>(plan, "io_uring_setup", errno_of(error)))
}

fn features_of<M: Drive>(no_array: bool) -> Vec<String> {
    let mut flags = vec!["SUBMIT_ALL"];
    if M::NAME.has_kernel_thread() {
        flags.push("SQPOLL");
    } else {
        flags.extend(["SINGLE_ISSUER", "DEFER_TASKRUN", "COOP_TASKRUN"]);
    }
    if M::NAME.polls_device() {
        flags.push("IOPOLL");
    } else if !M::NAME.has_kernel_thread() {
        flags.push("TASKRUN_FLAG");
    }
    if no_array {
        flags.push("NO_SQARRAY");
    }
    vec![flags.join("|")]
}

fn failed<M: Drive>(plan: &Plan<'_>, step: &'static str, errno: Errno) -> DeviceError {
    let remedy = remedy::setup(errno, M::NAME, plan.thread);
    DeviceError::Ring { path: plan.path.into(), mode: M::NAME.to_string(), step, errno, remedy }
}
