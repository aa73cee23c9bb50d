//! Facts of this host for a plan, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::path::PathBuf;

use kvrail_nvme::PciAddress;

/// Why something of the host cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The rule it breaks.
    pub rule: String,
    /// The remedy.
    pub remedy: String,
}

impl Unusable {
    pub(crate) fn new(rule: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { rule: rule.into(), remedy: remedy.into() }
    }
}

/// This host, as far as a plan needs it.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Attributes that the kernel's objects have; none where no object shows them yet.
    pub features: Option<Features>,
    /// By selector.
    pub devices: BTreeMap<String, Result<Device, Unusable>>,
    /// By file. Never printed.
    pub keys: BTreeMap<PathBuf, Result<DhchapKey, Unusable>>,
    /// By port number: where it listens, or why it cannot.
    pub addresses: BTreeMap<u16, Result<Listening, Unusable>>,
    /// Module parameters of the vendor's stack.
    pub parameters: Parameters,
    /// Physical addresses that the kernel uses as memory; empty where it does not report them.
    pub memory: Vec<Range<u64>>,
}

/// Where a port listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listening {
    /// None for `loop`.
    pub address: Option<IpAddr>,
    /// A remark for the operator.
    pub note: Option<String>,
}

/// Attributes by kind of object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Of `subsystems/*`.
    pub subsystem: BTreeSet<String>,
    /// Of `subsystems/*/namespaces/*`.
    pub namespace: BTreeSet<String>,
    /// Of `ports/*`.
    pub port: BTreeSet<String>,
    /// Of `hosts/*`.
    pub host: BTreeSet<String>,
}

/// A namespace of a drive of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its node today.
    pub node: PathBuf,
    /// Its identity, the same after every boot.
    pub identity: String,
    /// Which drive it lies on, the same for all its namespaces.
    pub drive: String,
    /// Where the drive sits; none where it is not on PCIe.
    pub pci: Option<PciAddress>,
    /// Queues the drive has for peer-to-peer transfers; none without the vendor's stack.
    pub p2p_queues: Option<u32>,
    /// Whether the drive has memory that peers can reach.
    pub has_p2p_memory: bool,
}

/// A DH-HMAC-CHAP key.
#[derive(Clone, PartialEq, Eq)]
pub struct DhchapKey(pub(crate) String);

impl std::fmt::Debug for DhchapKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(a key)")
    }
}

impl DhchapKey {
    /// Takes the text of a key file.
    ///
    /// # Errors
    /// `Unusable` when it is no key.
    pub fn parse(text: &str) -> Result<Self, Unusable> {
        let key = text.trim();
        let parts: Vec<&str> = key.split(':').collect();
        let whole = matches!(parts[..], ["DHHC-1", hash, secret, ""]
            if hash.len() == 2 && secret.len() >= 40);
        if whole && key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Self(key.into()));
        }
        let rule = "it holds no key of the form DHHC-1:NN:...:";
        Err(Unusable::new(rule, "make one with `nvme gen-dhchap-key`"))
    }
}

/// Module parameters of the vendor's stack; none where the module has no such parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// `nvme num_p2p_queues`.
    pub p2p_queues: Option<u32>,
    /// `nvmet_rdma offload_mem_start`: physical address, bytes.
    pub staging_start: Option<u64>,
    /// `nvmet_rdma offload_mem_size`: MiB.
    pub staging_mib: Option<u64>,
    /// `nvmet_rdma offload_buffer_size`: KiB.
    pub staging_buffer_kib: Option<u64>,
}
