//! `kvrail target plan`.

use std::path::PathBuf;

use clap::Args;
use kvrail_memory::Root;

use super::show::{Steps, StepsReport};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail target plan
  kvrail target plan --tree ./copy-of-nvmet    what would be done to another tree
  kvrail target plan --format json | jq '.steps | length'";

/// Arguments of `kvrail target plan`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlanArgs {
    /// Another tree than target.configfs, such as a copy
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
}

/// Looks and shows.
pub(super) fn run(args: &PlanArgs, context: &Context) -> Result<(), Failure> {
    let wanted = context.config()?.config.target;
    let wish = wanted.wish();
    if wish.is_empty() {
        return Err(super::nothing_wished());
    }
    let target = super::seen(&wanted, args.tree.as_deref())?;
    let (plan, steps) = target.plan(&wish, &Root::default())?;
    StepsReport::new("planned", &plan, &steps).print(context, Steps::Listed)
}
