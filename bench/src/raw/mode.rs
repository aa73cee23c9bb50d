//! How a ring is driven, and how it is built for that.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, anyhow};
use io_uring::IoUring;

/// Milliseconds the kernel's submission thread spins before it sleeps: longer than any gap of a
/// closed loop, shorter than the pause between two runs.
const SQPOLL_IDLE_MS: u32 = 50;

/// The ring modes of `kvrail serve`, by the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RingMode {
    /// SINGLE_ISSUER, DEFER_TASKRUN, COOP_TASKRUN; completions by interrupt, taken when entering.
    Interrupt,
    /// A kernel thread submits; completions by interrupt.
    Sqpoll,
    /// As `Interrupt`, completions polled when entering.
    Iopoll,
    /// A kernel thread submits and polls.
    SqpollIopoll,
}

/// Who hands the operations to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submission {
    /// This thread, with `io_uring_enter`.
    Entered,
    /// The kernel's thread.
    Threaded,
}

/// Who brings the completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// An interrupt.
    Interrupts,
    /// Looking at the device's queue.
    Polls,
}

impl RingMode {
    /// Every mode.
    pub const ALL: [Self; 4] = [Self::Interrupt, Self::Sqpoll, Self::Iopoll, Self::SqpollIopoll];

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

    pub(super) fn submission(self) -> Submission {
        match self {
            Self::Interrupt | Self::Iopoll => Submission::Entered,
            Self::Sqpoll | Self::SqpollIopoll => Submission::Threaded,
        }
    }

    pub(super) fn completion(self) -> Completion {
        match self {
            Self::Interrupt | Self::Sqpoll => Completion::Interrupts,
            Self::Iopoll | Self::SqpollIopoll => Completion::Polls,
        }
    }

    /// A ring of this mode. TASKRUN_FLAG is set beside the sidecar's flags: an open loop that
    /// spins must see without a system call that completions wait.
    pub(super) fn build(self, entries: u32) -> Result<IoUring> {
        let mut builder = IoUring::builder();
        match self.submission() {
            Submission::Entered => {
                builder.setup_single_issuer().setup_defer_taskrun();
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            Submission::Threaded => {
                builder.setup_sqpoll(SQPOLL_IDLE_MS);
            }
        }
        if self.completion() == Completion::Polls {
            builder.setup_iopoll();
        }
        builder.build(entries.next_power_of_two()).map_err(|error| {
            let remedy = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => {
                    "allow io_uring: sysctl kernel.io_uring_disabled=0, and in the seccomp profile"
                }
                Some(libc::ENOMEM) => "raise the memlock limit: ulimit -l unlimited",
                Some(libc::EINVAL) => "this mode needs Linux 6.1 or later",
                _ => "see `kvrail check`",
            };
            anyhow!("the raw arm cannot set up a ring in mode {self}: {error}; {remedy}")
        })
    }
}

impl fmt::Display for RingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RingMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |mode: &&Self| mode.name() == text;
        Self::ALL.iter().find(named).copied().ok_or_else(|| {
            format!("`{text}` is no ring mode; write interrupt, sqpoll, iopoll or sqpoll+iopoll")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::RingMode;

    #[test]
    fn names_round_trip() {
        for mode in RingMode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
        }
        assert!("poll".parse::<RingMode>().unwrap_err().contains("sqpoll+iopoll"));
    }
}
