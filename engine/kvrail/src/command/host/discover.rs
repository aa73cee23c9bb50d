//! `kvrail host discover`.

use clap::Args;
use kvrail_fabrics::{Entry, Purpose, Subtype, discover};
use kvrail_memory::Root;
use kvrail_nvme::Nqn;

use super::arguments::EndArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, print_json, print_table, print_text, table};
use crate::stop::StopFlag;

const EXAMPLES: &str = "\
Examples:
  kvrail host discover -t rdma -a 192.0.2.1
  kvrail host discover -t tcp -a 192.0.2.1 -s 4420 --format json
  kvrail host discover -t loop";

/// Arguments of `kvrail host discover`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DiscoverArgs {
    /// The service's name, where it has one of its own
    #[arg(short, long)]
    nqn: Option<Nqn>,
    #[command(flatten)]
    end: EndArgs,
}

/// Connects to the service, asks, and disconnects.
pub(super) fn run(args: &DiscoverArgs, context: &Context) -> Result<(), Failure> {
    let root = Root::default();
    let nqn = args.nqn.clone().unwrap_or_else(Nqn::discovery);
    let options = args.end.options(nqn, Purpose::Discovery, &root)?;
    let stop = StopFlag::register()?;
    let entries = discover(&root, &options)?;
    match context.format {
        Format::Json => print_json(&entries)?,
        Format::Human if entries.is_empty() => print_text("the target shows this host nothing")?,
        Format::Human => print_table(&rows(&entries))?,
    }
    stop.check()
}

fn rows(entries: &[Entry]) -> comfy_table::Table {
    let mut rows = table(&["NQN", "KIND", "TRANSPORT", "ADDRESS", "SERVICE", "PORT"]);
    for entry in entries {
        rows.add_row([
            entry.nqn.clone(),
            match entry.subtype {
                Subtype::Nvme => "subsystem".into(),
                Subtype::Referral => "referral".into(),
                Subtype::Current => "discovery".into(),
                Subtype::Unknown(number) => number.to_string(),
            },
            entry.transport.clone(),
            entry.traddr.clone(),
            entry.trsvcid.clone(),
            entry.port.to_string(),
        ]);
    }
    rows
}
