//! The configuration while it is served, on a thread of its own: read again when a signal or a
//! client asks for that, and looked at on the disk, so that a file which would not start is known
//! before the next start.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvrail_protocol::{ConfigEntry, ConfigReport, Reloaded};
use kvrail_session::{AUDIT, ReloadAsk, ServerHandle};
use serde_json::json;
use uuid::Uuid;

use super::policy::policy;
use super::report_extras::ReportExtras;
use super::target::TargetHandle;
use super::{check_host, memory, sandbox, volumes};
use kvrail_cli::config::{Config, Loaded, Origin};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Failure, no_thread};

/// How often the file is looked at; what has not changed since the look before is read.
const LOOK: Duration = Duration::from_secs(2);

/// Digits of a hash.
const HASH_DIGITS: usize = 16;

/// Sets what is logged from now on.
pub(crate) type SetLog = Box<dyn Fn(&str) -> Result<(), Failure> + Send>;

/// The configuration in force, and where it comes from.
pub(crate) struct Reload {
    in_force: Loaded,
    context: Context,
    set_log: SetLog,
    target: Reach,
    report: ConfigReport,
    /// The files that were read last, and those of the look before.
    read: Vec<Stamp>,
    seen: Vec<Stamp>,
}

/// Whether this process can get to the kernel's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Open,
    /// Its sandbox was made without one.
    Closed,
}

/// Which file it is, and in which state.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    inode: (u64, u64),
    bytes: u64,
    changed: (i64, i64),
}

/// Commands to the thread.
#[derive(Debug)]
enum ReloadCommand {
    /// SIGHUP came.
    Signal,
    /// A client asks.
    Client(ReloadAsk),
}

/// The way to the thread.
#[derive(Clone, Debug)]
pub(super) struct ReloadHandle(Sender<ReloadCommand>);

impl ReloadHandle {
    /// SIGHUP came.
    pub(super) fn signal(&self) {
        self.send(ReloadCommand::Signal);
    }

    /// A client asks, and is answered through the server's handle.
    pub(super) fn ask(&self, ask: ReloadAsk) {
        self.send(ReloadCommand::Client(ask));
    }

    fn send(&self, word: ReloadCommand) {
        // The thread lives as long as the process.
        let _told = self.0.send(word);
    }
}

/// The parts of the sidecar that take over a new configuration.
pub(super) struct Takers {
    pub(super) server: ServerHandle,
    pub(super) target: TargetHandle,
    pub(super) extras: ReportExtras,
}

impl Reload {
    pub(crate) fn new(in_force: Loaded, context: Context, set_log: SetLog) -> Self {
        let is_open = sandbox::reaches_target(&in_force.config);
        let target = if is_open { Reach::Open } else { Reach::Closed };
        let file = context.config_file().map(|path| path.display().to_string());
        let running = hash(&in_force.config);
        let on_disk = Some(running.clone());
        let since_unix_s = now_unix_s();
        let report = ConfigReport { file, running, on_disk, since_unix_s, ..Default::default() };
        let (read, seen) = (Vec::new(), Vec::new());
        let mut it = Self { in_force, context, set_log, target, report, read, seen };
        it.read = it.stamps();
        it.seen.clone_from(&it.read);
        it
    }

    /// Begins the thread, which lives as long as the process.
    pub(super) fn watch(self, takers: Takers) -> Result<ReloadHandle, Failure> {
        let (sender, inbox) = channel();
        takers.extras.set_config(self.report.clone());
        takers.extras.set_entries(entries(&self.in_force));
        let (file, hash) = (self.report.file.as_deref().unwrap_or("no file"), &self.report.running);
        let version = env!("CARGO_PKG_VERSION");
        tracing::info!(target: AUDIT, "start of {version} with configuration {hash} of {file}");
        let thread = thread::Builder::new().name("kvrail-config".into());
        let thread = thread.spawn(move || self.live(&inbox, &takers));
        thread.map_err(|error| no_thread("the configuration's", &error))?;
        Ok(ReloadHandle(sender))
    }

