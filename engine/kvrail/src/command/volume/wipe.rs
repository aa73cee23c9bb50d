//! `kvrail volume wipe`.

use std::path::PathBuf;

use clap::Args;
use kvrail_nvme::Selector;
use kvrail_volume::{VolumeName, wipe};
use serde::Serialize;

use crate::members::members;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail volume wipe kv0 /data/kv0.img
  kvrail volume wipe kv0                    the members configured for kv0

The name must be the one in the labels: it is the confirmation. The data behind the labels stays,
so that a volume made there later needs --force.";

/// Arguments of `kvrail volume wipe`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WipeArgs {
    /// Name of the volume, as its labels carry it
    name: VolumeName,
    /// Its files and devices, as for `create` [default: the members configured for NAME]
    #[arg(value_name = "MEMBER")]
    members: Vec<Selector>,
}

#[derive(Serialize)]
struct Wiped {
    name: String,
    uuid: Option<String>,
    members: Vec<PathBuf>,
}

/// Removes the labels.
pub(super) fn run(args: &WipeArgs, context: &Context) -> Result<(), Failure> {
    let members = members(&args.name, &args.members, context)?;
    let labels = wipe(&args.name, &members)?;
    let uuid = labels.first().map(|label| label.volume_uuid.to_string());
    if context.format == Format::Json {
        return print_json(&Wiped { name: args.name.to_string(), uuid, members });
    }
    let (wiped, blank) = (labels.len(), members.len() - labels.len());
    let before = if blank == 0 { String::new() } else { format!(", {blank} carried none before") };
    let name = &args.name;
    print_text(&format!("wiped volume {name}: {wiped} member(s) carry no label any more{before}"))
}
