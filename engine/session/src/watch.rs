//! The watch over pollers: one that no longer turns, because a device keeps it in the kernel, and
//! requests that are older than they should be are logged once, and once when it is over.
//!
//! A poller turns at least as often as its heartbeat, and when it is woken, so one that is silent
//! is woken before it is believed to be stalled.
//!
//! Control requests are answered without a stalled poller, so that its clients do not wait for a
//! device that hangs. New resources are granted when all other pollers have them: the stalled one
//! has its command in its mailbox, before any request that relies on it. A resource to be given
//! back is kept until the stalled poller no longer has it (invariant 2), and the answer reports the
//! delay.

use std::fmt::Write;
use std::fs;
use std::time::{Duration, Instant};

use kvrail_device::{Clock, MonotonicClock};
use kvrail_memory::state_of;
use kvrail_poller::PollerHandle;
use kvrail_ring::Status;

use crate::failure::Failure;
use crate::policy::Patience;
use crate::pollers::PollerSet;

/// Looks within the time after which a poller counts as stalled.
const LOOKS: u32 = 4;

/// Longest time between two looks.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// Functions of the kernel that are named, innermost first.
const FRAMES: usize = 4;

/// A poller that does not turn.
#[derive(Clone, Debug)]
pub(crate) struct Stall {
    since: Instant,
    /// The kernel's description of its thread.
    pub(crate) kernel: String,
}

impl Stall {
    pub(crate) fn seconds(&self) -> u64 {
        self.since.elapsed().as_secs()
    }
}

/// State of one poller.
#[derive(Debug)]
struct PollerPulse {
    ticks: u64,
    silent: Duration,
    stall: Option<Stall>,
    /// Devices with a logged warning about overdue requests.
    overdue: Vec<bool>,
}

/// All pollers, as they were at the last look.
#[derive(Debug)]
pub(crate) struct Watch {
    pulses: Vec<PollerPulse>,
    looked: Instant,
}

impl Watch {
    pub(crate) fn new(handles: &[PollerHandle]) -> Self {
        let pulse = |handle: &PollerHandle| PollerPulse {
            ticks: 0,
            silent: Duration::ZERO,
            stall: None,
            overdue: vec![false; handle.devices.len()],
        };
        Self { pulses: handles.iter().map(pulse).collect(), looked: Instant::now() }
    }

    /// Time until the next look.
    pub(crate) fn timeout(&self, patience: &Patience, now: Instant) -> Duration {
        (self.looked + period(patience)).saturating_duration_since(now)
    }

    /// Pollers that do not turn.
    pub(crate) fn stalled(&self) -> PollerSet {
        let stalled = self.pulses.iter().enumerate().filter(|(_, pulse)| pulse.stall.is_some());
        stalled.fold(PollerSet::default(), |set, (poller, _)| set.with(poller))
    }

    /// Whether and how long this one does not turn.
    pub(crate) fn stall(&self, poller: usize) -> Option<&Stall> {
        self.pulses[poller].stall.as_ref()
    }

    /// Those of a set that do not turn, in words; empty when all turn.
    pub(crate) fn words(&self, of: PollerSet) -> String {
        let stalls = of.iter().filter_map(|poller| Some((poller, self.stall(poller)?)));
        let words =
            stalls.map(|(poller, it)| format!("poller {poller} (stalled {} s)", it.seconds()));
        words.collect::<Vec<_>>().join(", ")
    }

    /// The failure while these pollers do not give a resource back, with the reason.
    pub(crate) fn kept(&self, what: &str, by: PollerSet) -> Failure {
        let words = self.words(by);
        debug_assert!(!words.is_empty(), "only a stalled poller keeps something");
        let message = format!(
            "{what} is given back when {words} turns again: a device keeps it in the kernel (see \
             `kvrail status` and the log); hardware may still touch its memory"
        );
        (Status::DeviceDegraded, message)
    }

