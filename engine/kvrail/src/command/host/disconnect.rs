//! `kvrail host disconnect`.

use std::path::Path;

use clap::Args;
use kvrail_fabrics::{Which, disconnect, subsystems};
use kvrail_memory::Root;
use kvrail_nvme::Nqn;
use kvrail_volume::holders;
use serde::Serialize;

use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::output::{Format, print_json, print_text};
use crate::stop::StopFlag;

const EXAMPLES: &str = "\
Examples:
  kvrail host disconnect -n nqn.2026-11.org.example:kv0
  kvrail host disconnect -d nvme2                 one path of several
  kvrail host disconnect --all --force            even what is in use: its I/O fails";

/// Arguments of `kvrail host disconnect`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DisconnectArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// Also devices that are in use
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct WhichArgs {
    /// Every connection to this subsystem
    #[arg(short, long)]
    nqn: Option<Nqn>,
    /// One connection, by its controller
    #[arg(short, long, value_name = "NAME")]
    device: Option<String>,
    /// Every connection of this host
    #[arg(long)]
    all: bool,
}

#[derive(Serialize)]
struct Gone {
    disconnected: Vec<String>,
}

/// Disconnects what is not in use.
pub(super) fn run(args: &DisconnectArgs, context: &Context) -> Result<(), Failure> {
    let root = Root::default();
    let which = match (&args.which.nqn, &args.which.device) {
        (Some(nqn), _) => Which::Nqn(nqn.to_string()),
        (None, Some(device)) => Which::Controller(device.clone()),
        (None, None) => Which::All,
    };
    let stop = StopFlag::register()?;
    if !args.force {
        refuse_used(&root, &which)?;
    }
    let gone = Gone { disconnected: disconnect(&root, &which)? };
    match context.format {
        Format::Json => print_json(&gone)?,
        Format::Human if gone.disconnected.is_empty() => print_text("nothing was connected")?,
        Format::Human => print_text(&format!("disconnected {}", gone.disconnected.join(", ")))?,
    }
    stop.check()
}

/// Refuses when a device in use would lose its last path.
fn refuse_used(root: &Root, which: &Which) -> Result<(), Failure> {
    let going: Vec<String> = which.controllers(root)?.into_iter().map(|it| it.name).collect();
    let all = subsystems(root);
    let lost = all
        .iter()
        .flat_map(|subsystem| &subsystem.namespaces)
        .filter(|namespace| namespace.paths.iter().all(|path| going.contains(&path.controller)));
    for namespace in lost {
        // A node that is not there has no user.
        let users = holders(Path::new(&namespace.device)).unwrap_or_default();
        let Some(first) = users.first() else { continue };
        let words: Vec<String> = users.iter().map(ToString::to_string).collect();
        let words = format!("{} is in use: {}", namespace.device, words.join("; "));
        let remedy = format!("{}, or --force and its I/O fails", first.remedy());
        return Err(Failure::new(Exit::Refused, words).with_remedy(remedy));
    }
    Ok(())
}
