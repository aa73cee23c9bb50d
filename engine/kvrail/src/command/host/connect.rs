//! `kvrail host connect`.

use clap::Args;
use kvrail_fabrics::{Connected, IoPolicy, Purpose, connect, set_io_policy};
use kvrail_memory::Root;
use kvrail_nvme::Nqn;

use super::arguments::EndArgs;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, human_bytes, print_json, print_text};
use crate::stop::StopFlag;

const EXAMPLES: &str = "\
Examples:
  kvrail host connect -t rdma -a 192.0.2.1 -n nqn.2026-11.org.example:kv0 --nr-poll-queues 2
  kvrail host connect -t tcp -a 192.0.2.1 -n nqn.2026-11.org.example:kv0 --ctrl-loss-tmo -1
  kvrail host connect -t tcp -a 192.0.2.1 -n nqn.2026-11.org.example:kv0 \\
      --dhchap-secret-file /etc/kvrail/host.key
  kvrail volume create kv0 /dev/nvme1n1          a connected namespace is a device like any other

Connect once through each of a target's ports to have several paths; --iopolicy says how they share
the work. Times and queues have nvme-cli's names and the kernel's defaults.";

/// Arguments of `kvrail host connect`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConnectArgs {
    /// The subsystem's name
    #[arg(short, long)]
    nqn: Nqn,
    #[command(flatten)]
    end: EndArgs,
    /// Spread I/O over paths: numa, round-robin or queue-depth [default: the kernel's]
    #[arg(long, value_name = "POLICY")]
    iopolicy: Option<IoPolicy>,
}

/// Connects.
pub(super) fn run(args: &ConnectArgs, context: &Context) -> Result<(), Failure> {
    let root = Root::default();
    let options = args.end.options(args.nqn.clone(), Purpose::Io, &root)?;
    // A signal in between must not leave half of it: it is followed when the step is done.
    let stop = StopFlag::register()?;
    let connected = connect(&root, &options)?;
    if let Some(policy) = args.iopolicy {
        set_io_policy(&root, &connected.nqn, policy)?;
    }
    match context.format {
        Format::Json => print_json(&connected)?,
        Format::Human => print_text(&text(&connected))?,
    }
    stop.check()
}

fn text(connected: &Connected) -> String {
    let (name, nqn) = (&connected.controller, &connected.nqn);
    if connected.namespaces.is_empty() {
        return format!("connected {nqn} as {name}; the target shows this host no namespace");
    }
    let devices = connected.namespaces.iter().map(|namespace| {
        let size = human_bytes(namespace.bytes);
        format!("  {} namespace {}, {size}", namespace.device, namespace.nsid)
    });
    format!("connected {nqn} as {name}\n{}", devices.collect::<Vec<_>>().join("\n"))
}
