//! `kvrail target export`.

use std::path::PathBuf;

use clap::Args;
use kvrail_memory::Root;
use kvrail_target::{KernelTree, Snapshot, everything, export};

use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::print_json;

const EXAMPLES: &str = "\
Examples:
  kvrail target export > nvmet.json                      the plan; `nvmetcli restore` reads it
  kvrail target export --tree /sys/kernel/config/nvmet   the whole tree, also objects of others

Keys are not written.";

/// Arguments of `kvrail target export`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExportArgs {
    /// Export the present tree instead of the plan
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
}

/// Prints the JSON.
pub(super) fn run(args: &ExportArgs, context: &Context) -> Result<(), Failure> {
    if let Some(tree) = &args.tree {
        let present = Snapshot::read(&KernelTree::at(tree))?;
        return print_json(&export(&everything(&present)));
    }
    let wanted = context.config()?.config.target;
    let wish = wanted.wish();
    if wish.is_empty() {
        return Err(super::nothing_wished());
    }
    let (plan, _) = super::seen(&wanted, None)?.plan(&wish, &Root::default())?;
    print_json(&export(&plan.desired))
}
