//! Makes rings: flags of the mode, registered file, sparse table of registered buffers.

use std::iter;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use io_uring::IoUring;
use kvrail_memory::PinLimit;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::io_uring::IoringSetupFlags;

use crate::contract::BUFFERS_MAX;
use crate::error::DeviceError;
use crate::uring::kernel_thread::KernelThread;
use crate::uring::ring::{Completing, Ring, RingSetup, Submission, errno_of};
use crate::uring::ring_mode::{HYBRID_IOPOLL, Interrupt, RingMode};
use crate::uring::setup_hints;
use crate::uring::sqe::{Block, SqeFormat};

/// Tags that have room beside the answers: each `reap` empties one entry at most, whose tag is
/// there for the next.
const TAGS_MAX: u32 = 1024;

/// Entries of the second ring of a device that has one: flushes and discards at once.
pub(super) const SIDE_ENTRIES: u32 = 64;

/// How long a ring waits for memory that may be pinned, and between two tries: an ended process has
/// given back what it had within milliseconds, on a busy machine within seconds.
const PINNED_WAIT: Duration = Duration::from_secs(10);
const PINNED_PAUSE: Duration = Duration::from_millis(10);

/// The feature that is known for certain only after the first submission.
pub(super) const REGISTERED_RING: &str = "registered ring";

/// Flags that the description names, in this order.
const NAMED: [(IoringSetupFlags, &str); 11] = [
    (IoringSetupFlags::SUBMIT_ALL, "SUBMIT_ALL"),
    (IoringSetupFlags::SQPOLL, "SQPOLL"),
    (IoringSetupFlags::SINGLE_ISSUER, "SINGLE_ISSUER"),
    (IoringSetupFlags::DEFER_TASKRUN, "DEFER_TASKRUN"),
    (IoringSetupFlags::COOP_TASKRUN, "COOP_TASKRUN"),
    (IoringSetupFlags::TASKRUN_FLAG, "TASKRUN_FLAG"),
    (IoringSetupFlags::IOPOLL, "IOPOLL"),
    (HYBRID_IOPOLL, "HYBRID_IOPOLL"),
    (IoringSetupFlags::SQE128, "SQE128"),
    (IoringSetupFlags::CQE32, "CQE32"),
    (IoringSetupFlags::NO_SQARRAY, "NO_SQARRAY"),
];

/// A ring to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingPlan<'a> {
    pub(super) path: &'a str,
    pub(super) file: BorrowedFd<'a>,
    pub(super) entries: u32,
    pub(super) thread: KernelThread,
    pub(super) tether: Option<BorrowedFd<'a>>,
}

/// A ring and its description.
pub(super) struct MadeRing<W: SqeFormat> {
    pub(super) ring: Ring<W>,
    pub(super) features: Vec<String>,
}

/// An instance of the kernel's that carries `W`.
type Instance<W> = IoUring<<W as SqeFormat>::Entry, <W as SqeFormat>::Cqe>;

/// Makes the main ring of a device; requests go to the plan's file.
pub(super) fn main_ring<M: RingMode>(
    plan: &RingPlan<'_>,
    wire: M::SqeFormat,
) -> Result<MadeRing<M::SqeFormat>, DeviceError> {
    let (io, flags) = build::<M>(plan)?;
    register_file::<M>(&io, plan)?;
    let table = io.submitter().register_buffers_sparse(u32::from(BUFFERS_MAX));
    table.map_err(|error| failed::<M>(plan, "registering the buffer table", errno_of(error)))?;
    let mut features = vec![told(flags), REGISTERED_RING.into(), "registered file".into()];
    if sleeps::<M>() {
        features.push("registered eventfd".into());
    }
    features.push(format!("registered buffers with tags ({BUFFERS_MAX} entries)"));
    Ok(MadeRing { ring: wake::<M>(io, wire, plan)?, features })
}

/// Makes the second, small interrupt ring of a device whose main ring cannot do everything.
pub(super) fn side_ring(plan: &RingPlan<'_>, wire: Block) -> Result<Ring<Block>, DeviceError> {
    let plan = RingPlan { entries: SIDE_ENTRIES, ..*plan };
    let (io, _) = build::<Interrupt>(&plan)?;
    register_file::<Interrupt>(&io, &plan)?;
    wake::<Interrupt>(io, wire, &plan)
}

