//! `kvrail top`: what a sidecar does, live in a terminal.

mod frame;
mod terminal;
mod view;

use std::io::{IsTerminal, stdin, stdout};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use kvrail_protocol::StatusReport;

use super::status::{Looker, SidecarArgs};
use frame::{draw, sections};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, print_json, print_text};
use terminal::Terminal;
use view::{Happened, View};

const EXAMPLES: &str = "\
Examples:
  kvrail top
  kvrail top --interval 5
  kvrail top --once                     one frame, without a terminal
  kvrail top --once --format json       two reports, an interval apart

Keys: s next order, r reverse order, e all columns, w reasons and notes, arrows and Page keys move,
p pause, q quit.";

/// Arguments of `kvrail top`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,

    /// Seconds over which rates are taken, 1 to 60
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,

    /// Print one frame and end
    #[arg(long)]
    once: bool,
}

/// Shows what a sidecar does until `q`.
///
/// # Errors
/// `Failure` with status 4 when no sidecar answers at first, with 2 without a terminal.
pub(crate) fn run(args: &TopArgs, context: &Context) -> Result<(), Failure> {
    let every = Duration::from_secs(args.interval);
    let mut looker = args.sidecar.looker(context);
    if args.once {
        return once(&mut looker, every, context.format);
    }
    if !stdin().is_terminal() || !stdout().is_terminal() || context.format == Format::Json {
        let message = "top needs a terminal to draw on and to read keys from";
        return Err(Failure::new(Exit::Usage, message)
            .with_remedy("add --once for one frame, or use `kvrail status --watch`"));
    }
    let first = looker.report()?;
    let ended = Terminal::take().and_then(|terminal| live(&terminal, &mut looker, every, first));
    ended.map_err(|error| Failure::output(&error))
}

fn once(looker: &mut Looker, every: Duration, format: Format) -> Result<(), Failure> {
    let before = looker.report()?;
    thread::sleep(every);
    let now = looker.report()?;
    if format == Format::Json {
        return print_json(&[before, now]);
    }
    let happened = Happened::between(&before, &now);
    print_text(&(sections(&now, &happened, &View::default(), None) + "\n"))
}

/// Draws until a key ends it. A sidecar that goes away is waited for.
fn live(
    terminal: &Terminal,
    looker: &mut Looker,
    every: Duration,
    first: StatusReport,
) -> std::io::Result<()> {
    let mut happened = Happened::between(&first, &first);
    let (mut now, mut view, mut lost) = (first, View::default(), None);
    let mut next = Instant::now() + every;
    loop {
        let text = sections(&now, &happened, &view, lost.as_deref());
        terminal.show(&draw(&text, &view, terminal.size()?))?;
        let keys = terminal.keys(next.saturating_duration_since(Instant::now()))?;
        if !keys.is_empty() {
            if !keys.into_iter().all(|key| view.take(key)) {
                return Ok(());
            }
            continue;
        }
        next = Instant::now() + every;
        if view.is_paused() {
            continue;
        }
        match looker.report() {
            Ok(report) => {
                happened = Happened::between(&now, &report);
                (now, lost) = (report, None);
            }
            Err(failure) => lost = Some(failure.log_text()),
        }
    }
}
