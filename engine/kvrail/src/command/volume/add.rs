//! `kvrail volume add`.

use clap::Args;
use kvrail_client::MemberChange;
use kvrail_nvme::Selector;
use kvrail_volume::{JoinedMember, NewMember, Overwrite, VolumeName, add, prepare};

use super::create::{DirectArg, FillArg};
use super::retire::Changed;
use super::serving::{Serving, ServingArgs};
use crate::members::{locate, members};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::progress::writing;

const EXAMPLES: &str = "\
Examples:
  kvrail volume add cache /dev/nvme5n1                  the others as configured
  kvrail volume add cache serial:S6CKNE0T /dev/nvme1n1 /dev/nvme2n1

All members must be there. The new member takes an equal share of the keys from the next start on:
they are looked up and put there, all other keys stay where they are. Name the member in the
configuration, too. After a crash or a kill the same command continues, and the store starts in any
case.

Where a sidecar serves the store, the new member is made and written meanwhile, and the sidecar
lists it in the labels of the others; only root and the sidecar's own user may have it do so. The
sidecar serves the new member once it is restarted.";

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
    #[command(flatten)]
    serving: ServingArgs,
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
    let what = format!("added {}", new.path.display());
    if let Some(serving) = args.serving.find(&args.name, context)? {
        return add_served(&new, serving, &what, context);
    }
    let added = writing(context, |progress| add(&new, progress))?;
    Changed::of(&added?).print(&format!("{what}, which no sidecar serves"), context)
}

/// Makes it here, and has the sidecar list it in the labels of the others.
fn add_served(
    new: &NewMember,
    mut serving: Serving,
    what: &str,
    context: &Context,
) -> Result<(), Failure> {
    // A refusal comes before a drive is filled, which may take hours.
    let name = new.name.to_string();
    serving.looker.ask(|client| client.change_members(&name, MemberChange::Check))?;
    let joining = writing(context, |progress| prepare(new, progress))??;
    let JoinedMember { number, uuid, changes } = joining.member();
    let path = std::path::absolute(&new.path).unwrap_or_else(|_| new.path.clone());
    let path = path.display().to_string();
    let change = MemberChange::Add { path, number, uuid, changes };
    match serving.looker.ask(|client| client.change_members(&name, change)) {
        Ok(changed) => {
            joining.keep()?;
            let at = serving.socket.display();
            let what = format!("{what} while it is served at {at}, from its next start on");
            Changed::while_served(changed).print(&what, context)
        }
        Err(failure) => {
            // Some of the others list it, or will without our knowing: the same command goes on.
            if failure.exit() == Exit::Unreachable || joining.is_listed() {
                joining.keep()?;
            }
            Err(failure)
        }
    }
}
