//! How the sidecar stops: drain, let clients read, take everything back, end the pollers.

use std::time::{Duration, Instant};

use kvrail_poller::Command;
use kvrail_protocol::{Hardware, SidecarState};

use crate::pollers::PollerSet;
use crate::server::Server;

/// How long pollers may take to give back what idle sessions had, and to end.
const LAST_STEPS: Duration = Duration::from_secs(2);

/// How often the end of a thread is looked for: nobody rings for it.
const THREAD_LOOK: Duration = Duration::from_millis(2);

/// Where the sidecar is in its life.
#[derive(Debug)]
pub(crate) enum Stage {
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

impl Stage {
    pub(crate) fn is_serving(&self) -> bool {
        matches!(self, Self::Serving)
    }

    /// Whether clients that come now would be sent away at once.
    pub(crate) fn is_leaving(&self) -> bool {
        matches!(self, Self::Leaving { .. } | Self::Ending { .. })
    }

    pub(crate) fn pollers_may_end(&self) -> bool {
        matches!(self, Self::Ending { .. })
    }

    pub(crate) fn shown(&self) -> SidecarState {
        if self.is_serving() { SidecarState::Serving } else { SidecarState::Draining }
    }

    /// A poller has finished what it accepted.
    pub(crate) fn drained(&mut self, poller: usize) {
        if let Self::Draining { waiting, .. } = self {
            waiting.remove(poller);
        }
    }

    /// How long the loop may sleep.
    pub(crate) fn timeout(&self, now: Instant) -> Duration {
        match self {
            Self::Serving => Duration::MAX,
            Self::Draining { deadline, .. } | Self::Leaving { deadline, .. } => {
                deadline.saturating_duration_since(now)
            }
            Self::Ending { .. } => THREAD_LOOK,
        }
    }
}

impl Server {
    /// Somebody asked for a stop: the first time drain, then stop now.
    pub(crate) fn stop_asked(&mut self) {
        if !self.stage.is_serving() {
            tracing::warn!("second request to stop: not waiting any longer");
            return self.end_pollers(StoppedHow::Forced, Instant::now());
        }
        let timeout = self.config.policy.drain_timeout;
        tracing::info!(sessions = self.sessions.len(), ?timeout, "draining");
        let waiting = self.pollers.all();
        self.stage = Stage::Draining { deadline: Instant::now() + timeout, waiting };
        self.pollers.send_each(waiting, || Command::Drain);
    }

    /// Goes on with a stop as far as it can now.
    pub(crate) fn advance_stop(&mut self) -> Option<Stopped> {
        let now = Instant::now();
        match self.stage {
            Stage::Serving => None,
            Stage::Draining { waiting, .. } if waiting.is_empty() => {
                self.dismiss("the sidecar stops; everything accepted is done", Hardware::Settled);
                self.leave(StoppedHow::Drained, now);
                self.advance_stop()
            }
            Stage::Draining { deadline, .. } if deadline <= now => {
                tracing::error!("requests are still under way at the end of the drain timeout");
                let reason = "the sidecar stops; requests under way could not be finished in time";
                self.dismiss(reason, Hardware::MayBeActive);
                self.leave(StoppedHow::TimedOut, now);
                self.advance_stop()
            }
            Stage::Leaving { how, deadline } if self.sessions.is_empty() || deadline <= now => {
                self.end_pollers(how, now + LAST_STEPS);
                self.advance_stop()
            }
            Stage::Ending { deadline, how } => {
                let pollers_left = self.pollers.running();
                let sessions_left = self.sessions.len();
                (pollers_left == 0 || deadline <= now).then_some(Stopped {
                    how,
                    pollers_left,
                    sessions_left,
                })
            }
            _ => None,
        }
    }

    fn leave(&mut self, how: StoppedHow, now: Instant) {
        self.stage = Stage::Leaving { deadline: now + LAST_STEPS, how };
    }

    fn end_pollers(&mut self, how: StoppedHow, deadline: Instant) {
        // After an orderly end there is nobody left to be told.
        self.dismiss_all("the sidecar was told to stop at once");
        self.stage = Stage::Ending { deadline, how };
        let all = self.pollers.all();
        self.pollers.send_each(all, || Command::Stop);
    }
}
