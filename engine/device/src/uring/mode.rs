//! The ring modes by name, as configuration, reports and commands spell them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::system::kernel_version;

/// The ring modes by name, as configuration and `kvrail status` spell them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum ModeName {
    /// Completions by interrupt; the submitting thread runs the kernel's part.
    Interrupt,
    /// NVMe commands on the generic character device, past the block layer.
    Passthrough,
    /// Completions by polling the device's queue, after a nap of half their usual time.
    Hybrid,
    /// Completions by polling the device's queue.
    Iopoll,
    /// NVMe commands on the generic character device, completions by polling.
    PassthroughIopoll,
    /// A kernel thread submits.
    Sqpoll,
    /// A kernel thread submits and polls.
    SqpollIopoll,
}

impl ModeName {
    /// Every mode, from cheap to expensive in CPU.
    pub const ALL: [Self; 7] = [
        Self::Interrupt,
        Self::Passthrough,
        Self::Hybrid,
        Self::Iopoll,
        Self::PassthroughIopoll,
        Self::Sqpoll,
        Self::SqpollIopoll,
    ];

    /// How people write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Passthrough => "passthrough",
            Self::Hybrid => "hybrid",
            Self::Iopoll => "iopoll",
            Self::PassthroughIopoll => "passthrough+iopoll",
            Self::Sqpoll => "sqpoll",
            Self::SqpollIopoll => "sqpoll+iopoll",
        }
    }

    /// Whether this kernel ends a ring of the mode once requests of a killed process have ended.
    #[must_use]
    pub fn ends_behind_a_kill(self) -> bool {
        self.ends_on(kernel_version())
    }

    /// Linux 6.12 polls a ring of passed commands for ever, in half of all kills: their completions
    /// lie in a list that only the process would have looked at. 7.3 looks there.
    fn ends_on(self, kernel: Option<(u32, u32)>) -> bool {
        self != Self::PassthroughIopoll || kernel >= Some((7, 0))
    }

    /// Whether it needs a queue the device can be polled on.
    #[must_use]
    pub const fn polls_device(self) -> bool {
        matches!(self, Self::Hybrid | Self::Iopoll | Self::PassthroughIopoll | Self::SqpollIopoll)
    }

    /// Whether it needs a core for a kernel thread.
    #[must_use]
    pub const fn has_kernel_thread(self) -> bool {
        matches!(self, Self::Sqpoll | Self::SqpollIopoll)
    }

    /// Entries of a submission queue for this many requests in flight. A kernel thread frees
    /// entries when it has submitted all that it found (`io_submit_sqes`), so completions can come
    /// before: of as many requests as were in flight when it looked.
    #[must_use]
    pub const fn queue_entries(self, in_flight: u32) -> u32 {
        if self.has_kernel_thread() { 2 * in_flight } else { in_flight }
    }

    /// Whether it needs an NVMe namespace's character device.
    #[must_use]
    pub const fn passes_through(self) -> bool {
        matches!(self, Self::Passthrough | Self::PassthroughIopoll)
    }

    /// Whether its main ring takes reads and writes only, so that a second, small interrupt ring
    /// flushes and discards.
    #[must_use]
    pub const fn has_side_ring(self) -> bool {
        self.needs_direct()
    }

    /// Whether it needs O_DIRECT.
    #[must_use]
    pub const fn needs_direct(self) -> bool {
        self.polls_device() || self.passes_through()
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
#[error(
    "mode {0:?} is unknown{hint}; write interrupt, iopoll, hybrid, sqpoll, sqpoll+iopoll, \
     passthrough, passthrough+iopoll or auto",
    hint = hint(.0)
)]
pub struct UnknownMode(pub String);

/// Why there is no such mode although each of its words is one.
fn hint(text: &str) -> &'static str {
    let mut words: Vec<&str> = text.split('+').collect();
    words.sort_unstable();
    match words[..] {
        ["passthrough", "sqpoll"] | ["iopoll", "passthrough", "sqpoll"] => {
            " (the poller itself passes commands through, no kernel thread does)"
        }
        ["hybrid", "passthrough"] => " (naps before polling are for block requests only)",
        ["hybrid", "sqpoll"] => " (the kernel thread polls all the time: sqpoll+iopoll)",
        _ => "",
    }
}

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

#[cfg(test)]
mod tests {
    use super::ModeName;

    #[test]
    fn names_round_trip_and_others_are_refused_with_the_choices() {
        for mode in ModeName::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let error = "SQPOLL".parse::<ModeName>().unwrap_err().to_string();
        assert!(error.contains("\"SQPOLL\""), "{error}");
        assert!(ModeName::ALL.iter().all(|mode| error.contains(mode.name())), "{error}");
    }

    #[test]
    fn only_polled_commands_keep_their_ring_for_ever_on_some_kernels() {
        for mode in ModeName::ALL {
            let ends = [None, Some((6, 12)), Some((7, 0))].map(|kernel| mode.ends_on(kernel));
            let polls_commands = mode == ModeName::PassthroughIopoll;
            assert_eq!(ends, [!polls_commands, !polls_commands, true], "{mode}");
        }
    }

    #[test]
    fn a_kernel_thread_may_keep_the_entries_of_requests_that_have_come_back() {
        for mode in ModeName::ALL {
            let twice = [ModeName::Sqpoll, ModeName::SqpollIopoll].contains(&mode);
            assert_eq!(mode.queue_entries(100), if twice { 200 } else { 100 }, "{mode}");
        }
    }

    #[test]
    fn words_that_do_not_go_together_are_refused_with_the_reason() {
        for (text, reason) in [
            ("passthrough+sqpoll", "no kernel thread does"),
            ("sqpoll+passthrough", "no kernel thread does"),
            ("passthrough+sqpoll+iopoll", "no kernel thread does"),
            ("passthrough+hybrid", "for block requests only"),
            ("sqpoll+hybrid", "sqpoll+iopoll"),
        ] {
            let error = text.parse::<ModeName>().unwrap_err().to_string();
            assert!(error.contains(text) && error.contains(reason), "{error}");
            assert!(error.contains("passthrough+iopoll or auto"), "{error}");
        }
    }
}
