//! The view of namespaces: the drive's facts and its content.

use kvrail_memory::Root;
use kvrail_nvme::{Drive, Selector, Unseen, describe, drives, resolve};

use super::device::ListedDevice;
use super::{detail, overview};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, print_json, print_table, print_text};

/// The message instead of an empty table.
pub(super) const NONE: &str =
    "no NVMe namespaces here; `kvrail volume list` reads all block devices";

/// Shows the namespaces named, or all, and then what of them could not be seen.
pub(super) fn run(named: &[Selector], verbose: bool, context: &Context) -> Result<(), Failure> {
    let devices: Vec<ListedDevice> = selected(named)?.into_iter().map(ListedDevice::look).collect();
    if context.format == Format::Json {
        return print_json(&devices);
    }
    if devices.is_empty() {
        return print_text(NONE);
    }
    if verbose {
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
