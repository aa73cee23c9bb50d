//! The target while the sidecar runs: brought up at start, checked at intervals, repaired where
//! others changed kvrail's objects, changed when the configuration is read again, taken down at
//! stop if the configuration demands it.
//!
//! On a thread of its own: the kernel may take its time over a step.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};

use kvrail_memory::Root;
use kvrail_protocol::TargetReport;
use kvrail_target::{Applied, Claims, FileStore, KernelTree, Target, TargetError};

use super::report_extras::ReportExtras;
use crate::command::target::{locked, seen, show};
use kvrail_cli::config::{self, OnShutdown};
use kvrail_cli::failure::{Failure, no_thread};

/// Notices to the target's thread.
#[derive(Debug)]
enum TargetNotice {
    /// The configuration was read again.
    Changed(Box<config::TargetConfig>),
    /// The sidecar stops.
    Stop,
}

/// The way to the target's thread, which may have to begin yet.
#[derive(Clone, Debug)]
pub(super) struct TargetHandle(Sender<TargetNotice>);

/// The thread's end of it.
#[derive(Debug)]
pub(super) struct Inbox(Receiver<TargetNotice>);

/// Both ends.
pub(super) fn door() -> (TargetHandle, Inbox) {
    let (sender, receiver) = channel();
    (TargetHandle(sender), Inbox(receiver))
}

impl TargetHandle {
    /// Has the target changed to the new configuration; the log has the result.
    pub(super) fn renew(&self, wanted: &config::TargetConfig) {
        self.send(TargetNotice::Changed(Box::new(wanted.clone())));
    }

    fn send(&self, word: TargetNotice) {
        // A thread that has ended needs no command.
        let _told = self.0.send(word);
    }
}

/// The target of a running sidecar; dropping it stops the watch.
#[derive(Debug)]
pub(super) struct RunningTarget {
    door: TargetHandle,
    watch: Option<JoinHandle<()>>,
    /// The exports that were brought up, a line each.
    pub(super) report: Vec<String>,
}

impl RunningTarget {
    /// Brings up what the configuration wishes for; without a wish nothing is done.
    ///
    /// # Errors
    /// `Failure` with cause and remedy; the tree is as it was.
    pub(super) fn start(
        wanted: &config::TargetConfig,
        extras: ReportExtras,
        door: TargetHandle,
        inbox: Inbox,
    ) -> Result<Self, Failure> {
        let (wanted_now, root) = (wanted.clone(), Root::default());
        let mut keeper =
            Keeper { wanted: wanted_now, held: None, root, last: String::new(), extras };
        let report =
            if wanted.wish().is_empty() { leftover(wanted) } else { keeper.bring(wanted)? };
        keeper.report();
        let watch = thread::Builder::new().name("kvrail-target".into());
        let watch = watch.spawn(move || keeper.live(&inbox.0));
        let watch = watch.map_err(|error| no_thread("the target's", &error))?;
        Ok(Self { door, watch: Some(watch), report })
    }
}

impl Drop for RunningTarget {
    fn drop(&mut self) {
        self.door.send(TargetNotice::Stop);
        if let Some(watch) = self.watch.take() {
            // A panic there has been printed.
            let _ended = watch.join();
        }
    }
}

/// Exports of an earlier configuration stay until a command removes them: hosts may use them.
fn leftover(wanted: &config::TargetConfig) -> Vec<String> {
    let count = seen(wanted, None).map_or(0, |target| target.owned().len());
    if count == 0 {
        return Vec::new();
    }
    vec![format!(
        "{count} object(s) of an earlier [target] are there; `kvrail target teardown` removes"
    )]
}

struct Keeper {
    /// In force.
    wanted: config::TargetConfig,
    /// None where nothing is wished for: others may have the target then.
    held: Option<LockedTarget>,
    root: Root,
    /// The last message: a repeated one is logged once.
    last: String,
    /// Where it is written down how the target is.
    extras: ReportExtras,
}