    fn live(mut self, inbox: &Receiver<ReloadCommand>, takers: &Takers) {
        loop {
            match inbox.recv_timeout(LOOK) {
                Ok(ReloadCommand::Signal) => {
                    let _logged = self.run("SIGHUP", takers);
                }
                Ok(ReloadCommand::Client(ask)) => {
                    let verdict = self.run(&format!("reload by {ask}"), takers);
                    takers.server.reloaded(&ask, verdict);
                }
                Err(RecvTimeoutError::Timeout) => self.look(&takers.extras),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Reads and applies; a configuration with an error changes nothing.
    fn run(&mut self, by: &str, takers: &Takers) -> Result<Reloaded, String> {
        self.read = self.stamps();
        let found = self.read_all();
        let verdict = match &found {
            Ok(new) => self.apply(by, new, takers).map_err(|failure| failure.line()),
            Err(why) => Err(why.clone()),
        };
        if let Err(why) = &verdict {
            tracing::error!(target: AUDIT, "{by}: the configuration in force stays: {why}");
        }
        self.report.reload_refused = verdict.as_ref().err().cloned();
        self.compare(found);
        takers.extras.set_config(self.report.clone());
        verdict
    }

    /// Reads a file that has changed, and takes over nothing.
    fn look(&mut self, extras: &ReportExtras) {
        let now = self.stamps();
        let before = std::mem::replace(&mut self.seen, now);
        // Somebody may be just writing it.
        if self.seen == self.read || self.seen != before {
            return;
        }
        self.read.clone_from(&self.seen);
        let found = self.read_all();
        match (&found, &self.report.refused) {
            (Err(why), before) if before.as_ref() != Some(why) => {
                tracing::error!("the configuration on the disk would not start: {why}");
            }
            (Ok(_), Some(_)) => tracing::info!("the configuration on the disk would start again"),
            _ => {}
        }
        self.compare(found);
        extras.set_config(self.report.clone());
    }

    /// The configuration of the next start, if it is not refused before it touches a device.
    fn read_all(&self) -> Result<Loaded, String> {
        let read = || {
            let new = self.context.config()?;
            check_host(&new.config)?;
            volumes::check_some(&new.config)?;
            Ok(new)
        };
        read().map_err(|failure: Failure| failure.line())
    }

    /// This file and what is in force.
    fn compare(&mut self, found: Result<Loaded, String>) {
        let (report, in_force) = (&mut self.report, &self.in_force.config);
        report.running = hash(in_force);
        report.on_disk = found.as_ref().ok().map(|new| hash(&new.config));
        report.refused = found.as_ref().err().cloned();
        let (mut reload, mut restart) = (Vec::new(), Vec::new());
        if let Ok(Loaded { config: new, .. }) = found {
            let renewed = renewed(in_force, &new, self.target);
            reload = in_force.differing_keys(&renewed);
            restart = renewed.differing_keys(&new);
        }
        (report.reload_pending, report.restart_pending) = (reload, restart);
    }

    fn apply(&mut self, by: &str, new: &Loaded, takers: &Takers) -> Result<Reloaded, Failure> {
        let in_force = &self.in_force.config;
        let renewed = renewed(in_force, &new.config, self.target);
        let now = in_force.differing_keys(&renewed);
        let restart = renewed.differing_keys(&new.config);
        // The target's own thread takes these over, or reports why not, at each reload.
        let exported = |key: &&String| {
            ["target.host", "target.subsystem", "target.port"]
                .iter()
                .any(|table| key.starts_with(table))
        };
        let own: Vec<_> = now.iter().filter(|key| !exported(key)).cloned().collect();
        if own.iter().any(|key| key == "memory.pages") {
            memory::probe(&renewed)?;
        }
        (self.set_log)(&renewed.sidecar.log)?;
        if now.is_empty() && restart.is_empty() {
            tracing::info!("{by}: nothing has changed");
        }
        if !own.is_empty() {
            tracing::info!("{by}: in force from now on: {}", own.join(", "));
            takers.server.renew(policy(&renewed));
        }
        if !restart.is_empty() {
            tracing::warn!("{by}: in force after a restart only: {}", restart.join(", "));
        }
        takers.target.renew(&renewed.target);
        if !now.is_empty() {
            self.report.since_unix_s = now_unix_s();
        }
        for change in in_force.changes(&renewed, &now) {
            tracing::info!(target: AUDIT, "{by}: {change}");
        }
        self.in_force = self.in_force.after_reload(new, renewed);
        takers.extras.set_entries(entries(&self.in_force));
        Ok(Reloaded { now, restart })
    }

    /// Of the file and its fragments, as far as they are there.
    fn stamps(&self) -> Vec<Stamp> {
        let stamp = |path: PathBuf| {
            let about = fs::metadata(&path).ok()?;
            let (inode, bytes) = ((about.dev(), about.ino()), about.size());
            Some(Stamp { path, inode, bytes, changed: (about.ctime(), about.ctime_nsec()) })
        };
        let file = self.context.config_file().map(Path::to_owned);
        file.into_iter().chain(self.context.fragments()).filter_map(stamp).collect()
    }
}

/// As they go over the socket, to a client that may have another working folder.
fn entries(loaded: &Loaded) -> Vec<ConfigEntry> {
    let whole = |origin| match origin {
        Origin::File { path, line } => {
            Origin::File { path: std::path::absolute(&path).unwrap_or(path), line }
        }
        other => other,
    };
    let entry = |(key, value, origin): (String, toml::Value, Origin)| ConfigEntry {
        key,
        value: json!(value),
        origin: json!(whole(origin)),
    };
    loaded.entries().into_iter().map(entry).collect()
}

/// The configuration after a reload.
fn renewed(in_force: &Config, new: &Config, target: Reach) -> Config {
    let mut renewed = in_force.apply_reload(new);
    if target == Reach::Closed {
        renewed.target = in_force.target.clone();
    }
    renewed
}

/// Of values, so that comments and the order of keys do not matter.
fn hash(config: &Config) -> String {
    let text = toml::to_string(config).expect("a configuration can be written as TOML");
    let mut digits = Uuid::new_v5(&Uuid::nil(), text.as_bytes()).simple().to_string();
    digits.truncate(HASH_DIGITS);
    digits
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
