//! `kvrail serve`.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use kvrail_session::StoppedHow;
use sd_notify::NotifyState;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::reload::Handle;

use crate::config::{Config, LogFormat};
use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::output::{Format, print_json};
use crate::serve::{EarlyStop, Parent, Reload, SetLog, Sidecar, await_drives, confine, temporary};

const EXAMPLES: &str = "\
Examples:
  kvrail serve --config /etc/kvrail/kvrail.toml
  kvrail serve --set 'volume=[{name=\"kv0\", members=[\"/data/kv0.img\"]}]' \\
               --set sidecar.socket=/tmp/kvrail.sock

SIGTERM or SIGINT drains: what was accepted is finished, new requests are answered DRAINING.
A second signal stops at once; within half a second it is taken for the first. SIGHUP and
`kvrail reload` read the configuration again: what may be attached, limits, pages, the drain
timeout, the log and the target change at once, the log names keys that need a restart. A [target]
that was emptied is taken down; a change that cannot be made leaves what is.

While the host boots (sidecar.wait_for_drives), members that are not there are waited for.

With --format json a sidecar that is ready prints one document, that of `kvrail status`.";

/// Lines of the log that may wait to be written.
const LOG_LINES: usize = 8192;

/// Arguments of `kvrail serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Stop (as by SIGTERM) when the process that started this one ends, or its thread that did
    #[arg(long)]
    exit_with_parent: bool,
    /// Remove this temporary folder at the end if that process could not, because it was killed;
    /// its name begins with kvrail-
    #[arg(long, value_name = "FOLDER", requires = "exit_with_parent", value_parser = temporary)]
    remove: Vec<PathBuf>,
}

/// Runs the sidecar until a signal ends it.
///
/// # Errors
/// `Failure` with cause and remedy when it cannot start, or when requests were left at the end.
pub(crate) fn run(args: ServeArgs, context: &Context) -> Result<(), Failure> {
    let parent = if args.exit_with_parent { Some(Parent::watch()?) } else { None };
    let outcome = serve(parent, &args.remove, context);
    if let Some(parent) = parent {
        parent.clean_up(&args.remove);
    }
    outcome
}

fn serve(parent: Option<Parent>, remove: &[PathBuf], context: &Context) -> Result<(), Failure> {
    let loaded = context.config()?;
    let stop = EarlyStop::register(parent)?;
    await_drives(&loaded.config, context, &stop);
    if stop.is_asked() {
        context.note("stopped before it served");
        return Ok(());
    }
    let entered = confine(&loaded.config, context.config_file(), remove)?;
    let (set_log, lost_lines, _log) = log_to_stderr(&loaded.config)?;
    let reload = Reload::new(loaded.config.clone(), context.clone(), set_log);
    let sidecar = Sidecar::start(&loaded.config, reload, lost_lines, entered, &stop)?;
    parent.map_or(Ok(()), Parent::catch_up)?;
    match context.format {
        Format::Human => context.note(sidecar.report.trim_end()),
        Format::Json => print_json(&sidecar.status())?,
    }
    // A supervisor that is not there is told nothing.
    let _told = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
    let stopped = sidecar.run()?;
    if stopped.how == StoppedHow::Drained && stopped.pollers_left == 0 {
        context.note("drained and stopped");
        return Ok(());
    }
    let what = format!(
        "stopped with work left ({:?}): {} pollers, {} sessions",
        stopped.how, stopped.pollers_left, stopped.sessions_left
    );
    Err(Failure::new(Exit::Failed, what)
        .with_remedy("a device does not answer: see the log; raise sidecar.drain_timeout"))
}

/// Logs as configured, on a thread of its own: where nobody takes the lines, some are lost, and no
/// client waits for them. The answer changes what is logged later; its other half writes what is
/// left when it is dropped.
fn log_to_stderr(config: &Config) -> Result<(SetLog, ErrorCounter, WorkerGuard), Failure> {
    let filter = filter(&config.sidecar.log)?;
    let queue = NonBlockingBuilder::default().buffered_lines_limit(LOG_LINES).lossy(true);
    let (writer, guard) = queue.thread_name("kvrail-log").finish(standard_error()?);
    let lost = writer.error_counter();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    // Colours are for people; a file or a journal keeps plain words.
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    let set_log = match config.sidecar.log_format {
        LogFormat::Text => {
            let lines = lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            set_log(handle)
        }
        LogFormat::Json => {
            let lines = lines.json().with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            set_log(handle)
        }
    };
    Ok((set_log, lost, guard))
}

/// Standard error without its lock: who waits for a reader keeps nobody else from trying.
fn standard_error() -> Result<File, Failure> {
    let copy = std::io::stderr().as_fd().try_clone_to_owned();
    let failed = |error| Failure::new(Exit::Failed, format!("standard error: {error}"));
    copy.map(File::from).map_err(failed)
}

fn set_log<S: 'static>(handle: Handle<EnvFilter, S>) -> SetLog {
    Box::new(move |log| {
        let failed = |error| Failure::new(Exit::Failed, format!("sidecar.log = {log:?}: {error}"));
        handle.reload(filter(log)?).map_err(failed)
    })
}

fn filter(log: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(log).map_err(|error| {
        Failure::new(Exit::Usage, format!("sidecar.log = {log:?}: {error}"))
            .with_remedy("write error, warn, info, debug, trace or target=level,...")
    })
}