/// The target, locked, and its devices.
struct LockedTarget {
    target: Target<KernelTree, FileStore>,
    claims: Claims,
}

impl Keeper {
    fn live(mut self, inbox: &Receiver<TargetNotice>) {
        loop {
            let word = match &self.held {
                Some(_) => inbox.recv_timeout(self.wanted.reconcile_interval.duration()),
                None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match word {
                Ok(TargetNotice::Changed(wanted)) => self.renew(*wanted),
                Err(RecvTimeoutError::Timeout) => self.look(),
                Ok(TargetNotice::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
            self.report();
        }
        self.end();
    }

    fn report(&self) {
        let ports = self.wanted.port.iter();
        let states = ports.flat_map(|port| {
            port.ana.iter().map(|ana| (port.id, ana.group.into(), ana.state.name().to_owned()))
        });
        let problem = Some(self.last.clone()).filter(|problem| !problem.is_empty());
        let report = TargetReport { problem, ana_states: states.collect() };
        self.extras.set_target(self.held.is_some().then_some(report));
    }

    /// Brings up the configured target, in one change from the present one; returns its state.
    fn bring(&mut self, wanted: &config::TargetConfig) -> Result<Vec<String>, Failure> {
        let earlier = self.held.take();
        let was_held = earlier.is_some();
        let mut held = match earlier {
            Some(held) => held,
            None => LockedTarget { target: locked(wanted)?, claims: Claims::default() },
        };
        let result = held.target.bring(&wanted.wish(), &self.root, &mut held.claims);
        let notes = held.claims.notes.clone();
        let is_kept = if result.is_ok() { !wanted.wish().is_empty() } else { was_held };
        self.held = is_kept.then_some(held);
        let Applied { plan, .. } = result?;
        let outcomes = plan.outcomes.iter().map(show::outcome);
        Ok(outcomes.chain(plan.notes).chain(notes).collect())
    }

    /// How it is kept up changes in any case, what is exported where that can be.
    fn renew(&mut self, wanted: config::TargetConfig) {
        (self.wanted.reconcile_interval, self.wanted.on_shutdown) =
            (wanted.reconcile_interval, wanted.on_shutdown);
        if wanted.wish() == self.wanted.wish() {
            return;
        }
        match self.bring(&wanted) {
            Ok(lines) => {
                tracing::info!("SIGHUP: the target matches [target] now");
                lines.iter().for_each(|line| tracing::info!("target: {line}"));
                self.wanted = wanted;
                self.last.clear();
            }
            Err(failure) => {
                let why = failure.log_text();
                tracing::error!("SIGHUP: the target in force stays: {why}");
            }
        }
    }

    fn look(&mut self) {
        let Some(held) = &mut self.held else { return };
        match held.repair(&self.wanted, &self.root) {
            Ok(0) => self.last.clear(),
            Ok(steps) => tracing::warn!(steps, "the target was not as planned, and is again"),
            Err(error) => {
                held.claims.forget_missing();
                let words = format!("{error}; {}", error.remedy());
                if words != self.last {
                    tracing::error!("the target is not as planned: {words}");
                }
                self.last = words;
            }
        }
    }

    fn end(self) {
        let Some(mut held) = self.held.filter(|_| self.wanted.on_shutdown == OnShutdown::Teardown)
        else {
            return;
        };
        match held.target.undo() {
            Ok(steps) => tracing::info!(steps = steps.len(), "the target is taken down"),
            Err(error) => tracing::error!("the target stays: {error}; {}", error.remedy()),
        }
    }
}

impl LockedTarget {
    fn repair(&mut self, wanted: &config::TargetConfig, root: &Root) -> Result<usize, TargetError> {
        let wish = wanted.wish();
        let (_, steps) = self.target.plan(&wish, root)?;
        if steps.is_empty() {
            return Ok(0);
        }
        for step in &steps {
            tracing::info!("target: {step}");
        }
        let applied = self.target.bring(&wish, root, &mut self.claims)?;
        Ok(applied.steps.len())
    }
}
