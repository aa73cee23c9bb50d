//! The ring modes, each a type: how a ring is set up, which side submits, where completions come
//! from.

use std::fmt;

use rustix::io_uring::{IoringEnterFlags, IoringSetupFlags};

use crate::uring::mode::ModeName;
use crate::uring::ring::{Completing, Ring, Submission};
use crate::uring::sqe::{Block, Nvme, SqeFormat};

/// IORING_SETUP_HYBRID_IOPOLL (kernel 6.13): value of the kernel's header, in no crate yet.
pub(super) const HYBRID_IOPOLL: IoringSetupFlags = IoringSetupFlags::from_bits_retain(1 << 17);

/// One thread submits and runs the kernel's deferred work. Set up disabled, so that the control
/// thread can open the device and the poller that first submits becomes the issuer.
const OWN_ISSUER: IoringSetupFlags = IoringSetupFlags::SINGLE_ISSUER
    .union(IoringSetupFlags::DEFER_TASKRUN)
    .union(IoringSetupFlags::COOP_TASKRUN)
    .union(IoringSetupFlags::R_DISABLED);

/// The same, and deferred work shows in the ring.
const INTERRUPT: IoringSetupFlags = OWN_ISSUER.union(IoringSetupFlags::TASKRUN_FLAG);

/// The same, completions by polling.
const POLLING: IoringSetupFlags = OWN_ISSUER.union(IoringSetupFlags::IOPOLL);

/// Entries and completions as wide as NVMe commands need them.
const WIDE: IoringSetupFlags = IoringSetupFlags::SQE128.union(IoringSetupFlags::CQE32);

/// How one mode drives a ring. Implemented here and nowhere else.
pub trait RingMode: fmt::Debug + Send + 'static {
    /// Its name.
    const NAME: ModeName;
    /// Which side submits.
    const SUBMISSION: Submission;
    /// Where completions come from.
    const COMPLETING: Completing;
    /// The flags its ring is set up with.
    const FLAGS: IoringSetupFlags;
    /// The form of its requests.
    type SqeFormat: SqeFormat;

    /// Hands over what was pushed.
    fn submit(ring: &mut Ring<Self::SqeFormat>);

    /// Has completions posted, if there can be any: `pieces` are in flight.
    fn collect(ring: &mut Ring<Self::SqeFormat>, pieces: u32);
}

/// A ring mode.
pub trait Mode: RingMode {}

impl<M: RingMode> Mode for M {}

/// Who submits to a ring, and how its completions are posted.
trait SubmissionMode {
    const SUBMISSION: Submission;

    fn submit<F: SqeFormat>(ring: &mut Ring<F>);

    fn collect<F: SqeFormat>(ring: &mut Ring<F>, pieces: u32);
}

/// Own calls submit and make the kernel run its deferred work: no system call while spinning, one
/// to submit.
#[derive(Debug)]
struct ByInterrupt;

impl SubmissionMode for ByInterrupt {
    const SUBMISSION: Submission = Submission::Caller;

    #[inline(always)]
    fn submit<F: SqeFormat>(ring: &mut Ring<F>) {
        if ring.queued() > 0 {
            ring.hand_over(IoringEnterFlags::empty());
        }
    }

    #[inline(always)]
    fn collect<F: SqeFormat>(ring: &mut Ring<F>, _: u32) {
        if ring.is_empty() && ring.has_work() {
            ring.collect();
        }
    }
}

/// Own calls poll the device; the call that submits also polls once.
#[derive(Debug)]
struct ByPolling;

impl SubmissionMode for ByPolling {
    const SUBMISSION: Submission = Submission::Caller;

    #[inline(always)]
    fn submit<F: SqeFormat>(ring: &mut Ring<F>) {
        if ring.queued() > 0 {
            ring.collect();
        }
    }

    #[inline(always)]
    fn collect<F: SqeFormat>(ring: &mut Ring<F>, pieces: u32) {
        if pieces > 0 && ring.is_empty() {
            ring.collect();
        }
    }
}

/// A kernel thread submits and posts completions by itself, unless they have overflown.
#[derive(Debug)]
struct ByThread;

impl SubmissionMode for ByThread {
    const SUBMISSION: Submission = Submission::KernelThread;

    #[inline(always)]
    fn submit<F: SqeFormat>(ring: &mut Ring<F>) {
        if ring.queued() > 0 {
            ring.wake();
        }
    }

    #[inline(always)]
    fn collect<F: SqeFormat>(ring: &mut Ring<F>, pieces: u32) {
        ByInterrupt::collect(ring, pieces);
    }
}

/// Declares a mode: its way, the form of its requests, where completions come from, its flags.
macro_rules! mode {
    ($(#[$doc:meta])* $mode:ident: $way:ty, $format:ty, $completing:ident, $flags:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $mode;

        impl RingMode for $mode {
            const NAME: ModeName = ModeName::$mode;
            const SUBMISSION: Submission = <$way>::SUBMISSION;
            const COMPLETING: Completing = Completing::$completing;
            const FLAGS: IoringSetupFlags = $flags;
            type SqeFormat = $format;

            #[inline]
            fn submit(ring: &mut Ring<$format>) {
                <$way>::submit(ring);
            }

            #[inline]
            fn collect(ring: &mut Ring<$format>, pieces: u32) {
                <$way>::collect(ring, pieces);
            }
        }
    };
}

mode! {
    /// Completions by interrupt, their work deferred to our own calls.
    Interrupt: ByInterrupt, Block, Interrupts, INTERRUPT
}

mode! {
    /// NVMe commands on the namespace's character device, completions by interrupt.
    Passthrough: ByInterrupt, Nvme, Interrupts, INTERRUPT.union(WIDE)
}

mode! {
    /// Completions by polling the device from our own calls.
    Iopoll: ByPolling, Block, Polling, POLLING
}

mode! {
    /// The same, but the kernel sleeps for half of what requests usually take before it polls.
    Hybrid: ByPolling, Block, Polling, POLLING.union(HYBRID_IOPOLL)
}

mode! {
    /// NVMe commands on the namespace's character device, completions by polling.
    PassthroughIopoll: ByPolling, Nvme, Polling, POLLING.union(WIDE)
}

mode! {
    /// A kernel thread submits; completions by interrupt.
    Sqpoll: ByThread, Block, Interrupts, IoringSetupFlags::SQPOLL
}

mode! {
    /// A kernel thread submits and polls the device.
    SqpollIopoll: ByThread, Block, Polling,
    IoringSetupFlags::SQPOLL.union(IoringSetupFlags::IOPOLL)
}
