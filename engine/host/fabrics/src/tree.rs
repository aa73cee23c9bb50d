//! What is connected, as sysfs shows it: subsystems, their controllers, namespaces and paths.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::str::FromStr;

use kvrail_memory::Root;
use kvrail_nvme::head_of;
use serde::Serialize;

use crate::error::FabricsError;

const SUBSYSTEMS: &str = "/sys/class/nvme-subsystem";
pub(crate) const CONTROLLERS: &str = "/sys/class/nvme";

/// Bytes of a sector in sysfs `size` files, whatever the device's block is.
const SECTOR_BYTES: u64 = 512;

/// One NVMe subsystem of this host: a drive, or what a target exports under one NQN.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Subsystem {
    /// Kernel name, e.g. `nvme-subsys1`.
    pub name: String,
    /// Its NQN.
    pub nqn: String,
    /// Model and serial number.
    pub model: String,
    /// Serial number.
    pub serial: String,
    /// How I/O is spread over paths; none without native multipath.
    pub io_policy: Option<String>,
    /// The connections to it.
    pub controllers: Vec<Controller>,
    /// The devices it gives.
    pub namespaces: Vec<Namespace>,
}

/// One connection to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Controller {
    /// Kernel name, e.g. `nvme2`.
    pub name: String,
    /// `pcie`, `rdma`, `tcp`, `loop`, ...
    pub transport: String,
    /// The kernel's pairs: `traddr`, `trsvcid`, `src_addr`, ...; a PCI address for pcie.
    pub address: String,
    /// `live`, `connecting`, `resetting`, ...
    pub state: String,
    /// This host's name on this connection.
    pub host_nqn: Option<String>,
    /// I/O queues and the admin queue.
    pub queues: Option<u32>,
    /// Keep-alive period in seconds.
    pub keep_alive_s: Option<u32>,
    /// Seconds between attempts to reconnect.
    pub reconnect_delay_s: Option<String>,
    /// Seconds until it is given up; `off` is never.
    pub loss_timeout_s: Option<String>,
    /// Seconds until I/O fails while it reconnects; `off` is never.
    pub fast_io_fail_s: Option<String>,
    /// Whether this host authenticates.
    pub authenticated: bool,
}

/// One namespace: a block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Namespace {
    /// The block device, e.g. `/dev/nvme1n1`.
    pub device: String,
    /// Its number in the subsystem.
    pub nsid: u32,
    /// Its size.
    pub bytes: u64,
    /// The ways to it, one a controller.
    pub paths: Vec<Path>,
}

/// One way to a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Path {
    /// The controller that it goes through.
    pub controller: String,
    /// Asymmetric namespace access: `optimized`, `non-optimized`, `inaccessible`, ...; none where
    /// the subsystem has no such thing.
    pub ana_state: Option<String>,
    /// The group whose state that is.
    pub ana_group: Option<u32>,
}

impl Controller {
    /// Whether it is connected over a fabric, not a local drive.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.transport != "pcie"
    }

    /// One of the pairs of the address.
    #[must_use]
    pub fn pair(&self, key: &str) -> Option<&str> {
        let mut pairs = self.address.split(',').filter_map(|pair| pair.trim().split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
    }
}

/// How I/O is spread over the paths of a subsystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPolicy {
    /// The path of the nearest node.
    Numa,
    /// All optimized paths in turn.
    RoundRobin,
    /// The path with the fewest requests in flight; kernel 6.11 and later.
    QueueDepth,
}

impl fmt::Display for IoPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Numa => "numa",
            Self::RoundRobin => "round-robin",
            Self::QueueDepth => "queue-depth",
        })
    }
}

impl FromStr for IoPolicy {
    type Err = FabricsError;

    fn from_str(text: &str) -> Result<Self, FabricsError> {
        let all = [Self::Numa, Self::RoundRobin, Self::QueueDepth];
        all.into_iter().find(|policy| policy.to_string() == text).ok_or_else(|| {
            let words = format!("--iopolicy `{text}`: no such policy");
            FabricsError::usage(words, "take numa, round-robin or queue-depth")
        })
    }
}

