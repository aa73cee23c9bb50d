//! How NVMe travels between hosts: the transports of the kernel's target.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Port of I/O controllers, registered for NVMe over RDMA and used for TCP alike.
pub const SERVICE_DEFAULT: u16 = 4420;

/// How packets travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// RDMA: RoCE, InfiniBand, iWARP.
    Rdma,
    /// TCP.
    Tcp,
    /// This host's own target, without a network.
    Loop,
}

impl Transport {
    /// The kernel's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdma => "rdma",
            Self::Tcp => "tcp",
            Self::Loop => "loop",
        }
    }

    /// The module that serves it at a target, as in `/sys/module`.
    #[must_use]
    pub const fn target_module(self) -> &'static str {
        match self {
            Self::Rdma => "nvmet_rdma",
            Self::Tcp => "nvmet_tcp",
            Self::Loop => "nvme_loop",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