/// Whether the issuer can sleep until a completion comes.
fn sleeps<M: RingMode>() -> bool {
    M::COMPLETING == Completing::Interrupts && M::SUBMISSION == Submission::Caller
}

/// Wraps a ring, with the event descriptor that wakes its issuer where one is needed.
fn wake<M: RingMode>(
    io: Instance<M::SqeFormat>,
    wire: M::SqeFormat,
    plan: &RingPlan<'_>,
) -> Result<Ring<M::SqeFormat>, DeviceError> {
    let mut ring = Ring::new(io, wire, M::SUBMISSION, M::COMPLETING);
    if sleeps::<M>() {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let registered = event.and_then(|event| ring.register_event(event));
        registered.map_err(|errno| failed::<M>(plan, "registering an eventfd", errno))?;
    }
    Ok(ring)
}

fn register_file<M: RingMode>(
    io: &Instance<M::SqeFormat>,
    plan: &RingPlan<'_>,
) -> Result<(), DeviceError> {
    let files: ArrayVec<_, 2> =
        iter::once(plan.file).chain(plan.tether).map(|file| file.as_raw_fd()).collect();
    let registered = io.submitter().register_files(&files);
    registered.map_err(|error| failed::<M>(plan, "registering the file", errno_of(error)))
}

fn build<M: RingMode>(
    plan: &RingPlan<'_>,
) -> Result<(Instance<M::SqeFormat>, IoringSetupFlags), DeviceError> {
    if let Some(remedy) = setup_hints::old_kernel() {
        let (path, mode) = (plan.path.into(), M::NAME.to_string());
        let step = "checking the kernel";
        return Err(DeviceError::Ring { path, mode, step, errno: Errno::NOSYS, remedy });
    }
    let completions = completions(plan.entries);
    let plain = M::FLAGS | IoringSetupFlags::SUBMIT_ALL;
    let attempt = |flags| {
        let setup = RingSetup { flags, entries: plan.entries, completions, thread: plan.thread };
        let made = with_pinned_memory(ring_bytes(plan.entries), || M::SqeFormat::make(&setup));
        made.map_err(|errno| failed::<M>(plan, "io_uring_setup", errno))
    };
    let made = match attempt(plain | IoringSetupFlags::NO_SQARRAY) {
        // Kernels before 6.6 do not know NO_SQARRAY; everything else wrong is wrong again.
        Err(DeviceError::Ring { errno: Errno::INVAL, .. }) => (attempt(plain)?, plain),
        made => (made?, plain | IoringSetupFlags::NO_SQARRAY),
    };
    Ok(made)
}

/// Waits for memory that processes of this user still have pinned: the kernel takes it back a while
/// after they have ended, so a restarted sidecar finds its own there. With a limit below the ring's
/// bytes the wait would be in vain.
fn with_pinned_memory<T>(
    bytes: u64,
    mut make: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let limit = PinLimit::of_this_process();
    let others = limit != PinLimit::Unlimited && limit.allows(bytes);
    let begin = Instant::now();
    loop {
        match make() {
            Err(Errno::NOMEM) if others && begin.elapsed() < PINNED_WAIT => {
                thread::sleep(PINNED_PAUSE);
            }
            made => return made,
        }
    }
}

/// Room for every answer and every tag, so that completions do not overflow.
fn completions(entries: u32) -> u32 {
    (entries + entries.max(TAGS_MAX)).next_power_of_two()
}

/// Bytes of a ring, of the wide kind.
fn ring_bytes(entries: u32) -> u64 {
    (u64::from(entries) * 128 + u64::from(completions(entries)) * 32 + 4096).next_multiple_of(4096)
}

fn told(flags: IoringSetupFlags) -> String {
    let names = NAMED.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name);
    names.collect::<Vec<_>>().join("|")
}

fn failed<M: RingMode>(plan: &RingPlan<'_>, step: &'static str, errno: Errno) -> DeviceError {
    let remedy = setup_hints::setup(errno, M::NAME, plan.thread, ring_bytes(plan.entries));
    DeviceError::Ring { path: plan.path.into(), mode: M::NAME.to_string(), step, errno, remedy }
}
