//! `kvrail store erase`.

use clap::Args;
use kvrail_nvme::Selector;
use kvrail_volume::{DirectIo, VolumeName};
use serde::Serialize;

use super::target::confirm;
use crate::members::members;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail store erase cache                           members as configured; asks for the name again
  kvrail store erase cache /dev/nvme1n1 --yes cache  from a script

For a store that no sidecar serves: it becomes empty, whatever its members hold, without namespaces
and with new secrets. Name, label, segments and sizes stay. In a store that is served, `kvrail
store clear` and `kvrail store remove` empty one namespace.";

/// Arguments of `kvrail store erase`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EraseArgs {
    /// Name of the store, as its labels carry it
    name: VolumeName,
    /// All its files and devices, as for `volume create` [default: the members configured for NAME]
    #[arg(value_name = "MEMBER")]
    members: Vec<Selector>,
    /// The name once more, instead of a question
    #[arg(long, value_name = "NAME")]
    yes: Option<String>,
}

#[derive(Serialize)]
struct Erased {
    name: String,
    uuid: String,
    members: Vec<String>,
}

/// Erases.
pub(super) fn run(args: &EraseArgs, context: &Context) -> Result<(), Failure> {
    let paths = members(&args.name, &args.members, context)?;
    // Claimed until the end: no sidecar serves it meanwhile.
    let volume = kvrail_volume::open(&paths, Some(&args.name), DirectIo::Optional)?;
    let name = volume.name.to_string();
    let what = format!("all blocks and namespaces of store {name} are lost");
    confirm(&name, args.yes.as_deref(), &what)?;
    kvrail_volume::erase(&volume)?;
    let members = volume.members.iter().map(|member| member.path().display().to_string());
    let erased = Erased { name, uuid: volume.uuid.to_string(), members: members.collect() };
    if context.format == Format::Json {
        return print_json(&erased);
    }
    print_text(&format!("erased store {}: {} member(s) are empty", erased.name, paths.len()))
}
