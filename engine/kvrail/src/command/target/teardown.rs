//! `kvrail target teardown`.

use clap::Args;
use kvrail_target::Plan;

use super::show::{Steps, StepsReport};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail target teardown
  kvrail target teardown --verbose

Closes the ports first. What kvrail did not make stays as it is; modules stay loaded.";

/// Arguments of `kvrail target teardown`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TeardownArgs {
    /// List every step
    #[arg(short, long)]
    verbose: bool,
}

/// Takes it down.
pub(super) fn run(args: &TeardownArgs, context: &Context) -> Result<(), Failure> {
    let wanted = context.config()?.config.target;
    let mut target = super::locked(&wanted)?;
    if target.owned().is_empty() {
        return StepsReport::new("undone", &Plan::default(), &[]).print(context, Steps::Counted);
    }
    let steps = target.undo()?;
    let all = if args.verbose { Steps::Listed } else { Steps::Counted };
    StepsReport::new("undone", &Plan::default(), &steps).print(context, all)
}
