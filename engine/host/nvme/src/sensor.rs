//! The temperature of a controller as the kernel's hwmon shows it to everybody. The kernel asks the
//! drive: a read may wait for one that hangs.

use kvrail_memory::Root;

use crate::host::{CONTROLLERS, Namespace};

/// A temperature, and the limits that the kernel has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sensor {
    /// Degrees Celsius of the whole drive.
    pub celsius: i32,
    /// Degrees from which on the drive warns, where the kernel has them.
    pub warning_celsius: Option<i32>,
}

/// The sensor of a namespace's first live controller; none where the kernel has none, or cannot
/// read it.
#[must_use]
pub fn sensor(root: &Root, namespace: &Namespace) -> Option<Sensor> {
    let live = namespace.controllers.iter().find(|controller| controller.state == "live")?;
    let home = format!("{CONTROLLERS}/{}", live.name);
    let monitors = root.names(&home).into_iter().filter(|name| name.starts_with("hwmon"));
    // In thousandths of a degree; the first one of a drive is that of the whole.
    let read = |monitor: &str, file: &str| -> Option<i32> {
        let value: Option<i32> = root.value(format!("{home}/{monitor}/{file}")).ok().flatten();
        value.map(|thousandths| thousandths.div_euclid(1000))
    };
    monitors.into_iter().find_map(|monitor| {
        let celsius = read(&monitor, "temp1_input")?;
        Some(Sensor { celsius, warning_celsius: read(&monitor, "temp1_max") })
    })
}
