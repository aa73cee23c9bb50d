//! The devices of the map: drives, NICs, GPUs.

use std::fmt;

use serde::Serialize;

use crate::place::PciPlace;
use crate::port::RdmaPort;

/// One device of the map.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Device {
    /// Kernel name, or `gpuN`.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// Its model, by its own name.
    pub model: String,
    /// Where it sits; a remote drive sits where the NIC is that leads to it.
    pub place: PciPlace,
    /// Details of its kind.
    pub detail: Detail,
}

/// The kind of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A local NVMe drive.
    Drive,
    /// An NVMe namespace's controller on another host.
    RemoteDrive,
    /// An RDMA device.
    Nic,
    /// A GPU.
    Gpu,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Drive => "drive",
            Self::RemoteDrive => "remote drive",
            Self::Nic => "NIC",
            Self::Gpu => "GPU",
        })
    }
}

/// Details of one kind of device.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Detail {
    /// Of drives, local and remote.
    Drive {
        /// Serial number.
        serial: String,
        /// Firmware revision.
        firmware: String,
        /// `pcie`, `rdma`, `tcp`, ...
        transport: String,
        /// As the kernel writes it.
        address: String,
        /// Kernel names of its block devices.
        namespaces: Vec<String>,
        /// The NIC that leads to a remote one, where the kernel reports it.
        via: Option<String>,
    },
    /// Of NICs.
    Nic {
        /// Firmware revision.
        firmware: String,
        /// Its ports.
        ports: Vec<RdmaPort>,
        /// The network interface of a software device (rxe, siw).
        software_on: Option<String>,
    },
    /// Of GPUs.
    Gpu {
        /// PCI vendor and device numbers.
        id: String,
        /// Bytes of the window to its memory (BAR1).
        bar1_bytes: u64,
        /// The driver that has it.
        driver: Option<String>,
    },
}

impl Device {
    /// One line about it, without its kind and name.
    #[must_use]
    pub fn line(&self) -> String {
        let mut words = vec![self.model.clone()];
        words.extend(
            self.place
                .pci
                .filter(|_| self.kind != DeviceKind::RemoteDrive)
                .map(|address| address.to_string()),
        );
        match &self.detail {
            Detail::Drive { address, namespaces, transport, .. } => {
                if self.kind == DeviceKind::RemoteDrive {
                    words.push(format!("{transport} {address}"));
                }
                words.push(namespaces.join(" "));
            }
            Detail::Nic { ports, software_on, .. } => {
                words.extend(software_on.iter().map(|netdev| format!("software, on {netdev}")));
                words.extend(ports.iter().map(ToString::to_string));
            }
            Detail::Gpu { bar1_bytes, .. } => words.push(format!("BAR1 {} MiB", bar1_bytes >> 20)),
        }
        if self.kind != DeviceKind::RemoteDrive {
            words.extend(self.place.link.map(|link| link.to_string()));
        }
        words.retain(|word| !word.is_empty());
        words.join(", ")
    }
}
