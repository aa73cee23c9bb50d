//! `kvrail volume repair`.

use std::path::PathBuf;

use clap::Args;
use kvrail_nvme::Selector;
use kvrail_volume::{Repair, VolumeName, repair};
use serde::Serialize;

use crate::members::members;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail volume repair kv0                  the members configured for kv0
  kvrail volume repair kv0 serial:S6CKNE0T

Each label lies on its member twice. If one copy alone is damaged, it is written again from the
other one. Find the cause of the damage first: it may have hit the data, too.";

/// Arguments of `kvrail volume repair`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RepairArgs {
    /// Name of the volume, as its labels carry it
    name: VolumeName,
    /// Its files and devices, as for `create` [default: the members configured for NAME]
    #[arg(value_name = "MEMBER")]
    members: Vec<Selector>,
}

#[derive(Serialize)]
struct Repaired {
    member: PathBuf,
    /// The fault; null where the label was whole.
    restored: Option<String>,
}

/// Restores what can be restored.
pub(super) fn run(args: &RepairArgs, context: &Context) -> Result<(), Failure> {
    let members = members(&args.name, &args.members, context)?;
    let done = repair(&args.name, &members)?;
    let done = members.into_iter().zip(done).map(|(member, done)| Repaired {
        member,
        restored: match done {
            Repair::Whole => None,
            Repair::Restored(what) => Some(what),
        },
    });
    let done: Vec<Repaired> = done.collect();
    if context.format == Format::Json {
        return print_json(&done);
    }
    done.iter().try_for_each(|Repaired { member, restored }| {
        let member = member.display();
        match restored {
            Some(what) => print_text(&format!("{member}: label restored: {what}")),
            None => print_text(&format!("{member}: label is whole")),
        }
    })
}
