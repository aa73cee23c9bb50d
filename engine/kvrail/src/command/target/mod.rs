//! `kvrail target`: plan, apply, status, undo, export, import.

mod apply;
mod export;
mod import;
mod plan;
pub(crate) mod show;
mod status;
mod undo;

use std::path::Path;

use clap::Subcommand;
use kvrail_target::{FileStore, Kernel, Store, Target};

use crate::config::Config;
use crate::context::Context;
use crate::failure::{Exit, Failure};

/// What to do with the NVMe over Fabrics target.
#[derive(Debug, Subcommand)]
pub(crate) enum TargetCommand {
    /// Show what apply would do; changes nothing
    Plan(plan::PlanArgs),
    /// Make the kernel's target equal to `[target]`; all of it or nothing
    Apply(apply::ApplyArgs),
    /// Show what kvrail made, and whether it is as planned
    Status(status::StatusArgs),
    /// Remove everything that kvrail made, and nothing else
    Undo(undo::UndoArgs),
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
        TargetCommand::Undo(args) => undo::run(&args, context),
        TargetCommand::Export(args) => export::run(&args, context),
        TargetCommand::Import(args) => import::run(&args, context),
    }
}

/// The target to change: locked against every other kvrail.
pub(crate) fn locked(config: &Config) -> Result<Target<Kernel, FileStore>, Failure> {
    open(&config.target.configfs, FileStore::open(&config.target.state)?)
}

/// The target to look at, or a copy of one.
pub(crate) fn seen(
    config: &Config,
    tree: Option<&Path>,
) -> Result<Target<Kernel, FileStore>, Failure> {
    let root = tree.unwrap_or(&config.target.configfs);
    open(root, FileStore::look(&config.target.state))
}

fn open<S: Store>(root: &Path, store: S) -> Result<Target<Kernel, S>, Failure> {
    let place = "/proc/sys/kernel/random/boot_id";
    let boot = std::fs::read_to_string(place)
        .map_err(|error| Failure::new(Exit::Failed, format!("{place}: {error}")))?;
    // A record of one tree says nothing of another.
    let boot = format!("{} {}", boot.trim(), root.display());
    Ok(Target::open(Kernel::at(root), store, &boot)?)
}

/// A configuration that exports nothing.
fn nothing_wished() -> Failure {
    Failure::new(Exit::Usage, "the configuration exports nothing").with_remedy(
        "add [[target.subsystem]] and [[target.port]] (`kvrail config default` explains them); to \
         remove what kvrail made: kvrail target undo",
    )
}
