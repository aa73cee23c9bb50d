//! What is shown of namespaces: the drive's facts, and what lies on it.

use kvrail_memory::Root;
use kvrail_nvme::{Drive, Selector, Unseen, describe, drives, resolve};
use kvrail_volume::{Inspection, inspect};
use serde::Serialize;

use super::{DevicesArgs, detail, overview};
use crate::context::Context;
use crate::failure::{Exit, Failure};
use crate::output::{Format, print_json, print_table, print_text};

/// A namespace, and what lies on it.
#[derive(Debug, Serialize)]
pub(super) struct Device {
    #[serde(flatten)]
    pub(super) drive: Drive,
    /// None where it could not be read; `unseen` says why.
    pub(super) holds: Option<Inspection>,
}

/// Said instead of an empty table.
pub(super) const NONE: &str =
    "no NVMe namespaces here; `kvrail volume list` reads all block devices";

/// Shows the namespaces named, or all, and then what of them could not be seen.
pub(super) fn run(args: &DevicesArgs, context: &Context) -> Result<(), Failure> {
    let devices: Vec<Device> = selected(&args.devices)?.into_iter().map(Device::look).collect();
    if context.format == Format::Json {
        return print_json(&devices);
    }
    if devices.is_empty() {
        return print_text(NONE);
    }
    if args.verbose {
        for device in &devices {
            print_table(&detail::table(device))?;
        }
    } else {
        print_table(&overview::table(&devices))?;
    }
    for device in &devices {
        for Unseen { what, why } in &device.drive.unseen {
            context.note(&format!("{}: {what} not seen: {why}", device.drive.namespace.name));
        }
    }
    Ok(())
}

/// The drives named, or all.
fn selected(named: &[Selector]) -> Result<Vec<Drive>, Failure> {
    let root = Root::default();
    if named.is_empty() {
        return drives(&root).map_err(|error| Failure::new(Exit::Failed, error.to_string()));
    }
    named.iter().map(|one| Ok(describe(resolve(one, &root)?, &root))).collect()
}

impl Device {
    /// Reads what lies on it.
    fn look(mut drive: Drive) -> Self {
        let seen = match &drive.namespace.block_node {
            Some(node) => inspect(node).map_err(|error| error.to_string()),
            None => Err("it has no block device: its format or command set is none that the \
                         kernel drives"
                .to_owned()),
        };
        match seen {
            Ok(holds) => Self { drive, holds: Some(holds) },
            Err(why) => {
                drive.unseen.push(Unseen { what: "content and users", why });
                Self { drive, holds: None }
            }
        }
    }
}
