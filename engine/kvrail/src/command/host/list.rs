//! `kvrail host list`.

use clap::Args;
use kvrail_fabrics::{Controller, Namespace, Path, Subsystem, subsystems};
use kvrail_memory::Root;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::{Format, human_bytes, print_json, print_table, print_text, table};

const EXAMPLES: &str = "\
Examples:
  kvrail host list
  kvrail host list --all                          local drives too
  kvrail host list --format json";

/// Arguments of `kvrail host list`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ListArgs {
    /// Local drives too
    #[arg(long)]
    all: bool,
}

/// Shows connections, then devices with their paths.
pub(super) fn run(args: &ListArgs, context: &Context) -> Result<(), Failure> {
    let mut found = subsystems(&Root::default());
    found.retain(|subsystem| args.all || subsystem.controllers.iter().any(Controller::is_remote));
    match context.format {
        Format::Json => print_json(&found),
        Format::Human if found.is_empty() => print_text("nothing is connected"),
        Format::Human => {
            print_table(&connections(&found))?;
            print_text("")?;
            print_table(&devices(&found))
        }
    }
}

fn connections(found: &[Subsystem]) -> comfy_table::Table {
    let mut rows = table(&[
        "CONNECTION",
        "NQN",
        "TRANSPORT",
        "ADDRESS",
        "STATE",
        "QUEUES",
        "KEEP-ALIVE",
        "RECONNECT",
        "LOSS",
        "AUTH",
    ]);
    for subsystem in found {
        for it in &subsystem.controllers {
            let seconds = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
            rows.add_row([
                it.name.clone(),
                subsystem.nqn.clone(),
                it.transport.clone(),
                address(it),
                it.state.clone(),
                it.queues.map_or_else(|| "-".into(), |queues| queues.to_string()),
                it.keep_alive_s.map_or_else(|| "-".into(), |seconds| format!("{seconds} s")),
                seconds(&it.reconnect_delay_s),
                seconds(&it.loss_timeout_s),
                if it.authenticated { "yes" } else { "no" }.into(),
            ]);
        }
    }
    rows
}

/// `192.0.2.1:4420`, or what the kernel says.
fn address(controller: &Controller) -> String {
    match (controller.pair("traddr"), controller.pair("trsvcid")) {
        (Some(traddr), Some(port)) if traddr.contains(':') => format!("[{traddr}]:{port}"),
        (Some(traddr), Some(port)) => format!("{traddr}:{port}"),
        _ if controller.address.is_empty() => "-".into(),
        _ => controller.address.clone(),
    }
}

fn devices(found: &[Subsystem]) -> comfy_table::Table {
    let mut rows = table(&["DEVICE", "NSID", "SIZE", "POLICY", "PATHS"]);
    for subsystem in found {
        for namespace in &subsystem.namespaces {
            rows.add_row([
                namespace.device.clone(),
                namespace.nsid.to_string(),
                human_bytes(namespace.bytes),
                subsystem.io_policy.clone().unwrap_or_else(|| "-".into()),
                paths(namespace, &subsystem.controllers),
            ]);
        }
    }
    rows
}

/// `nvme1 optimized, nvme2 inaccessible`; a path whose controller is not live says so.
fn paths(namespace: &Namespace, controllers: &[Controller]) -> String {
    let one = |path: &Path| {
        let controller = controllers.iter().find(|it| it.name == path.controller);
        let state = controller.map_or("gone", |controller| &controller.state);
        let ana = path.ana_state.as_deref().unwrap_or("");
        let words = if state == "live" { ana } else { state };
        format!("{} {words}", path.controller).trim_end().to_owned()
    };
    namespace.paths.iter().map(one).collect::<Vec<_>>().join(", ")
}
