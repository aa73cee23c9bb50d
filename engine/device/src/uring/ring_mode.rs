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

/// Declares a mode whose own calls submit and make the kernel run its deferred work: no system
/// call while spinning, one to submit.
macro_rules! by_interrupt {
    ($(#[$doc:meta])* $mode:ident, $wire:ty, $flags:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $mode;

        impl RingMode for $mode {
            const NAME: ModeName = ModeName::$mode;
            const SUBMISSION: Submission = Submission::Caller;
            const COMPLETING: Completing = Completing::Interrupts;
            const FLAGS: IoringSetupFlags = $flags;
            type SqeFormat = $wire;

            #[inline]
            fn submit(ring: &mut Ring<Self::SqeFormat>) {
                if ring.queued() > 0 {
                    ring.hand_over(IoringEnterFlags::empty());
                }
            }

            #[inline]
            fn collect(ring: &mut Ring<Self::SqeFormat>, _: u32) {
                if ring.is_empty() && ring.has_work() {
                    ring.collect();
                }
            }
        }
    };
}

/// Declares a mode whose own calls poll the device; the call that submits also polls once.
macro_rules! by_polling {
    ($(#[$doc:meta])* $mode:ident, $wire:ty, $flags:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $mode;

        impl RingMode for $mode {
            const NAME: ModeName = ModeName::$mode;
            const SUBMISSION: Submission = Submission::Caller;
            const COMPLETING: Completing = Completing::Polling;
            const FLAGS: IoringSetupFlags = $flags;
            type SqeFormat = $wire;

            #[inline]
            fn submit(ring: &mut Ring<Self::SqeFormat>) {
                if ring.queued() > 0 {
                    ring.collect();
                }
            }

            #[inline]
            fn collect(ring: &mut Ring<Self::SqeFormat>, pieces: u32) {
                if pieces > 0 && ring.is_empty() {
                    ring.collect();
                }
            }
        }
    };
}

/// Declares a mode with a kernel thread, which submits and posts completions by itself unless they
/// have overflown.
macro_rules! by_thread {
    ($(#[$doc:meta])* $mode:ident, $completing:expr, $flags:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $mode;

        impl RingMode for $mode {
            const NAME: ModeName = ModeName::$mode;
            const SUBMISSION: Submission = Submission::KernelThread;
            const COMPLETING: Completing = $completing;
            const FLAGS: IoringSetupFlags = $flags;
            type SqeFormat = Block;

            #[inline]
            fn submit(ring: &mut Ring<Block>) {
                if ring.queued() > 0 {
                    ring.wake();
                }
            }

            #[inline]
            fn collect(ring: &mut Ring<Block>, _: u32) {
                if ring.is_empty() && ring.has_work() {
                    ring.collect();
                }
            }
        }
    };
}

by_interrupt! {
    /// Completions by interrupt, their work deferred to our own calls.
    Interrupt, Block, INTERRUPT
}

by_interrupt! {
    /// NVMe commands on the namespace's character device, completions by interrupt.
    Passthrough, Nvme, INTERRUPT.union(WIDE)
}

by_polling! {
    /// Completions by polling the device from our own calls.
    Iopoll, Block, POLLING
}

by_polling! {
    /// The same, but the kernel sleeps for half of what requests usually take before it polls.
    Hybrid, Block, POLLING.union(HYBRID_IOPOLL)
}

by_polling! {
    /// NVMe commands on the namespace's character device, completions by polling.
    PassthroughIopoll, Nvme, POLLING.union(WIDE)
}

by_thread! {
    /// A kernel thread submits; completions by interrupt.
    Sqpoll, Completing::Interrupts, IoringSetupFlags::SQPOLL
}

by_thread! {
    /// A kernel thread submits and polls the device.
    SqpollIopoll, Completing::Polling, IoringSetupFlags::SQPOLL.union(IoringSetupFlags::IOPOLL)
}
