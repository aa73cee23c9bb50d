//! How a command fails: words, remedy, and an exit status that scripts can rely on.

use std::process::ExitCode;

use kvrail_client::ClientError;
use kvrail_memory::{descriptor_remedy, thread_remedy};
use kvrail_nvme::SelectorError;
use kvrail_target::TargetError;
use kvrail_volume::{ErrorClass, VolumeError};
use rustix::io::Errno;
use serde::Serialize;
use thiserror::Error;

use crate::config::ConfigError;
use crate::format::Format;

/// The exit statuses, as `kvrail --help` shows them. The numbers are a promise.
pub const EXIT_HELP: &str = "\
Exit status:
    0  done
    1  the operation failed
    2  wrong usage or configuration
    3  refused: in use, foreign, damaged or incomplete
    4  the sidecar cannot be reached
    5  data came back wrong
    6  kvrail check: warnings, no failure
    7  kvrail check: failures
    8  kvrail target status: not as planned
    9  kvrail status: degraded
  130  interrupted";

/// Why a command ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// The operation failed.
    Failed,
    /// Wrong usage or configuration.
    Usage,
    /// Going on would hurt somebody.
    Refused,
    /// The sidecar cannot be reached.
    Unreachable,
    /// Verification found wrong bytes.
    WrongData,
    /// The host meets all requirements, but something on it costs speed.
    Warnings,
    /// The host does not meet a requirement.
    Unfit,
    /// The present state differs from the plan.
    Differs,
    /// Something of the sidecar is out of service.
    Degraded,
    /// A signal ended it.
    Interrupted,
}

impl Exit {
    /// The process's exit status.
    pub const fn status(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Unreachable => 4,
            Self::WrongData => 5,
            Self::Warnings => 6,
            Self::Unfit => 7,
            Self::Differs => 8,
            Self::Degraded => 9,
            // The status that shells report for SIGINT.
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.status().into()
    }
}

/// A failed command.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct Failure {
    exit: Exit,
    message: String,
    remedy: Option<String>,
    closed_pipe: Pipe,
    /// How it is shown, whatever the format of the output.
    shown_as: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipe {
    Open,
    Closed,
}

#[derive(Serialize)]
struct Json<'a> {
    error: JsonError<'a>,
}

#[derive(Serialize)]
struct JsonError<'a> {
    kind: Exit,
    status: u8,
    message: &'a str,
    remedy: Option<&'a str>,
}

impl Failure {
    /// A failure without a remedy yet.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            remedy: None,
            closed_pipe: Pipe::Open,
            shown_as: None,
        }
    }

    /// Adds what to do about it.
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into()).filter(|remedy| !remedy.is_empty());
        self
    }

    /// A failed write to standard output.
    pub fn output(error: &std::io::Error) -> Self {
        let closed = error.kind() == std::io::ErrorKind::BrokenPipe;
        let failure = Self::new(Exit::Failed, format!("writing the output: {error}"));
        Self { closed_pipe: if closed { Pipe::Closed } else { Pipe::Open }, ..failure }
    }

    /// Shown so, whatever the format of the output.
    pub fn shown_as(self, format: Format) -> Self {
        Self { shown_as: Some(format), ..self }
    }

    /// The status that the process ends with.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Whether the reader of the output went away, which is no failure.
    pub fn is_closed_pipe(&self) -> bool {
        self.closed_pipe == Pipe::Closed
    }

    /// The text for standard error.
    pub fn text(&self, format: Format) -> String {
        match self.shown_as.unwrap_or(format) {
            Format::Human => {
                let remedy = self.remedy.as_ref().map(|remedy| format!("\n  remedy: {remedy}"));
                let word = if self.exit == Exit::Warnings { "" } else { "error: " };
                format!("kvrail: {word}{}{}", self.message, remedy.unwrap_or_default())
            }
            Format::Json => self.json(),
        }
    }

    /// The error and its remedy, for a log.
    pub fn log_text(&self) -> String {
        let remedy = self.remedy.as_ref().map(|remedy| format!("; remedy: {remedy}"));
        format!("{}{}", self.message, remedy.unwrap_or_default())
    }

    /// The same in one line: without the text that a parser quotes.
    pub fn line(&self) -> String {
        let quoted = |line: &&str| {
            let line = line.trim_start().trim_start_matches(|it: char| it.is_ascii_digit());
            line.trim_start().starts_with('|')
        };
        let text = self.log_text();
        let lines = text.lines().filter(|line| !quoted(line)).map(str::trim);
        lines.collect::<Vec<_>>().join("; ")
    }

    fn json(&self) -> String {
        let error = JsonError {
            kind: self.exit,
            status: self.exit.status(),
            message: &self.message,
            remedy: self.remedy.as_deref(),
        };
        serde_json::to_string(&Json { error }).expect("strings and numbers are always JSON")
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        let exit = match error.reason.class() {
            ErrorClass::Usage => Exit::Usage,
            ErrorClass::Refused => Exit::Refused,
            ErrorClass::Failed => Exit::Failed,
            ErrorClass::Interrupted => Exit::Interrupted,
        };
        let message = format!("{}: {}", error.subject, error.reason);
        Self::new(exit, message).with_remedy(error.reason.remedy())
    }
}