/// Sets the policy of every subsystem with this NQN.
///
/// # Errors
/// There is none, it has no native multipath, or the kernel refuses.
pub fn set_io_policy(root: &Root, nqn: &str, policy: IoPolicy) -> Result<(), FabricsError> {
    let mut found = subsystems(root);
    found.retain(|subsystem| subsystem.nqn == nqn);
    if found.is_empty() {
        let words = format!("--nqn {nqn}: not connected");
        return Err(FabricsError::refused(words, "`kvrail host list` shows what is"));
    }
    for subsystem in found {
        if subsystem.io_policy.is_none() {
            let words =
                format!("{}: this kernel runs NVMe without native multipath", subsystem.name);
            return Err(FabricsError::refused(words, "boot with nvme_core.multipath=Y"));
        }
        let path = root.path(format!("{SUBSYSTEMS}/{}/iopolicy", subsystem.name));
        fs::write(&path, policy.to_string()).map_err(|why| {
            let error = FabricsError::file(&path, &format!("writing {policy} to"), &why);
            let newer = "queue-depth needs kernel 6.11 or later".to_owned();
            let invalid = why.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error());
            FabricsError { remedy: if invalid { newer } else { error.remedy }, ..error }
        })?;
    }
    Ok(())
}

/// All subsystems, in the order of their names. What vanishes while it is read is left out.
#[must_use]
pub fn subsystems(root: &Root) -> Vec<Subsystem> {
    let names = root.names(SUBSYSTEMS);
    names.iter().filter_map(|name| subsystem(root, name)).collect()
}

fn subsystem(root: &Root, name: &str) -> Option<Subsystem> {
    let dir = format!("{SUBSYSTEMS}/{name}");
    let inside = root.names(&dir);
    let controllers: Vec<Controller> = inside
        .iter()
        .filter(|it| is_controller(it))
        .filter_map(|it| controller(root, it))
        .collect();
    let mut heads: BTreeMap<String, Namespace> = BTreeMap::new();
    // With native multipath devices hang below the subsystem, and hidden paths below controllers;
    // without it the device itself hangs below its controller.
    for head in inside.iter().filter(|it| head_of(it).is_some_and(|head| head == **it)) {
        heads.extend(namespace(root, &format!("{dir}/{head}"), head));
    }
    for controller in &controllers {
        let dir = format!("{CONTROLLERS}/{}", controller.name);
        for entry in root.names(&dir) {
            let Some(head) = head_of(&entry) else { continue };
            let place = format!("{dir}/{entry}");
            if !heads.contains_key(&head) {
                heads.extend(namespace(root, &place, &head));
            }
            let Some(known) = heads.get_mut(&head) else { continue };
            known.paths.push(Path {
                controller: controller.name.clone(),
                ana_state: word(root, &format!("{place}/ana_state")),
                ana_group: number(root, &format!("{place}/ana_grpid")),
            });
        }
    }
    Some(Subsystem {
        name: name.to_owned(),
        nqn: word(root, &format!("{dir}/subsysnqn"))?,
        model: word(root, &format!("{dir}/model")).unwrap_or_default(),
        serial: word(root, &format!("{dir}/serial")).unwrap_or_default(),
        io_policy: word(root, &format!("{dir}/iopolicy")),
        controllers,
        namespaces: heads.into_values().collect(),
    })
}

fn controller(root: &Root, name: &str) -> Option<Controller> {
    let file = |file: &str| word(root, &format!("{CONTROLLERS}/{name}/{file}"));
    let count = |file: &str| number(root, &format!("{CONTROLLERS}/{name}/{file}"));
    let secret = file("dhchap_secret").filter(|text| text != "none");
    Some(Controller {
        name: name.to_owned(),
        transport: file("transport")?,
        address: file("address").unwrap_or_default(),
        state: file("state").unwrap_or_else(|| "gone".into()),
        host_nqn: file("hostnqn"),
        queues: count("queue_count"),
        keep_alive_s: count("kato").filter(|seconds| *seconds > 0),
        reconnect_delay_s: file("reconnect_delay"),
        loss_timeout_s: file("ctrl_loss_tmo"),
        fast_io_fail_s: file("fast_io_fail_tmo"),
        authenticated: secret.is_some(),
    })
}

fn namespace(root: &Root, place: &str, head: &str) -> Option<(String, Namespace)> {
    let sectors: u64 = number(root, &format!("{place}/size")).unwrap_or(0);
    let nsid = number(root, &format!("{place}/nsid"))?;
    let device = format!("/dev/{head}");
    let bytes = sectors * SECTOR_BYTES;
    Some((head.to_owned(), Namespace { device, nsid, bytes, paths: Vec::new() }))
}

/// `nvme3`
fn is_controller(name: &str) -> bool {
    name.strip_prefix("nvme").is_some_and(|rest| rest.parse::<u32>().is_ok())
}

/// A file's one line; none where it is missing, empty or vanishing.
fn word(root: &Root, path: &str) -> Option<String> {
    let text = root.text(path).ok().flatten()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn number<T: FromStr>(root: &Root, path: &str) -> Option<T> {
    word(root, path)?.parse().ok()
}
