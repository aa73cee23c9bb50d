//! `kvrail volume retire`.

use clap::Args;
use kvrail_client::{MemberChange, MembersChanged, StoreMemberInfo};
use kvrail_nvme::Selector;
use kvrail_volume::{Volume, VolumeName, retire};
use serde::Serialize;

use super::create::DirectArg;
use super::serving::ServingArgs;
use crate::members::members_there;
use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail volume retire cache --member 2                 the others as served, or as configured
  kvrail volume retire cache --member 2 /dev/nvme1n1 /dev/nvme3n1

The blocks of the member are lost, and its keys spread over the others from the next start on. All
others must be there. Remove the member from the configuration, too; a retired drive is not served
again before it is wiped. `kvrail volume list` shows the numbers of members.

A sidecar that serves the store does it, without a restart: the member ends what it was given and is
out of service when the command returns, and closed a moment later; until the next start its keys
are misses. Only root and the sidecar's own user may do this.";

/// Arguments of `kvrail volume retire`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RetireArgs {
    /// Name of the store, as its labels carry it
    name: VolumeName,
    /// Number of a member to be taken out; may be given several times
    #[arg(long = "member", value_name = "NUMBER", required = true)]
    numbers: Vec<u16>,
    /// All members that stay, of a store that is not served [default: the members configured for
    /// NAME]
    #[arg(value_name = "MEMBER", conflicts_with = "socket")]
    members: Vec<Selector>,
    #[command(flatten)]
    serving: ServingArgs,
    /// How members are opened
    #[arg(long, value_enum, default_value_t)]
    direct: DirectArg,
}

/// A store with other members than before.
#[derive(Serialize)]
pub(super) struct Changed {
    name: String,
    uuid: String,
    members: Vec<ChangedMember>,
    /// Whether the sidecar that serves it changed it.
    served: bool,
}

#[derive(Serialize)]
struct ChangedMember {
    number: u16,
    path: String,
}

impl Changed {
    pub(super) fn of(volume: &Volume) -> Self {
        let members = volume.present.iter().zip(&volume.members);
        let members = members.map(|(number, member)| ChangedMember {
            number,
            // The configuration takes no other.
            path: std::path::absolute(member.path())
                .unwrap_or_else(|_| member.path().into())
                .display()
                .to_string(),
        });
        let (name, uuid) = (volume.name.to_string(), volume.uuid.to_string());
        Self { name, uuid, members: members.collect(), served: false }
    }

    /// By the sidecar that serves it.
    pub(super) fn while_served(changed: MembersChanged) -> Self {
        let MembersChanged { name, uuid, members } = changed;
        let member = |it: StoreMemberInfo| ChangedMember { number: it.number, path: it.path };
        Self { name, uuid, members: members.into_iter().map(member).collect(), served: true }
    }

    pub(super) fn print(&self, what: &str, context: &Context) -> Result<(), Failure> {
        if context.format == Format::Json {
            return print_json(self);
        }
        let member = |it: &ChangedMember| format!("\n  member {}: {}", it.number, it.path);
        let members: String = self.members.iter().map(member).collect();
        print_text(&format!(
            "{what}: store {} has {} member(s); configure these{members}",
            self.name,
            self.members.len()
        ))
    }
}

/// Takes them out.
pub(super) fn run(args: &RetireArgs, context: &Context) -> Result<(), Failure> {
    let numbers: Vec<String> = args.numbers.iter().map(ToString::to_string).collect();
    let what = format!("retired member {}", numbers.join(", "));
    // Members that are named may be another store's of this name.
    let serving =
        if args.members.is_empty() { args.serving.find(&args.name, context)? } else { None };
    if let Some(mut serving) = serving {
        let change = MemberChange::Retire { members: args.numbers.clone() };
        let name = args.name.to_string();
        let changed = serving.looker.ask(|client| client.change_members(&name, change))?;
        let what = format!("{what} while it is served at {}", serving.socket.display());
        return Changed::while_served(changed).print(&what, context);
    }
    let paths = members_there(&args.name, &args.members, context)?;
    let volume = retire(&args.name, &paths, &args.numbers, args.direct.into())?;
    Changed::of(&volume).print(&format!("{what}, which no sidecar serves"), context)
}