    /// Looks, if it is time.
    pub(crate) fn look(&mut self, handles: &[PollerHandle], patience: &Patience, now: Instant) {
        let (passed, period) = (now.duration_since(self.looked), period(patience));
        if passed < period {
            return;
        }
        debug_assert_eq!(self.pulses.len(), handles.len(), "a pulse for each poller");
        self.looked = now;
        // After a longer gap this thread itself was delayed, and the pollers may have been delayed
        // with it.
        let passed = passed.min(period * 2);
        for (pulse, handle) in self.pulses.iter_mut().zip(handles) {
            pulse.feel(handle, patience, passed);
            pulse.look_at_devices(handle, patience);
        }
    }
}

/// Time between two looks.
fn period(patience: &Patience) -> Duration {
    (patience.stall_after / LOOKS).min(LOOK_MAX)
}

impl PollerPulse {
    fn feel(&mut self, handle: &PollerHandle, patience: &Patience, passed: Duration) {
        let ticks = handle.stats.counters.ticks.get();
        if ticks != self.ticks {
            (self.ticks, self.silent) = (ticks, Duration::ZERO);
            if let Some(stall) = self.stall.take() {
                tracing::warn!("poller {} turns again after {} s", handle.index, stall.seconds());
            }
            return;
        }
        self.silent += passed;
        if self.silent >= patience.stall_after / 2 {
            handle.mailbox.nudge().ring();
        }
        if self.silent >= patience.stall_after && self.stall.is_none() {
            let kernel = kernel_words(handle.stats.thread.get());
            let cpu = handle.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string());
            let devices: Vec<_> = handle.devices.iter().map(|(_, it)| it.name.as_str()).collect();
            tracing::error!(
                cpu,
                devices = devices.join(" "),
                "poller {} has not turned for {:?} (pollers.stall_after): what its clients ask of \
                 these devices waits; {kernel}",
                handle.index,
                self.silent
            );
            let since = Instant::now().checked_sub(self.silent).unwrap_or_else(Instant::now);
            self.stall = Some(Stall { since, kernel });
        }
    }

    fn look_at_devices(&mut self, handle: &PollerHandle, patience: &Patience) {
        let devices = handle.devices.iter().zip(&handle.stats.devices);
        for (said, ((_, device), stats)) in self.overdue.iter_mut().zip(devices) {
            let (overdue, oldest_ns) = (stats.counters.overdue.get(), stats.oldest_ns.get());
            if *said == (overdue > 0) {
                continue;
            }
            *said = overdue > 0;
            if *said {
                let age = MonotonicClock.now_ns().saturating_sub(oldest_ns) / 1_000_000_000;
                tracing::error!(
                    device = device.name,
                    overdue,
                    "requests are older than {:?} (pollers.overdue_after), the oldest {age} s: the \
                     device does not answer",
                    patience.overdue_after
                );
            } else {
                tracing::warn!(device = device.name, "requests that were too old have ended");
            }
        }
    }
}

/// The kernel's description of a thread of ours: its state, its wait channel, its system call.
fn kernel_words(thread: u64) -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).ok();
    let stat = read("stat").unwrap_or_default();
    let state = state_of(&stat).unwrap_or('?');
    let mut words = format!("the kernel has its thread {thread} in state {state}");
    let wchan = read("wchan").filter(|wchan| !wchan.is_empty() && wchan != "0");
    if let Some(wchan) = wchan {
        let _fits = write!(words, " at {wchan}");
    }
    let call = read("syscall").and_then(|text| text.split(' ').next().map(str::to_owned));
    if let Some(call) = call.filter(|call| call.parse::<u32>().is_ok()) {
        let _fits = write!(words, ", in system call {call}");
    }
    // Readable with CAP_SYS_ADMIN: `[<0>] request_wait_answer+0x1c/0x50`.
    let stack = read("stack").unwrap_or_default();
    let frames = stack.lines().filter_map(|line| line.split_whitespace().nth(1));
    let frames: Vec<_> = frames.filter_map(|frame| frame.split('+').next()).take(FRAMES).collect();
    if !frames.is_empty() {
        let _fits = write!(words, " ({})", frames.join(" < "));
    }
    words
}