impl From<TargetError> for Failure {
    fn from(error: TargetError) -> Self {
        let exit = match error.class() {
            kvrail_target::ErrorClass::Usage => Exit::Usage,
            kvrail_target::ErrorClass::Refused => Exit::Refused,
            kvrail_target::ErrorClass::Failed => Exit::Failed,
        };
        Self::new(exit, format!("target: {error}")).with_remedy(error.remedy())
    }
}

impl From<SelectorError> for Failure {
    fn from(error: SelectorError) -> Self {
        let exit = match error.class() {
            kvrail_nvme::ErrorClass::Usage => Exit::Usage,
            kvrail_nvme::ErrorClass::Failed => Exit::Failed,
        };
        Self::new(exit, error.to_string())
    }
}

impl From<&ClientError> for Failure {
    fn from(error: &ClientError) -> Self {
        match error {
            ClientError::NoSidecar { socket, cause, remedy } => {
                let message = format!("no sidecar at {}: {cause}", socket.display());
                Self::new(Exit::Unreachable, message).with_remedy(*remedy)
            }
            ClientError::UnknownVolume { .. } => Self::new(Exit::Usage, error.to_string()),
            ClientError::NotAdmitted { .. }
            | ClientError::Timeout { .. }
            | ClientError::SidecarGone { .. } => Self::new(Exit::Unreachable, error.to_string()),
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Exit::Usage, error.to_string()).with_remedy(error.remedy())
    }
}

/// Prints the result of the argument parser: help and version to standard output, errors to
/// standard error in the requested format, as far as broken arguments show it.
pub fn report_usage(error: &clap::Error) -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let pair = |pair: &[std::ffi::OsString]| pair[0] == "--format" && pair[1] == "json";
    let json = arguments.iter().any(|argument| argument == "--format=json")
        || arguments.windows(2).any(pair);
    if error.use_stderr() && json {
        let text = error.to_string();
        let message = text.trim().trim_start_matches("error: ");
        let failure = Failure::new(Exit::Usage, message).with_remedy("see kvrail --help");
        eprintln!("{}", failure.text(Format::Json));
        return Exit::Usage.into();
    }
    if error.use_stderr() {
        let text = error.render().to_string();
        eprint!("kvrail: {text}");
        return Exit::Usage.into();
    }
    // Standard output may be closed: no reader is left.
    let _ = error.print();
    ExitCode::SUCCESS
}

/// A descriptor cannot be made.
pub fn exhausted(what: &str, errno: Errno) -> Failure {
    Failure::new(Exit::Failed, format!("{what} could not be made: {errno}"))
        .with_remedy(descriptor_remedy(errno))
}

/// A thread cannot be started.
pub fn no_thread(whose: &str, error: &std::io::Error) -> Failure {
    let remedy = Errno::from_io_error(error).map_or("", thread_remedy);
    Failure::new(Exit::Failed, format!("{whose} thread could not be started: {error}"))
        .with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::{EXIT_HELP, Exit, Failure};
    use crate::format::Format;

    #[test]
    fn the_help_names_every_status() {
        let all = [
            Exit::Failed,
            Exit::Usage,
            Exit::Refused,
            Exit::Unreachable,
            Exit::WrongData,
            Exit::Warnings,
            Exit::Unfit,
            Exit::Differs,
            Exit::Degraded,
            Exit::Interrupted,
        ];
        for exit in all {
            let line = format!("\n{:>5}  ", exit.status());
            assert!(EXIT_HELP.contains(&line), "{exit:?}");
        }
    }

    #[test]
    fn a_line_quotes_no_file() {
        let parser = "/k.toml: TOML parse error at line 12, column 1\n   |\n12 | a | b\n   | ^\n\
                      unknown field `a`";
        let line = Failure::new(Exit::Usage, parser).with_remedy("remove it").line();
        let right = "/k.toml: TOML parse error at line 12, column 1; unknown field `a`; remedy: \
                     remove it";
        assert_eq!(line, right);
    }

    #[test]
    fn failures_are_words_or_json() {
        let failure = Failure::new(Exit::Refused, "no").with_remedy("ask");
        assert_eq!(failure.text(Format::Human), "kvrail: error: no\n  remedy: ask");
        let warned = Failure::new(Exit::Warnings, "3 warnings, no failure");
        assert_eq!(warned.text(Format::Human), "kvrail: 3 warnings, no failure");
        let json: serde_json::Value = serde_json::from_str(&failure.text(Format::Json)).unwrap();
        assert_eq!(json["error"]["status"], 3);
        assert_eq!(json["error"]["kind"], "refused");
        assert_eq!(json["error"]["remedy"], "ask");
    }
}
