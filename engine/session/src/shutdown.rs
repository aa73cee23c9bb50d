//! How the sidecar stops: drain, let clients read, take everything back, end the pollers.

use std::time::{Duration, Instant};

use kvrail_protocol::{Hardware, SidecarState};

use crate::pollers::PollerSet;

/// How long pollers may take to give back what idle sessions had, and to end, however little of
/// the drain timeout is left.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// A second stop request within this time counts as the first: some supervisors signal a process,
/// and then its group.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// Interval of checks for the end of a thread, which rings no bell.
const THREAD_LOOK: Duration = Duration::from_millis(2);

/// Where the sidecar is in its life.
#[derive(Clone, Copy, Debug)]
enum ShutdownStage {
    /// Takes everything.
    Serving,
    /// Pollers finish what they accepted.
    Draining { deadline: Instant, waiting: PollerSet },
    /// Sessions are being taken back.
    Leaving { deadline: Instant, how: StoppedHow },
    /// Pollers end.
    Ending { deadline: Instant, how: StoppedHow },
}

/// How a stop went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoppedHow {
    /// Everything accepted was completed.
    Drained,
    /// The drain timeout ended before the last request did.
    TimedOut,
    /// A later request forced an immediate stop.
    Forced,
}

/// Blocks that memory alone has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateLeft {
    /// How many.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The end of `Server::run`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// How it went.
    pub how: StoppedHow,
    /// Pollers that still run, because a device does not let them go. The process should exit
    /// without waiting for them.
    pub pollers_left: usize,
    /// Sessions whose memory hardware may still touch.
    pub sessions_left: usize,
    /// Acknowledged blocks in memory that those pollers have not written: they are lost.
    pub late: LateLeft,
    /// Those that pollers could not write: the log has why.
    pub lost: LateLeft,
}

/// The server's next step of a stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StopStep {
    /// Command all pollers to finish what they accepted.
    Drain,
    /// End all sessions, for this reason and with this left of what hardware does.
    Dismiss(&'static str, Hardware),
    /// End all remaining sessions, and command all pollers to end.
    StopPollers,
    /// Nothing more.
    Done(Stopped),
}

/// The stop of the sidecar.
#[derive(Debug)]
pub(crate) struct Shutdown {
    stage: ShutdownStage,
    /// Steps that `advance` has not handed out.
    next: Option<StopStep>,
    /// Time of the first stop request.
    asked: Option<Instant>,
    /// The end of the drain timeout: a store writes its last records until then.
    drain_deadline: Instant,
}

