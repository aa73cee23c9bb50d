//! This host's exports, as written in the configuration. Each key's meaning, range and default
//! stand in `config/default.toml`; `check.rs` has the rules.

use std::net::IpAddr;
use std::path::PathBuf;

use kvrail_nvme::{Selector, Transport};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Everything to export.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetSpec {
    /// Hosts that bring keys; a host without needs no entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<Host>,
    /// The exported subsystems.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub subsystem: Vec<Subsystem>,
    /// Where it is reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub port: Vec<Port>,
}

impl TargetSpec {
    /// Whether nothing is to be exported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A host that authenticates itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Its qualified name.
    pub nqn: String,
    /// File with the host's DH-HMAC-CHAP key (`DHHC-1:..`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_key_file: Option<PathBuf>,
    /// File with the key by which this target proves itself to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_key_file: Option<PathBuf>,
    /// Hash of the authentication; the kernel's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_hash: Option<DhchapHash>,
    /// Group of the key exchange; the kernel's default if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_dhgroup: Option<DhGroup>,
}

/// The kernel's names of DH-HMAC-CHAP hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub enum DhchapHash {
    #[serde(rename = "hmac(sha256)")]
    Sha256,
    #[serde(rename = "hmac(sha384)")]
    Sha384,
    #[serde(rename = "hmac(sha512)")]
    Sha512,
}

/// The kernel's names of Diffie-Hellman groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are the kernel's")]
pub enum DhGroup {
    Null,
    Ffdhe2048,
    Ffdhe3072,
    Ffdhe4096,
    Ffdhe6144,
    Ffdhe8192,
}

/// A subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subsystem {
    /// Its qualified name.
    pub nqn: String,
    /// Hosts that may connect, by qualified name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Any host may connect; excludes a host list.
    #[serde(default, skip_serializing_if = "is_not")]
    pub allow_any_host: bool,
    /// Whether the network card serves it without this host's CPU.
    #[serde(default)]
    pub offload: Offload,
    /// Serial number, 1 to 20 printable ASCII characters; derived from the name if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Model, 1 to 40 printable ASCII characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Queues of one controller, 1 to 128.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qid_max: Option<u16>,
    /// Lowest controller id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cntlid_min: Option<u16>,
    /// Highest controller id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cntlid_max: Option<u16>,
    /// Its namespaces.
    #[serde(default)]
    pub namespace: Vec<Namespace>,
}

fn is_not(value: &bool) -> bool {
    !value
}

/// Whether target offload is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offload {
    /// The kernel's target.
    #[default]
    Off,
    /// The network card where it can, else the kernel's target; the report names the choice.
    Preferred,
    /// The network card or an error.
    Required,
}

/// A drive's namespace as a namespace of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    /// Its number for hosts.
    pub nsid: u32,
    /// The device behind it, by what it is: `pci:`, `serial:`, `wwid:`, or a stable link.
    pub device: Selector,
    /// Its UUID for hosts; derived from subsystem, number and device if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
    /// Its NGUID for hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nguid: Option<Uuid>,
    /// Its ANA group.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub ana_group: u16,
    /// Peer-to-peer memory for its transfers.
    #[serde(default, skip_serializing_if = "P2pMem::is_off")]
    pub p2pmem: P2pMem,
    /// Permitted content of the device at its first export.
    #[serde(default, skip_serializing_if = "PermittedContent::is_kvrail")]
    pub content: PermittedContent,
}

fn one() -> u16 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_one(group: &u16) -> bool {
    *group == 1
}

/// Whether transfers go through peer-to-peer memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum P2pMem {
    /// Through this host's memory, except where offload is preferred and the drive has its own.
    #[default]
    Off,
    /// Any the kernel finds.
    Auto,
}

impl P2pMem {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// Permitted content of a device at its first export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PermittedContent {
    /// Nothing, or a kvrail label.
    #[default]
    Kvrail,
    /// Anything that is not in use here.
    Any,
}

impl PermittedContent {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_kvrail(&self) -> bool {
        *self == Self::Kvrail
    }
}

/// Where subsystems are reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Its number, 1 to 65535.
    pub id: u16,
    /// How.
    pub transport: Transport,
    /// Address of a network card of this host; none for `loop`, or where `nic` finds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The RDMA card whose address it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nic: Option<Nic>,
    /// Port number at the address; 4420 if absent; none for `loop`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<u16>,
    /// Subsystems reached here, by qualified name.
    pub subsystems: Vec<String>,
    /// Bytes that may travel inside of a command, 0 to 16384.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline_data_bytes: Option<u32>,
    /// Entries of a queue at most, 16 to 1024.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_size_max: Option<u32>,
    /// Queues of the drive that an offloaded port takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload_queues: Option<u32>,
    /// States of ANA groups through this port.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ana: Vec<Ana>,
}

/// How an RDMA card is named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Nic {
    /// The one with the shortest way to the drives that the port exports: `nearest`.
    Nearest,
    /// By its own name or that of one of its network interfaces.
    Named(String),
}

impl From<String> for Nic {
    fn from(text: String) -> Self {
        if text == "nearest" { Self::Nearest } else { Self::Named(text) }
    }
}

impl From<Nic> for String {
    fn from(nic: Nic) -> Self {
        nic.to_string()
    }
}

impl std::fmt::Display for Nic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nearest => "nearest",
            Self::Named(name) => name,
        })
    }
}

/// The state of an ANA group through one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ana {
    /// The group, 1 to 128.
    pub group: u16,
    /// Its state.
    pub state: AnaState,
}

/// The kernel's names of ANA states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum AnaState {
    Optimized,
    NonOptimized,
    Inaccessible,
    PersistentLoss,
    Change,
}

impl AnaState {
    /// The kernel's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non-optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent-loss",
            Self::Change => "change",
        }
    }
}
