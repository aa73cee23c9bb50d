//! `kvrail bench`.

use clap::Args;

use crate::context::Context;
use crate::failure::{Exit, Failure};

const EXAMPLES: &str = "\
Examples:
  kvrail bench";

/// Arguments of `kvrail bench`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {}

/// Measures this machine.
///
/// # Errors
/// Always: it is not built into this binary yet.
pub(crate) fn run(_: BenchArgs, _: &Context) -> Result<(), Failure> {
    Err(Failure::new(Exit::Failed, "bench is not built into this binary yet"))
}
