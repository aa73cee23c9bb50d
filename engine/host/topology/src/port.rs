//! Ports of RDMA NICs.

use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

/// One port of an RDMA NIC.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RdmaPort {
    /// Its number, from 1.
    pub number: u32,
    /// `ACTIVE`, `DOWN`, ...
    pub state: String,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: String,
    /// As the kernel writes it: `100 Gb/sec (4X EDR)`.
    pub rate: String,
    /// Network interfaces that belong to it.
    pub interfaces: Vec<String>,
    /// Addresses that peers reach it by; link-local ones are left out.
    pub addresses: Vec<IpAddr>,
    /// Used entries of its GID table.
    pub gids: usize,
}

impl RdmaPort {
    /// Whether the link is up.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }
}

impl fmt::Display for RdmaPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [self.state.as_str(), self.link_layer.as_str(), self.rate.as_str()];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        write!(f, "port {} {}", self.number, words.join(" "))?;
        for word in &self.interfaces {
            write!(f, " {word}")?;
        }
        self.addresses.iter().try_for_each(|address| write!(f, " {address}"))
    }
}