impl Shutdown {
    pub(crate) fn new() -> Self {
        Self {
            stage: ShutdownStage::Serving,
            next: None,
            asked: None,
            drain_deadline: Instant::now(),
        }
    }

    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.stage, ShutdownStage::Serving)
    }

    /// Whether clients that come now would be sent away at once.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.stage, ShutdownStage::Leaving { .. } | ShutdownStage::Ending { .. })
    }

    pub(crate) fn pollers_may_end(&self) -> bool {
        matches!(self.stage, ShutdownStage::Ending { .. })
    }

    pub(crate) fn shown(&self) -> SidecarState {
        if self.is_serving() { SidecarState::Serving } else { SidecarState::Draining }
    }

    /// A poller has finished what it accepted.
    pub(crate) fn drained(&mut self, poller: usize) {
        if let ShutdownStage::Draining { waiting, .. } = &mut self.stage {
            waiting.remove(poller);
        }
    }

    /// How long the loop may sleep.
    pub(crate) fn timeout(&self, now: Instant) -> Duration {
        match self.stage {
            ShutdownStage::Serving => Duration::MAX,
            ShutdownStage::Draining { deadline, .. } | ShutdownStage::Leaving { deadline, .. } => {
                deadline.saturating_duration_since(now)
            }
            ShutdownStage::Ending { .. } => THREAD_LOOK,
        }
    }

    /// Enters a stop request: the first one drains these pollers for at most `drain`, the next one
    /// stops now.
    pub(crate) fn ask(&mut self, pollers: PollerSet, drain: Duration, now: Instant) {
        let first = *self.asked.get_or_insert(now);
        if !self.is_serving() && now.saturating_duration_since(first) < SAME_REQUEST {
            tracing::info!(
                "two stop requests at once count as one: a later one stops without waiting"
            );
            return;
        }
        if self.is_serving() {
            self.drain_deadline = now + drain;
            self.stage =
                ShutdownStage::Draining { deadline: self.drain_deadline, waiting: pollers };
            self.next = Some(StopStep::Drain);
        } else {
            tracing::warn!("second request to stop: not waiting any longer");
            self.end(StoppedHow::Forced, now);
        }
    }

    /// The next possible step, with the remaining sessions and pollers.
    pub(crate) fn advance(
        &mut self,
        sessions_left: usize,
        pollers_left: usize,
        now: Instant,
    ) -> Option<StopStep> {
        if let Some(step) = self.next.take() {
            return Some(step);
        }
        match self.stage {
            ShutdownStage::Draining { waiting, .. } if waiting.is_empty() => {
                self.leave(StoppedHow::Drained, now);
                let reason = "the sidecar stops; everything accepted is done";
                Some(StopStep::Dismiss(reason, Hardware::Settled))
            }
            ShutdownStage::Draining { deadline, .. } if deadline <= now => {
                tracing::error!("requests are still in flight at the end of the drain timeout");
                self.leave(StoppedHow::TimedOut, now);
                let reason = "the sidecar stops; requests in flight could not be finished in time";
                Some(StopStep::Dismiss(reason, Hardware::MayBeActive))
            }
            ShutdownStage::Leaving { how, deadline } if sessions_left == 0 || deadline <= now => {
                self.end(how, self.drain_deadline.max(now + LAST_STEPS));
                self.next.take()
            }
            ShutdownStage::Ending { deadline, how } if pollers_left == 0 || deadline <= now => {
                let late = LateLeft::default(); // the stores have that
                let lost = late;
                Some(StopStep::Done(Stopped { how, pollers_left, sessions_left, late, lost }))
            }
            _ => None,
        }
    }

    fn leave(&mut self, how: StoppedHow, now: Instant) {
        self.stage = ShutdownStage::Leaving { deadline: now + LAST_STEPS, how };
    }

    fn end(&mut self, how: StoppedHow, deadline: Instant) {
        self.stage = ShutdownStage::Ending { deadline, how };
        self.next = Some(StopStep::StopPollers);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{LAST_STEPS, SAME_REQUEST, Shutdown, StopStep, StoppedHow};
    use crate::pollers::PollerSet;

    const DRAIN: Duration = Duration::from_secs(30);

    /// A shutdown whose clients are gone, and whose poller has the command to end.
    fn ending(now: Instant) -> Shutdown {
        let mut shutdown = Shutdown::new();
        shutdown.ask(PollerSet::all(1), DRAIN, now);
        assert!(matches!(shutdown.advance(1, 1, now), Some(StopStep::Drain)));
        shutdown.drained(0);
        assert!(matches!(shutdown.advance(1, 1, now), Some(StopStep::Dismiss(..))));
        assert!(matches!(shutdown.advance(0, 1, now), Some(StopStep::StopPollers)));
        shutdown
    }

    #[test]
    fn a_poller_that_ends_late_has_the_whole_drain_timeout() {
        let now = Instant::now();
        let mut shutdown = ending(now);
        assert!(shutdown.advance(0, 1, now + 5 * LAST_STEPS).is_none());
        let Some(StopStep::Done(stopped)) = shutdown.advance(0, 0, now + 6 * LAST_STEPS) else {
            panic!("no poller is left");
        };
        assert_eq!((stopped.how, stopped.pollers_left), (StoppedHow::Drained, 0));
    }

    #[test]
    fn a_stop_that_is_asked_for_twice_at_once_drains() {
        let now = Instant::now();
        let mut shutdown = Shutdown::new();
        shutdown.ask(PollerSet::all(1), DRAIN, now);
        assert!(matches!(shutdown.advance(1, 1, now), Some(StopStep::Drain)));
        let same = now + SAME_REQUEST / 2;
        shutdown.ask(PollerSet::all(1), DRAIN, same);
        assert!(shutdown.advance(1, 1, same).is_none(), "the poller drains");
        shutdown.drained(0);
        assert!(matches!(shutdown.advance(1, 1, same), Some(StopStep::Dismiss(..))));
        assert!(matches!(shutdown.advance(0, 1, same), Some(StopStep::StopPollers)));
        let done = shutdown.advance(0, 0, same);
        assert!(
            matches!(done, Some(StopStep::Done(stopped)) if stopped.how == StoppedHow::Drained)
        );
    }

    #[test]
    fn a_later_request_does_not_wait() {
        let now = Instant::now();
        let mut shutdown = Shutdown::new();
        shutdown.ask(PollerSet::all(1), DRAIN, now);
        assert!(matches!(shutdown.advance(1, 1, now), Some(StopStep::Drain)));
        let later = now + SAME_REQUEST;
        shutdown.ask(PollerSet::all(1), DRAIN, later);
        assert!(matches!(shutdown.advance(1, 1, later), Some(StopStep::StopPollers)));
        let done = shutdown.advance(1, 1, later);
        assert!(matches!(done, Some(StopStep::Done(stopped)) if stopped.how == StoppedHow::Forced));
    }

    #[test]
    fn a_poller_that_does_not_end_is_left() {
        let now = Instant::now();
        let done = ending(now).advance(0, 1, now + DRAIN);
        assert!(matches!(done, Some(StopStep::Done(stopped)) if stopped.pollers_left == 1));
    }
}
