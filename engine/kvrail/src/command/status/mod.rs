//! `kvrail status`.

mod cells;
mod columns;
mod text;

use std::io::{IsTerminal, stdout};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use kvrail_client::{AttachOptions, Client, ClientError};
use kvrail_protocol::StatusReport;

pub(crate) use cells::{age, bytes, client_pid, count, cpu, duration, short};
pub(crate) use columns::{CALLS, Column, SHARDS, StatusDetail};
#[cfg(test)]
pub(crate) use text::tests::report;
pub(crate) use text::{doubts, gpus, missing, notes, reasons, rows, stalls, troubles};

use super::silent::explain;
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, print_json, print_text, say};
use text::{Area, head, screen, verbose};

const EXAMPLES: &str = "\
Examples:
  kvrail status
  kvrail status --verbose                    why each mode was chosen, every counter
  kvrail status --watch                      again every two seconds, until Ctrl-C
  kvrail status --quiet >/dev/null || page-somebody
  kvrail status --socket /tmp/kvrail.sock --format json

Exit status: 0 all is well; 9 degraded (a poller is stalled, a device gone or silent, a member of a
store missing or out of service, a GPU failed, the target not as planned, the configuration on the
disk or a reload refused, the metrics endpoint without its address, or a drain): standard error has
the cause; 4 no sidecar answers.";

/// Longest wait for a report, which answers within milliseconds.
const PATIENCE: Duration = Duration::from_secs(1);

/// Clears a terminal and begins at its top.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// A screen of which nothing is known.
const AREA: Area = (80, 24);

/// Arguments of `kvrail status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,

    /// Show every counter, every session, and why each mode was chosen
    #[arg(short, long)]
    verbose: bool,

    /// Show it again at this interval in seconds, 1 to 3600, through restarts of the sidecar
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    watch: Option<u64>,
}

/// Which sidecar.
#[derive(Debug, Args)]
pub(crate) struct SidecarArgs {
    /// The sidecar's socket [default: sidecar.socket of the configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// A sidecar that is looked at: attached when it is first asked, and again after a failure.
#[derive(Debug)]
pub(crate) struct Looker {
    socket: PathBuf,
    patience: Duration,
    client: Option<Client>,
}

impl SidecarArgs {
    /// The socket that was named.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The sidecar that is meant.
    pub(crate) fn looker(&self, context: &Context) -> Looker {
        let socket = self.socket.clone().unwrap_or_else(|| context.socket());
        Looker { socket, patience: PATIENCE, client: None }
    }
}

impl Looker {
    /// The longest wait for an answer. A connection keeps the wait that it was made with, so the
    /// next request makes another one.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        Self { socket: self.socket, patience, client: None }
    }

    /// The sidecar's status now. Reading it opens no session.
    ///
    /// # Errors
    /// `Failure` with status 4 when no sidecar answers.
    pub(crate) fn report(&mut self) -> Result<StatusReport, Failure> {
        self.ask(|client| {
            let mut report = client.status()?;
            let own = client.session().0;
            report.sessions.retain(|session| session.id != own);
            Ok(report)
        })
    }

    /// Sends the sidecar a request.
    ///
    /// # Errors
    /// `Failure` with status 4 when no sidecar answers, or with the sidecar's error.
    pub(crate) fn ask<T>(
        &mut self,
        ask: impl FnOnce(&Client) -> Result<T, ClientError>,
    ) -> Result<T, Failure> {
        let asked = self.client().and_then(ask);
        if asked.is_err() {
            self.client = None;
        }
        asked.map_err(|error| explain(&error, &self.socket))
    }

    fn client(&mut self) -> Result<&Client, ClientError> {
        if self.client.is_none() {
            let options = AttachOptions { timeout: self.patience, ..AttachOptions::default() };
            self.client = Some(Client::attach_with(&self.socket, &options)?);
        }
        Ok(self.client.as_ref().expect("just attached"))
    }
}

/// Shows what a running sidecar is doing.
///
/// # Errors
/// `Failure` with status 4 when no sidecar answers, with 9 when not all is well.
pub(crate) fn run(args: &StatusArgs, context: &Context) -> Result<(), Failure> {
    let detail = if args.verbose { StatusDetail::Verbose } else { StatusDetail::Screen };
    let mut looker = args.sidecar.looker(context);
    if let Some(seconds) = args.watch {
        return watch(&mut looker, Duration::from_secs(seconds), detail, context.format);
    }
    let report = looker.report()?;
    show(&report, detail, context.format)?;
    if report.troubles.is_empty() {
        return Ok(());
    }
    let words: Vec<_> = report.troubles.iter().map(|trouble| trouble.words.as_str()).collect();
    Err(Failure::new(Exit::Degraded, format!("degraded: {}", words.join("; "))))
}

/// Shows it repeatedly, until a signal or the reader ends it.
fn watch(
    looker: &mut Looker,
    every: Duration,
    detail: StatusDetail,
    format: Format,
) -> Result<(), Failure> {
    let clears = stdout().is_terminal() && format == Format::Human;
    loop {
        if clears {
            print_text(CLEAR)?;
        }
        match looker.report() {
            // The head would scroll away: state, uptime, troubles.
            Ok(report) if clears => print_text(&head(&text(&report, detail), area()))?,
            Ok(report) => show(&report, detail, format)?,
            Err(failure) => say(&failure.text(format)),
        }
        thread::sleep(every);
    }
}

fn show(report: &StatusReport, detail: StatusDetail, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => print_json(report),
        Format::Human => print_text(&text(report, detail)),
    }
}

fn text(report: &StatusReport, detail: StatusDetail) -> String {
    match detail {
        StatusDetail::Verbose => verbose(report),
        StatusDetail::Screen => screen(report, area()),
    }
}

/// The size of the terminal, less a line for the next input.
fn area() -> Area {
    let size = rustix::termios::tcgetwinsize(stdout()).ok();
    let known = size.filter(|size| size.ws_col > 0 && size.ws_row > 1);
    let (columns, lines) = known.map_or(AREA, |size| (size.ws_col.into(), size.ws_row.into()));
    (columns, lines - 1)
}
