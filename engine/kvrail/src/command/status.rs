//! `kvrail status`.

use clap::Args;

use crate::context::Context;
use crate::failure::{Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  kvrail status --format json";

/// Arguments of `kvrail status`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StatusArgs {}

/// Shows what a running sidecar is doing.
///
/// # Errors
/// Always: it is not built into this binary yet.
pub(crate) fn run(_: StatusArgs, _: &Context) -> Result<(), Failure> {
    Err(Failure::new(Exit::Failed, "status is not built into this binary yet"))
}
