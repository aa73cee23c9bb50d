//! The ring modes, each a type: how a ring is set up, who submits, where completions come from.

use std::fmt;
use std::str::FromStr;

use io_uring::Builder;
use rustix::io_uring::IoringEnterFlags;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::uring::ring::{Completing, Ring, Submission};

/// The ring modes by name, as configuration and `kvrail status` spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum ModeName {
    /// Completions by interrupt; the submitting thread runs the kernel's part.
    Interrupt,
    /// A kernel thread submits.
    Sqpoll,
    /// Completions by polling the device's queue.
    Iopoll,
    /// A kernel thread submits and polls.
    SqpollIopoll,
}

impl ModeName {
    /// Every mode, from cheap to dear in CPU.
    pub const ALL: [Self; 4] = [Self::Interrupt, Self::Iopoll, Self::Sqpoll, Self::SqpollIopoll];

    /// How people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Sqpoll => "sqpoll",
            Self::Iopoll => "iopoll",
            Self::SqpollIopoll => "sqpoll+iopoll",
        }
    }

    /// Whether it needs a queue the device can be polled on.
    #[must_use]
    pub const fn polls_device(self) -> bool {
        matches!(self, Self::Iopoll | Self::SqpollIopoll)
    }

    /// Whether it needs a core for a kernel thread.
    #[must_use]
    pub const fn has_kernel_thread(self) -> bool {
        matches!(self, Self::Sqpoll | Self::SqpollIopoll)
    }
}

impl fmt::Display for ModeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<ModeName> for &'static str {
    fn from(mode: ModeName) -> Self {
        mode.name()
    }
}

/// A mode that is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("mode {0:?} is unknown; write interrupt, sqpoll, iopoll, sqpoll+iopoll or auto")]
pub struct UnknownMode(pub String);

impl FromStr for ModeName {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| UnknownMode(text.into()))
    }
}

impl TryFrom<String> for ModeName {
    type Error = UnknownMode;

    fn try_from(text: String) -> Result<Self, UnknownMode> {
        text.parse()
    }
}

/// The kernel thread of a ring that has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelThread {
    /// The CPU it is bound to; any, if none.
    pub cpu: Option<u32>,
    /// How long it spins without work before it sleeps, in milliseconds.
    pub idle_ms: u32,
}

impl Default for KernelThread {
    /// Unbound; sleeps after 50 ms.
    fn default() -> Self {
        Self { cpu: None, idle_ms: 50 }
    }
}

/// How one mode drives a ring. Implemented here and nowhere else.
pub trait Drive: fmt::Debug + Send + 'static {
    /// Its name.
    const NAME: ModeName;
    /// Who submits.
    const SUBMISSION: Submission;
    /// Where completions come from.
    const COMPLETING: Completing;

    /// Sets the mode's flags.
    fn configure(builder: &mut Builder, thread: KernelThread);

    /// Hands over what was pushed.
    fn submit(ring: &mut Ring);

    /// Has completions posted, if there can be any: `pieces` are in flight.
    fn collect(ring: &mut Ring, pieces: u32);
}

/// A ring mode.
pub trait Mode: Drive {}

impl<M: Drive> Mode for M {}

/// Completions by interrupt, their work deferred to our own calls: no system call while spinning,
/// one to submit.
#[derive(Debug)]
pub struct Interrupt;

impl Drive for Interrupt {
    const NAME: ModeName = ModeName::Interrupt;
    const SUBMISSION: Submission = Submission::Caller;
    const COMPLETING: Completing = Completing::Interrupts;

    fn configure(builder: &mut Builder, _: KernelThread) {
        own_issuer(builder).setup_taskrun_flag();
    }

    #[inline]
    fn submit(ring: &mut Ring) {
        if ring.queued() > 0 {
            ring.hand_over(IoringEnterFlags::empty());
        }
    }

    #[inline]
    fn collect(ring: &mut Ring, _: u32) {
        if ring.is_empty() && ring.has_work() {
            ring.collect();
        }
    }
}

/// Completions by polling the device from our own calls.
#[derive(Debug)]
pub struct Iopoll;

impl Drive for Iopoll {
    const NAME: ModeName = ModeName::Iopoll;
    const SUBMISSION: Submission = Submission::Caller;
    const COMPLETING: Completing = Completing::Polling;

    fn configure(builder: &mut Builder, _: KernelThread) {
        own_issuer(builder).setup_iopoll();
    }

    /// The call that submits also polls once.
    #[inline]
    fn submit(ring: &mut Ring) {
        if ring.queued() > 0 {
            ring.collect();
        }
    }

    #[inline]
    fn collect(ring: &mut Ring, pieces: u32) {
        if pieces > 0 && ring.is_empty() {
            ring.collect();
        }
    }
}

/// A kernel thread submits; completions by interrupt.
#[derive(Debug)]
pub struct Sqpoll;

impl Drive for Sqpoll {
    const NAME: ModeName = ModeName::Sqpoll;
    const SUBMISSION: Submission = Submission::KernelThread;
    const COMPLETING: Completing = Completing::Interrupts;

    fn configure(builder: &mut Builder, thread: KernelThread) {
        kernel_thread(builder, thread);
    }

    /// `push` has woken the kernel thread where it slept.
    #[inline]
    fn submit(_: &mut Ring) {}

    #[inline]
    fn collect(ring: &mut Ring, _: u32) {
        collect_overflow(ring);
    }
}

/// A kernel thread submits and polls the device.
#[derive(Debug)]
pub struct SqpollIopoll;

impl Drive for SqpollIopoll {
    const NAME: ModeName = ModeName::SqpollIopoll;
    const SUBMISSION: Submission = Submission::KernelThread;
    const COMPLETING: Completing = Completing::Polling;

    fn configure(builder: &mut Builder, thread: KernelThread) {
        kernel_thread(builder, thread).setup_iopoll();
    }

    #[inline]
    fn submit(_: &mut Ring) {}

    #[inline]
    fn collect(ring: &mut Ring, _: u32) {
        collect_overflow(ring);
    }
}

/// One thread submits and runs the kernel's deferred work. Set up disabled, so that the control
/// thread can open the device and the poller that first submits becomes the issuer.
fn own_issuer(builder: &mut Builder) -> &mut Builder {
    builder.setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun().setup_r_disabled()
}

fn kernel_thread(builder: &mut Builder, thread: KernelThread) -> &mut Builder {
    builder.setup_sqpoll(thread.idle_ms);
    if let Some(cpu) = thread.cpu {
        builder.setup_sqpoll_cpu(cpu);
    }
    builder
}

/// The kernel thread posts completions by itself, unless they have overflown.
#[inline]
fn collect_overflow(ring: &mut Ring) {
    if ring.is_empty() && ring.has_work() {
        ring.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::ModeName;

    #[test]
    fn names_round_trip_and_others_are_refused_with_the_choices() {
        for mode in ModeName::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "SQPOLL".parse::<ModeName>().unwrap_err().to_string();
        assert!(error.contains("\"SQPOLL\"") && error.contains("sqpoll+iopoll"), "{error}");
    }
}
