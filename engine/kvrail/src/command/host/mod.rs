//! `kvrail host`: connections of this host to NVMe-oF targets.

mod arguments;
mod connect;
mod disconnect;
mod discover;
mod list;
mod set_iopolicy;

use clap::Subcommand;

use crate::context::Context;
use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  kvrail host discover -t tcp -a 192.0.2.1
  kvrail host connect -t tcp -a 192.0.2.1 -n nqn.2026-11.org.example:kv0
  kvrail host list                                devices, paths, ANA states
  kvrail host set-iopolicy -n nqn.2026-11.org.example:kv0 --iopolicy queue-depth
  kvrail host disconnect -n nqn.2026-11.org.example:kv0

Options have nvme-cli's names; what is connected here `nvme list-subsys` shows too.";

/// What to do with connections.
#[derive(Debug, Subcommand)]
#[command(after_help = EXAMPLES)]
pub(crate) enum HostCommand {
    /// Ask a target's discovery service what it has
    Discover(Box<discover::DiscoverArgs>),
    /// Connect to a subsystem; its namespaces become block devices here
    Connect(Box<connect::ConnectArgs>),
    /// List connections, devices and paths with their ANA states
    List(list::ListArgs),
    /// Take connections down
    Disconnect(disconnect::DisconnectArgs),
    /// Set how I/O is spread over the paths of a subsystem
    SetIopolicy(set_iopolicy::SetIopolicyArgs),
}

/// Runs `kvrail host`.
pub(crate) fn run(command: HostCommand, context: &Context) -> Result<(), Failure> {
    match command {
        HostCommand::Discover(args) => discover::run(&args, context),
        HostCommand::Connect(args) => connect::run(&args, context),
        HostCommand::List(args) => list::run(&args, context),
        HostCommand::Disconnect(args) => disconnect::run(&args, context),
        HostCommand::SetIopolicy(args) => set_iopolicy::run(&args, context),
    }
}
