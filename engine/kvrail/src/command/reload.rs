//! `kvrail reload`.

use std::time::Duration;

use clap::Args;
use kvrail_protocol::Reloaded;

use super::status::SidecarArgs;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail reload
  kvrail reload --socket /tmp/kvrail.sock
  kvrail reload --format json | jq .restart

The sidecar reads its own file, environment and --set again. Keys that can change while it
serves do; keys that need a restart are named. A configuration that a start would refuse is refused,
the one in force stays, and the exit status is 1. Only root and the sidecar's own user may reload.";

/// Longest wait for the answer: new pages are tried, which may take a moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments of `kvrail reload`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    sidecar: SidecarArgs,
}

/// Has a sidecar read its configuration again.
///
/// # Errors
/// `Failure` with status 4 when no sidecar answers, with 1 when the configuration in force stays.
pub(crate) fn run(args: &ReloadArgs, context: &Context) -> Result<(), Failure> {
    let mut looker = args.sidecar.looker(context).with_patience(PATIENCE);
    let reloaded = looker.ask(kvrail_client::Client::reload)?;
    match context.format {
        Format::Json => print_json(&reloaded),
        Format::Human => print_text(&words(&reloaded)),
    }
}

fn words(reloaded: &Reloaded) -> String {
    let line = |what: &str, keys: &[String]| {
        (!keys.is_empty()).then(|| format!("{what}: {}", keys.join(", ")))
    };
    let lines = [
        line("in force from now on", &reloaded.now),
        line("in force after a restart only", &reloaded.restart),
    ];
    let lines: Vec<_> = lines.into_iter().flatten().collect();
    if lines.is_empty() { "nothing has changed".to_owned() } else { lines.join("\n") }
}
