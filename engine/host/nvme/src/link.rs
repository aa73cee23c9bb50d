//! How a controller hangs on the host: PCIe link, NUMA node, queues, memory buffer. From sysfs.

use kvrail_memory::{Root, TopologyError};
use serde::Serialize;

use crate::host::{CONTROLLERS, Controller};

/// A controller's connection to the host. Fields are `None` where the kernel does not report them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Kernel name of the controller.
    pub controller: String,
    /// The NUMA node it hangs on.
    pub numa_node: Option<u32>,
    /// PCIe speed now, `16.0 GT/s PCIe`.
    pub speed: Option<String>,
    /// PCIe lanes now.
    pub lanes: Option<u32>,
    /// The device's best speed.
    pub speed_max: Option<String>,
    /// As above.
    pub lanes_max: Option<u32>,
    /// I/O queues, those for polling counted in.
    pub queues: Option<u32>,
    /// Of these, the ones for polling: 0 where its namespaces cannot be polled, else the driver's
    /// parameter.
    pub poll_queues: Option<u32>,
    /// Bytes of its memory buffer (CMB), where the kernel offers it for peer-to-peer transfers.
    pub memory_buffer_bytes: Option<u64>,
}

impl Link {
    /// Reads how a controller is connected; `path` is the name that one of its namespaces has in
    /// its directory.
    pub(crate) fn read(
        root: &Root,
        controller: &Controller,
        path: &str,
    ) -> Result<Self, TopologyError> {
        let own = format!("{CONTROLLERS}/{}", controller.name);
        let word = |file: &str| {
            let text = root.text(format!("{own}/device/{file}"))?;
            // `Unknown` and width 0 or 255: a link that cannot be read.
            Ok(text.map(|text| text.trim().to_owned()).filter(|text| !text.starts_with("Unknown")))
        };
        let lanes = |file: &str| -> Result<Option<u32>, TopologyError> {
            let lanes: Option<u32> = root.value(format!("{own}/device/{file}"))?;
            Ok(lanes.filter(|lanes| (1..=32).contains(lanes)))
        };
        let node: Option<i32> = root.value(format!("{own}/numa_node"))?;
        let queues: Option<u32> = root.value(format!("{own}/queue_count"))?;
        Ok(Self {
            controller: controller.name.clone(),
            numa_node: node.and_then(|node| u32::try_from(node).ok()),
            speed: word("current_link_speed")?,
            lanes: lanes("current_link_width")?,
            speed_max: word("max_link_speed")?,
            lanes_max: lanes("max_link_width")?,
            // One is the admin queue.
            queues: queues.map(|queues| queues.saturating_sub(1)),
            poll_queues: poll_queues(root, controller, &format!("{own}/{path}"))?,
            memory_buffer_bytes: memory_buffer(root, &own)?,
        })
    }
}

fn poll_queues(
    root: &Root,
    controller: &Controller,
    disk: &str,
) -> Result<Option<u32>, TopologyError> {
    let polled: Option<u8> = root.value(format!("{disk}/queue/io_poll"))?;
    match polled {
        Some(0) => Ok(Some(0)),
        // A parameter of the PCIe driver; fabrics have an option of their connection.
        Some(_) if controller.pci.is_some() => root.value("sys/module/nvme/parameters/poll_queues"),
        _ => Ok(None),
    }
}

/// The kernel shows the registers where it could use the buffer, and the buffer as memory for
/// peers where it publishes it.
fn memory_buffer(root: &Root, own: &str) -> Result<Option<u64>, TopologyError> {
    let registers = root.text(format!("{own}/cmb"))?;
    let sizes = registers.as_deref().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("cmbsz"))?;
        let digits = line.trim_start_matches([' ', ':']).trim().strip_prefix("0x")?;
        u32::from_str_radix(digits, 16).ok().map(buffer_bytes)
    });
    Ok(match sizes {
        Some(bytes) => Some(bytes),
        None => root.value(format!("{own}/device/p2pmem/size"))?,
    })
}

/// Bits 31:12 of CMBSZ count units of 4 KiB times 16 to the power of bits 11:8 (NVM Express base
/// specification, "Controller Memory Buffer Size"); 7 and above are reserved.
fn buffer_bytes(cmbsz: u32) -> u64 {
    let unit = 12 + 4 * (cmbsz >> 8 & 0xf).min(6);
    u64::from(cmbsz >> 12) << unit
}

#[cfg(test)]
mod tests {
    use super::buffer_bytes;

    #[test]
    fn the_register_of_the_memory_buffer_is_read() {
        // 64 units of 1 MiB; 3 units of 4 KiB; the largest there is.
        assert_eq!(buffer_bytes(64 << 12 | 2 << 8 | 0x1f), 64 << 20);
        assert_eq!(buffer_bytes(3 << 12), 12 << 10);
        assert_eq!(buffer_bytes(u32::MAX), 0xf_ffff << 36);
    }
}
