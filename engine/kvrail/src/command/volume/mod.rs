//! `kvrail volume`: create, add, retire, list, inspect, repair, wipe.

mod add;
mod create;
mod existing;
mod inspect;
mod list;
mod repair;
mod retire;
mod serving;
mod wipe;

use clap::Subcommand;

use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail volume create kv0 /data/kv0.img --size 64GiB
  kvrail volume add cache /dev/nvme5n1
  kvrail volume retire cache --member 2
  kvrail volume list
  kvrail volume inspect /data/kv0.img
  kvrail volume wipe kv0 /data/kv0.img

Serve it: kvrail serve --set 'volume=[{name=\"kv0\", members=[\"/data/kv0.img\"]}]'";

/// Commands on volumes.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum VolumeCommand {
    /// Make a volume on files or block devices
    Create(create::CreateArgs),
    /// Add a device or file to a store, served or not, from the next start on
    Add(add::AddArgs),
    /// Take a member out of a store for good, served or not: a drive that is dead, most often
    Retire(retire::RetireArgs),
    /// List the volumes of this host: configured ones and all block devices
    List(list::VolumeListArgs),
    /// Show what devices or files hold: label, foreign data, users
    Inspect(inspect::InspectArgs),
    /// Restore labels of which one copy is damaged
    Repair(repair::RepairArgs),
    /// Remove the labels of a volume; its data is lost
    Wipe(wipe::WipeArgs),
}

/// Runs `kvrail volume`.
pub(crate) fn run(command: VolumeCommand, context: &Context) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create(args) => create::run(&args, context),
        VolumeCommand::Add(args) => add::run(&args, context),
        VolumeCommand::Retire(args) => retire::run(&args, context),
        VolumeCommand::List(args) => list::run(&args, context),
        VolumeCommand::Inspect(args) => inspect::run(&args, context),
        VolumeCommand::Repair(args) => repair::run(&args, context),
        VolumeCommand::Wipe(args) => wipe::run(&args, context),
    }
}
