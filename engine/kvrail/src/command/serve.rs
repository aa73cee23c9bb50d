//! `kvrail serve`.

use clap::Args;

use crate::context::Context;
use crate::failure::{Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  kvrail serve --config /etc/kvrail/kvrail.toml";

/// Arguments of `kvrail serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {}

/// Runs the sidecar until a signal ends it.
///
/// # Errors
/// Always: it is not built into this binary yet.
pub(crate) fn run(_: ServeArgs, _: &Context) -> Result<(), Failure> {
    Err(Failure::new(Exit::Failed, "serve is not built into this binary yet"))
}
