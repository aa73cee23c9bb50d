//! How the sidecar stops: drain, let clients read, take everything back, end the pollers.

use std::time::{Duration, Instant};

use kvrail_protocol::{Hardware, SidecarState};

use crate::pollers::PollerSet;

/// How long pollers may take to give back what idle sessions had, and to end.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// How often the end of a thread is looked for: nobody rings for it.
const THREAD_LOOK: Duration = Duration::from_millis(2);

/// Where the sidecar is in its life.
#[derive(Clone, Copy, Debug)]
enum Stage {
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
    /// A second request asked not to wait.
    Forced,
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
}

/// What the server has to do for a stop to go on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Tell all pollers to finish what they accepted.
    Drain,
    /// End all sessions, for this reason and with this left of what hardware does.
    Dismiss(&'static str, Hardware),
    /// End all sessions that are left, and tell all pollers to end.
    StopPollers,
    /// Nothing more.
    Done(Stopped),
}

/// The stop of the sidecar.
#[derive(Debug)]
pub(crate) struct Shutdown {
    stage: Stage,
    /// Steps that `advance` has not handed out.
    next: Option<Step>,
}

impl Shutdown {
    pub(crate) fn new() -> Self {
        Self { stage: Stage::Serving, next: None }
    }

    pub(crate) fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Serving)
    }

    /// Whether clients that come now would be sent away at once.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving { .. } | Stage::Ending { .. })
    }

    pub(crate) fn pollers_may_end(&self) -> bool {
        matches!(self.stage, Stage::Ending { .. })
    }

    pub(crate) fn shown(&self) -> SidecarState {
        if self.is_serving() { SidecarState::Serving } else { SidecarState::Draining }
    }

    /// A poller has finished what it accepted.
    pub(crate) fn drained(&mut self, poller: usize) {
        if let Stage::Draining { waiting, .. } = &mut self.stage {
            waiting.remove(poller);
        }
    }

    /// How long the loop may sleep.
    pub(crate) fn timeout(&self, now: Instant) -> Duration {
        match self.stage {
            Stage::Serving => Duration::MAX,
            Stage::Draining { deadline, .. } | Stage::Leaving { deadline, .. } => {
                deadline.saturating_duration_since(now)
            }
            Stage::Ending { .. } => THREAD_LOOK,
        }
    }

    /// Somebody asked for a stop: the first time these pollers drain for so long, then stop now.
    pub(crate) fn ask(&mut self, pollers: PollerSet, drain: Duration) {
        let now = Instant::now();
        if self.is_serving() {
            self.stage = Stage::Draining { deadline: now + drain, waiting: pollers };
            self.next = Some(Step::Drain);
        } else {
            tracing::warn!("second request to stop: not waiting any longer");
            self.end(StoppedHow::Forced, now);
        }
    }

    /// The next step, if one can be done now, with so many sessions and pollers left.
    pub(crate) fn advance(&mut self, sessions_left: usize, pollers_left: usize) -> Option<Step> {
        let now = Instant::now();
        if let Some(step) = self.next.take() {
            return Some(step);
        }
        match self.stage {
            Stage::Draining { waiting, .. } if waiting.is_empty() => {
                self.leave(StoppedHow::Drained, now);
                let reason = "the sidecar stops; everything accepted is done";
                Some(Step::Dismiss(reason, Hardware::Settled))
            }
            Stage::Draining { deadline, .. } if deadline <= now => {
                tracing::error!("requests are still in flight at the end of the drain timeout");
                self.leave(StoppedHow::TimedOut, now);
                let reason = "the sidecar stops; requests in flight could not be finished in time";
                Some(Step::Dismiss(reason, Hardware::MayBeActive))
            }
            Stage::Leaving { how, deadline } if sessions_left == 0 || deadline <= now => {
                self.end(how, now + LAST_STEPS);
                self.next.take()
            }
            Stage::Ending { deadline, how } if pollers_left == 0 || deadline <= now => {
                Some(Step::Done(Stopped { how, pollers_left, sessions_left }))
            }
            _ => None,
        }
    }

    fn leave(&mut self, how: StoppedHow, now: Instant) {
        self.stage = Stage::Leaving { deadline: now + LAST_STEPS, how };
    }

    fn end(&mut self, how: StoppedHow, deadline: Instant) {
        self.stage = Stage::Ending { deadline, how };
        self.next = Some(Step::StopPollers);
    }
}
