//! `kvrail host set-iopolicy`.

use clap::Args;
use kvrail_fabrics::{IoPolicy, set_io_policy};
use kvrail_memory::Root;
use kvrail_nvme::Nqn;
use serde::Serialize;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail host set-iopolicy -n nqn.2026-11.org.example:kv0 --iopolicy round-robin";

/// Arguments of `kvrail host set-iopolicy`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetIopolicyArgs {
    /// The subsystem
    #[arg(short, long)]
    nqn: Nqn,
    /// numa, round-robin or queue-depth
    #[arg(long, value_name = "POLICY")]
    iopolicy: IoPolicy,
}

#[derive(Serialize)]
struct Set {
    nqn: String,
    io_policy: String,
}

/// Sets the policy; it holds until the last path goes.
pub(super) fn run(args: &SetIopolicyArgs, context: &Context) -> Result<(), Failure> {
    set_io_policy(&Root::default(), args.nqn.as_str(), args.iopolicy)?;
    let set = Set { nqn: args.nqn.to_string(), io_policy: args.iopolicy.to_string() };
    match context.format {
        Format::Json => print_json(&set),
        Format::Human => print_text(&format!("{}: {}", set.nqn, set.io_policy)),
    }
}
