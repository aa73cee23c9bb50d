//! SIGHUP: the configuration is read again; what can change while serving does.

use kvrail_session::ServerHandle;

use super::memory;
use super::policy::policy;
use super::sandbox;
use super::target::Door;
use crate::config::Config;
use crate::context::Context;
use crate::failure::Failure;

/// Sets what is logged from now on.
pub(crate) type SetLog = Box<dyn Fn(&str) -> Result<(), Failure> + Send>;

/// Reads the configuration again, from where it came from at start.
pub(crate) struct Reload {
    in_force: Config,
    context: Context,
    set_log: SetLog,
    target: Reach,
}

/// Whether this process can get to the kernel's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Open,
    /// Its sandbox was made without one.
    Closed,
}

impl Reload {
    pub(crate) fn new(in_force: Config, context: Context, set_log: SetLog) -> Self {
        let is_open = sandbox::reaches_target(&in_force);
        let target = if is_open { Reach::Open } else { Reach::Closed };
        Self { in_force, context, set_log, target }
    }

    /// Reads and applies; a configuration with an error changes nothing.
    pub(super) fn run(&mut self, handle: &ServerHandle, target: &Door) {
        if let Err(failure) = self.apply(handle, target) {
            let why = failure.log_text();
            tracing::error!("SIGHUP: the configuration in force stays: {why}");
        }
    }

    fn apply(&mut self, handle: &ServerHandle, target: &Door) -> Result<(), Failure> {
        let new = self.context.config()?.config;
        let mut renewed = self.in_force.apply_reload(&new);
        if self.target == Reach::Closed {
            renewed.target = self.in_force.target.clone();
        }
        let (now, later) = (self.in_force.differing_keys(&renewed), renewed.differing_keys(&new));
        // The target's own thread takes these over, or says why not; it is asked each time.
        let exported = |key: &String| {
            ["target.host", "target.subsystem", "target.port"].iter().any(|it| key.starts_with(it))
        };
        let (exported, now): (Vec<_>, Vec<_>) = now.into_iter().partition(exported);
        if now.iter().any(|key| key == "memory.pages") {
            memory::probe(&renewed)?;
        }
        (self.set_log)(&renewed.sidecar.log)?;
        if exported.is_empty() && now.is_empty() && later.is_empty() {
            tracing::info!("SIGHUP: nothing has changed");
        }
        if !now.is_empty() {
            tracing::info!("SIGHUP: in force from now on: {}", now.join(", "));
            handle.renew(policy(&renewed));
        }
        if !later.is_empty() {
            tracing::warn!("SIGHUP: in force after a restart only: {}", later.join(", "));
        }
        target.renew(&renewed.target);
        self.in_force = renewed;
        Ok(())
    }
}
