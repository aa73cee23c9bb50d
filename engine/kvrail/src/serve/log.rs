//! The log of a sidecar, on a thread of its own: a slow reader loses lines, and no client waits for
//! them. The journal gets priorities, and no second time stamp.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::{panic, thread};

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
enum LineFormat {
    Text(Format),
    /// The journal has the time.
    Journal(Format<Full, ()>),
    Json(Format<Json>),
    JournalJson(Format<Json>),
}

impl LineFormat {
    fn new(wanted: LogFormat) -> Self {
        match (wanted, is_journal()) {
            (LogFormat::Text, false) => Self::Text(format()),
            (LogFormat::Text, true) => Self::Journal(format().without_time()),
            (LogFormat::Json, false) => Self::Json(format().json()),
            (LogFormat::Json, true) => Self::JournalJson(format().json()),
        }
    }
}

impl<S, N> FormatEvent<S, N> for LineFormat
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
    let lines =
        lines.event_format(LineFormat::new(config.sidecar.log_format)).with_filter_reloading();
    let handle = lines.reload_handle();
    lines.init();
    log_panics();
    let set_log: SetLog = Box::new(move |log| {
        let failed = |error| Failure::new(Exit::Failed, format!("sidecar.log = {log:?}: {error}"));
        handle.reload(filter(log)?).map_err(failed)
    });
    Ok((set_log, lost, guard))
}

/// A panic is an event like others: one line for a collector, and an error for the journal.
fn log_panics() {
    panic::set_hook(Box::new(|info| {
        let thread = thread::current();
        let name = thread.name().unwrap_or("unnamed").to_owned();
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => tracing::error!(thread = name, "{info}\n{backtrace}"),
            _ => tracing::error!(thread = name, "{info}"),
        }
    }));
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

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::panic;
    use std::sync::{Arc, Mutex};

    use serde_json::Value;
    use tracing_subscriber::fmt::{MakeWriter, format};

    use super::{LineFormat, log_panics};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Kept {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn a_panic_is_one_line_for_a_collector_and_an_error_for_the_journal() {
        let said = |lines: LineFormat| {
            let kept = Kept::default();
            let log = tracing_subscriber::fmt().with_ansi(false).with_writer(kept.clone());
            tracing::subscriber::with_default(log.event_format(lines).finish(), || {
                let before = panic::take_hook();
                log_panics();
                let caught = panic::catch_unwind(|| panic!("one\ntwo"));
                panic::set_hook(before);
                assert!(caught.is_err());
            });
            let bytes = kept.0.lock().unwrap().clone();
            String::from_utf8(bytes).unwrap()
        };
        let json = said(LineFormat::Json(format().json()));
        let line: Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{json}"));
        assert_eq!((json.lines().count(), &line["level"]), (1, &"ERROR".into()));
        let message = line["fields"]["message"].as_str().unwrap();
        assert!(message.contains("one\ntwo") && message.contains("log.rs"), "{message}");
        let journal = said(LineFormat::Journal(format().without_time()));
        assert!(journal.lines().count() >= 2, "{journal}");
        assert!(journal.lines().all(|line| line.starts_with("<3>")), "{journal}");
    }
}
