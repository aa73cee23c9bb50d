//! The target while the sidecar runs: brought up at start, looked at now and then, repaired where
//! others changed what kvrail made, taken down at stop where the configuration says so.
//!
//! On a thread of its own: the kernel may take its time over a step.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};

use kvrail_memory::Root;
use kvrail_target::{Claims, FileStore, Kernel, Target, TargetError, Wish};

use crate::command::target::{locked, seen, show};
use crate::config::{AtStop, Config};
use crate::failure::{Exit, Failure};

/// The target of a running sidecar; dropping it stops the watch.
#[derive(Debug)]
pub(super) struct Export {
    stop: Option<Sender<()>>,
    watch: Option<JoinHandle<()>>,
    /// What was brought up, a line each.
    pub(super) report: Vec<String>,
}

impl Export {
    /// Brings up what the configuration wishes for; without a wish nothing is done.
    ///
    /// # Errors
    /// `Failure` with cause and remedy; the tree is as it was.
    pub(super) fn start(config: &Config) -> Result<Self, Failure> {
        let wish = config.target.wish();
        if wish.is_empty() {
            return Ok(Self { stop: None, watch: None, report: leftover(config) });
        }
        let mut target = locked(config)?;
        let root = Root::default();
        let mut claims = Claims::default();
        let applied = target.bring(&wish, &root, &mut claims)?;
        let mut report: Vec<String> = applied.plan.outcomes.iter().map(show::outcome).collect();
        report.extend(applied.plan.notes.iter().chain(&claims.notes).cloned());
        let (stop, stopped) = channel();
        let at_stop = config.target.at_stop;
        let every = config.target.watch.duration();
        let mut keeper = Keeper { target, wish, root, claims, last: String::new() };
        let life = move || {
            while next(&stopped, every) {
                keeper.look();
            }
            keeper.end(at_stop);
        };
        let watch = thread::Builder::new().name("kvrail-target".into()).spawn(life);
        let watch = watch.map_err(|error| {
            Failure::new(Exit::Failed, format!("the target's thread cannot start: {error}"))
        })?;
        Ok(Self { stop: Some(stop), watch: Some(watch), report })
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(watch) = self.watch.take() {
            // A panic there has been printed.
            let _ended = watch.join();
        }
    }
}

/// What an earlier configuration exported is not taken down unasked: hosts may be at it.
fn leftover(config: &Config) -> Vec<String> {
    let count = seen(config, None).map_or(0, |target| target.owned().len());
    if count == 0 {
        return Vec::new();
    }
    vec![format!(
        "{count} object(s) of an earlier [target] are there; `kvrail target undo` removes"
    )]
}

/// Waits for the next look; false when the sidecar stops.
fn next(stopped: &Receiver<()>, every: std::time::Duration) -> bool {
    matches!(stopped.recv_timeout(every), Err(RecvTimeoutError::Timeout))
}

struct Keeper {
    target: Target<Kernel, FileStore>,
    wish: Wish,
    root: Root,
    claims: Claims,
    /// What was said last: the same is said once.
    last: String,
}

impl Keeper {
    fn look(&mut self) {
        match self.repair() {
            Ok(0) => self.last.clear(),
            Ok(steps) => tracing::warn!(steps, "the target was not as planned, and is again"),
            Err(error) => {
                self.claims.forget_missing();
                let words = format!("{error}; {}", error.remedy());
                if words != self.last {
                    tracing::error!("the target is not as planned: {words}");
                }
                self.last = words;
            }
        }
    }

    fn repair(&mut self) -> Result<usize, TargetError> {
        let (_, steps) = self.target.plan(&self.wish, &self.root)?;
        if steps.is_empty() {
            return Ok(0);
        }
        for step in &steps {
            tracing::info!("target: {step}");
        }
        let applied = self.target.bring(&self.wish, &self.root, &mut self.claims)?;
        Ok(applied.steps.len())
    }

    fn end(mut self, at_stop: AtStop) {
        if at_stop == AtStop::Keep {
            return;
        }
        match self.target.undo() {
            Ok(steps) => tracing::info!(steps = steps.len(), "the target is taken down"),
            Err(error) => tracing::error!("the target stays: {error}; {}", error.remedy()),
        }
    }
}
