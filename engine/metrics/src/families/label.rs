//! Values of labels that are not a number.

use kvrail_protocol::StatusReport;

/// What a device is called in labels: its name, with its number where others have the same.
pub(super) fn device_label(report: &StatusReport, index: u16) -> String {
    let Some(device) = report.devices.iter().find(|it| it.index == index) else {
        return index.to_string();
    };
    match report.devices.iter().filter(|it| it.name == device.name).count() {
        1 => device.name.clone(),
        _ => format!("{} ({index})", device.name),
    }
}
