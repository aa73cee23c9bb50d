//! `kvrail volume add`.

use clap::Args;
use kvrail_nvme::Selector;
use kvrail_volume::{NewMember, Overwrite, VolumeName, add};

use super::create::{DirectArg, FillArg};
use super::retire::Changed;
use crate::members::{locate, members};
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::progress::writing;

const EXAMPLES: &str = "\
Examples:
  kvrail volume add cache /dev/nvme5n1                  the others as configured
  kvrail volume add cache serial:S6CKNE0T /dev/nvme1n1 /dev/nvme2n1

For a store that no sidecar serves, with all its members there. The new member takes an equal share
of the keys: they are looked up and put there from then on; all other keys stay where they are. Name
the member in the configuration, too. After a crash or a kill the same command continues, and the
store starts in any case.";

/// Arguments of `kvrail volume add`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AddArgs {
    /// Name of the store, as its labels carry it
    name: VolumeName,
    /// The file or device to be added, as for `create`; it gets as many bytes as the others have
    #[arg(value_name = "NEW")]
    new: Selector,
    /// All members that it has [default: the members configured for NAME]
    #[arg(value_name = "MEMBER")]
    members: Vec<Selector>,
    /// File that is written once from end to end, so that later writes allocate nothing
    #[arg(long, value_enum, default_value_t)]
    fill: FillArg,
    /// How members are opened
    #[arg(long, value_enum, default_value_t)]
    direct: DirectArg,
    /// Overwrite data that is on the new one; never what is in use, never another kvrail volume
    #[arg(long)]
    force: bool,
}

/// Adds it.
pub(super) fn run(args: &AddArgs, context: &Context) -> Result<(), Failure> {
    let new = NewMember {
        name: args.name.clone(),
        members: members(&args.name, &args.members, context)?,
        path: locate(&args.new)?.path,
        fill: args.fill.into(),
        overwrite: if args.force { Overwrite::Foreign } else { Overwrite::Nothing },
        direct: args.direct.into(),
    };
    let added = writing(context, |progress| add(&new, progress))?;
    let what = format!("added {}", new.path.display());
    Changed::of(&added?).print(&what, context)
}
