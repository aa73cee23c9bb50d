//! The log of a sidecar, on a thread of its own: a slow reader loses lines, and no client waits for
//! them. The journal gets priorities, and no second time stamp.

use std::fmt;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Full, Json, Writer};
use tracing_subscriber::fmt::{FmtContext, format};
use tracing_subscriber::registry::LookupSpan;

use super::SetLog;
use super::log_queue::{LogGuard, LogQueue, LostLines};
use kvrail_cli::config::{Config, LogFormat};
use kvrail_cli::failure::{Exit, Failure, no_thread};
use kvrail_cli::output::is_journal;

/// Lines of the log that may wait to be written.
const LOG_LINES: usize = 8192;

/// How a line is written.
enum Lines {
    Text(Format),
    /// The journal has the time.
    Journal(Format<Full, ()>),
    Json(Format<Json>),
    JournalJson(Format<Json>),
}

impl Lines {
    fn new(wanted: LogFormat) -> Self {
        match (wanted, is_journal()) {
            (LogFormat::Text, false) => Self::Text(format()),
            (LogFormat::Text, true) => Self::Journal(format().without_time()),
            (LogFormat::Json, false) => Self::Json(format().json()),
            (LogFormat::Json, true) => Self::JournalJson(format().json()),
        }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        let held = Writer::new(&mut line);
        match self {
            Self::Text(format) => return format.format_event(context, to, event),
            Self::Json(format) => return format.format_event(context, to, event),
            Self::Journal(format) => format.format_event(context, held, event)?,
            Self::JournalJson(format) => format.format_event(context, held, event)?,
        }
        let priority = priority(*event.metadata().level());
        line.lines().try_for_each(|line| writeln!(to, "<{priority}>{line}"))
    }
}

/// As syslog has them (sd-daemon(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// Logs as configured. The answer changes what is logged later; its last part writes what is left
/// when it is dropped.
///
/// # Errors
/// `Failure` for a filter that is none, or a thread that cannot be started.
pub(crate) fn log_to_stderr(config: &Config) -> Result<(SetLog, LostLines, LogGuard), Failure> {
    let first = filter(&config.sidecar.log)?;
    let started = LogQueue::start(LOG_LINES, standard_error()?);
    let (queue, guard) = started.map_err(|error| no_thread("the log's", &error))?;
    let lost = queue.lost();
    let lines = tracing_subscriber::fmt().with_env_filter(first).with_writer(queue);
    // Colours are for people; a file or a journal keeps plain words.
    let lines = lines.with_ansi(std::io::stderr().is_terminal());
    let lines = lines.event_format(Lines::new(config.sidecar.log_format)).with_filter_reloading();
    let handle = lines.reload_handle();
    lines.init();
    let set_log: SetLog = Box::new(move |log| {
        let failed = |error| Failure::new(Exit::Failed, format!("sidecar.log = {log:?}: {error}"));
        handle.reload(filter(log)?).map_err(failed)
    });
    Ok((set_log, lost, guard))
}

/// Standard error without its lock: a thread that waits for a reader blocks no other thread.
fn standard_error() -> Result<File, Failure> {
    let copy = std::io::stderr().as_fd().try_clone_to_owned();
    let failed = |error| Failure::new(Exit::Failed, format!("standard error: {error}"));
    copy.map(File::from).map_err(failed)
}

fn filter(log: &str) -> Result<EnvFilter, Failure> {
    EnvFilter::try_new(log).map_err(|error| {
        Failure::new(Exit::Usage, format!("sidecar.log = {log:?}: {error}"))
            .with_remedy("write error, warn, info, debug, trace or target=level,...")
    })
}
