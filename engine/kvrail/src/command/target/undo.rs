//! `kvrail target undo`.

use clap::Args;
use kvrail_target::Plan;

use super::show::{Report, Steps};
use crate::context::Context;
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail target undo
  kvrail target undo --verbose

Closes the ports first. What kvrail did not make stays as it is; modules stay loaded.";

/// Arguments of `kvrail target undo`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct UndoArgs {
    /// List every step
    #[arg(short, long)]
    verbose: bool,
}

/// Takes it down.
pub(super) fn run(args: &UndoArgs, context: &Context) -> Result<(), Failure> {
    let wanted = context.config()?.config.target;
    let mut target = super::locked(&wanted)?;
    if target.owned().is_empty() {
        return Report::new("undone", &Plan::default(), &[]).print(context, Steps::Counted);
    }
    let steps = target.undo()?;
    let all = if args.verbose { Steps::Listed } else { Steps::Counted };
    Report::new("undone", &Plan::default(), &steps).print(context, all)
}
