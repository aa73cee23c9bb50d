//! `kvrail target`: plan, apply, status, teardown, export, import.

mod apply;
mod export;
mod import;
mod open;
mod plan;
pub(crate) mod show;
mod status;
mod teardown;

use clap::Subcommand;

use self::open::nothing_wished;
pub(crate) use self::open::{locked, seen};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail target plan                      the steps; changes nothing
  kvrail target apply                     execute them, all or nothing
  kvrail target status                    is it as planned? 0: yes, 8: no
  kvrail target teardown                  remove what kvrail made, and nothing else
  kvrail target export > nvmet.json       the plan as nvmetcli's JSON; `import` reads such a file

What to export stands in [target] of the configuration: `kvrail config default` explains its keys.
`kvrail serve` applies it at start and keeps it up.";

/// Commands on the NVMe over Fabrics target.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum TargetCommand {
    /// Show what apply would do; changes nothing
    Plan(plan::PlanArgs),
    /// Make the kernel's target equal to `[target]`; all of it or nothing
    Apply(apply::ApplyArgs),
    /// Show what kvrail made, and whether it is as planned
    Status(status::TargetStatusArgs),
    /// Remove everything that kvrail made, and nothing else
    Teardown(teardown::TeardownArgs),
    /// Write the plan, or a tree, as nvmetcli's JSON
    Export(export::ExportArgs),
    /// Read nvmetcli's JSON and print it as a `[target]` for the configuration
    Import(import::ImportArgs),
}

/// Runs `kvrail target`.
pub(crate) fn run(command: TargetCommand, context: &Context) -> Result<(), Failure> {
    match command {
        TargetCommand::Plan(args) => plan::run(&args, context),
        TargetCommand::Apply(args) => apply::run(&args, context),
        TargetCommand::Status(args) => status::run(&args, context),
        TargetCommand::Teardown(args) => teardown::run(&args, context),
        TargetCommand::Export(args) => export::run(&args, context),
        TargetCommand::Import(args) => import::run(&args, context),
    }
}
