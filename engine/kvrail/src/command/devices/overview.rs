//! One line for each namespace.

use comfy_table::Table;
use kvrail_nvme::Drive;

use super::device::ListedDevice;
use crate::command::describe;
use kvrail_cli::output::{human_bytes, table as bare};

/// All of them; `-` is what is not known.
pub(super) fn table(devices: &[ListedDevice]) -> Table {
    let mut table = bare(&[
        "DEVICE", "ADDRESS", "NS", "SERIAL", "MODEL", "SIZE", "BLOCK", "CACHE", "QUEUES", "NODE",
        "TEMP", "WORN", "HOLDS", "USED BY",
    ]);
    for device in devices {
        table.add_row(row(device).map(|cell| cell.unwrap_or_else(|| "-".into())));
    }
    table
}

fn row(device: &ListedDevice) -> [Option<String>; 14] {
    let drive = &device.drive;
    let controller = drive.namespace.controllers.first();
    let (holds, health) = (device.holds.as_ref(), drive.health.as_ref());
    let node = drive.links.first().and_then(|link| link.numa_node);
    [
        Some(drive.namespace.name.clone()),
        controller.map(|controller| controller.address.clone()),
        Some(drive.namespace.nsid.to_string()),
        controller.map(|controller| controller.serial.clone()),
        controller.map(|controller| controller.model.clone()),
        Some(human_bytes(drive.size_bytes)),
        block(drive),
        cache(drive).map(Into::into),
        queues(drive),
        node.map(|node| node.to_string()),
        health.map(|health| format!("{} C", health.celsius)),
        health.map(|health| format!("{} %", health.used_percent)),
        holds.map(|seen| describe::content(&seen.content)),
        holds.map(describe::holders),
    ]
}

/// `512`, `4096+8` with metadata, `4096+8 PI 1` with protection information.
pub(super) fn block(drive: &Drive) -> Option<String> {
    let (data, metadata) = match (&drive.formats, &drive.queue) {
        (Some(facts), _) => (facts.format.block_bytes, u32::from(facts.format.metadata_bytes)),
        (None, Some(queue)) => (queue.logical_block?, queue.metadata_bytes.unwrap_or(0)),
        (None, None) => return None,
    };
    let metadata = if metadata == 0 { String::new() } else { format!("+{metadata}") };
    let protection = drive.formats.as_ref().and_then(|facts| facts.protection);
    let protection = protection.map(|kind| format!(" PI {kind}")).unwrap_or_default();
    Some(format!("{data}{metadata}{protection}"))
}

/// Whether the write cache is volatile: the drive's answer, or else the kernel's.
pub(super) fn cache(drive: &Drive) -> Option<&'static str> {
    let by_drive = drive.controller.as_ref().map(|facts| facts.volatile_write_cache);
    let by_kernel =
        || drive.queue.as_ref()?.write_cache.as_ref().map(|cache| cache == "write back");
    let volatile = by_drive.or_else(by_kernel)?;
    Some(if volatile { "volatile" } else { "none" })
}

/// `8`, or `8 (2 poll)`.
pub(super) fn queues(drive: &Drive) -> Option<String> {
    let link = drive.links.first()?;
    let queues = link.queues?;
    Some(match link.poll_queues {
        Some(poll @ 1..) => format!("{queues} ({poll} poll)"),
        _ => queues.to_string(),
    })
}
