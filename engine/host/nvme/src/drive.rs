//! Everything known about one namespace and the drive behind it. Missing values are named, and the
//! rest is there.

use std::path::Path;

use kvrail_memory::{Root, TopologyError};
use serde::Serialize;

use crate::admin::{Admin, AdminError};
use crate::facts::{ControllerFacts, Endurance, NamespaceFacts, SmartLog};
use crate::host::{CONTROLLERS, Controller, Namespace, NvmeHost, head_of};
use crate::link::Link;

/// sysfs counts sizes in these.
const SYSFS_SECTOR_BYTES: u64 = 512;

/// A namespace, by sysfs and the drive.
#[derive(Clone, Debug, Serialize)]
pub struct Drive {
    /// Which it is.
    #[serde(flatten)]
    pub namespace: Namespace,
    /// Data bytes it has.
    pub size_bytes: u64,
    /// Its request queue, as the kernel has set it up.
    pub queue: Option<Queue>,
    /// One for each of its controllers, in their order.
    pub links: Vec<Link>,
    /// By Identify Controller, of its first controller.
    pub controller: Option<ControllerFacts>,
    /// By Identify Namespace.
    pub formats: Option<NamespaceFacts>,
    /// The SMART log of its first controller.
    pub health: Option<SmartLog>,
    /// Its endurance, where it reports one.
    pub endurance: Option<Endurance>,
    /// Values that could not be read.
    pub unseen: Vec<Unseen>,
}

/// Limits that the kernel has set for a disk. `None` where it reports none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Queue {
    /// Unit of addresses and lengths in bytes.
    pub logical_block: Option<u32>,
    /// Metadata bytes beside each block.
    pub metadata_bytes: Option<u32>,
    /// Largest request the hardware takes in bytes.
    pub request_bytes_max: Option<u64>,
    /// Most memory segments of a request.
    pub segments_max: Option<u32>,
    /// `write back`: a flush is needed; `write through`: none is.
    pub write_cache: Option<String>,
    /// Whether one write can be made durable by itself (FUA).
    pub fua: Option<bool>,
    /// Whether completions can be polled for.
    pub polled: Option<bool>,
    /// Bytes that the kernel writes as one whole.
    pub atomic_write_bytes: Option<u64>,
}

/// A value that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unseen {
    /// Its name.
    pub what: &'static str,
    /// Why not, and what to do.
    pub why: String,
}

/// Describes every namespace of a host.
///
/// # Errors
/// `TopologyError` names the file of sysfs without which the namespaces are unknown. Other missing
/// values are in the `unseen` of each drive.
pub fn drives(root: &Root) -> Result<Vec<Drive>, TopologyError> {
    Ok(NvmeHost::read(root)?
        .namespaces
        .into_iter()
        .map(|namespace| describe(namespace, root))
        .collect())
}

/// Describes one namespace.
#[must_use]
pub fn describe(namespace: Namespace, root: &Root) -> Drive {
    let mut drive = Drive {
        size_bytes: 0,
        queue: None,
        links: Vec::new(),
        controller: None,
        formats: None,
        health: None,
        endurance: None,
        unseen: Vec::new(),
        namespace,
    };
    drive.look(root);
    drive.ask(root);
    drive
}

fn queue(root: &Root, disk: &str) -> Result<Queue, TopologyError> {
    let file = |name: &str| format!("{disk}/queue/{name}");
    let flag = |name: &str| Ok(root.value::<u8>(file(name))?.map(|value| value != 0));
    let kib: Option<u64> = root.value(file("max_hw_sectors_kb"))?;
    let atomic: Option<u64> = root.value(file("atomic_write_unit_max_bytes"))?;
    Ok(Queue {
        logical_block: root.value(file("logical_block_size"))?,
        metadata_bytes: root.value(format!("{disk}/metadata_bytes"))?,
        request_bytes_max: kib.map(|kib| kib.saturating_mul(1024)),
        segments_max: root.value(file("max_segments"))?,
        write_cache: root.text(file("write_cache"))?.map(|text| text.trim().to_owned()),
        fua: flag("fua")?,
        polled: flag("io_poll")?,
        atomic_write_bytes: atomic.filter(|bytes| *bytes > 0),
    })
}

impl Drive {
    /// Reads the kernel's files.
    fn look(&mut self, root: &Root) {
        for controller in &self.namespace.controllers {
            let names = root.names(format!("{CONTROLLERS}/{}", controller.name));
            let ours = |name: &String| head_of(name).as_ref() == Some(&self.namespace.name);
            let path = names.into_iter().find(ours).unwrap_or_default();
            match Link::read(root, controller, &path) {
                Ok(link) => self.links.push(link),
                Err(why) => self.unseen.push(Unseen { what: "link", why: why.to_string() }),
            }
        }
        let disk = format!("sys/class/block/{}", self.namespace.name);
        match root.value::<u64>(format!("{disk}/size")) {
            Ok(sectors) => {
                self.size_bytes = sectors.unwrap_or(0).saturating_mul(SYSFS_SECTOR_BYTES)
            }
            Err(why) => self.missed("size", &why.to_string()),
        }
        match queue(root, &disk) {
            Ok(queue) => self.queue = Some(queue),
            Err(why) => self.missed("queue", &why.to_string()),
        }
    }

    /// Sends commands to the drive itself. A controller that is not live would block us until the
    /// driver gives up.
    fn ask(&mut self, root: &Root) {
        let Some(controller) =
            self.namespace.controllers.iter().find(|controller| controller.state == "live")
        else {
            let states = self.namespace.controllers.iter().map(Controller::stated);
            let why = format!("no controller is live: {}", states.collect::<Vec<_>>().join(", "));
            self.unseen.push(Unseen { what: "identity, formats and health", why });
            return;
        };
        let node = root.path(Path::new("dev").join(&controller.name));
        let admin = match Admin::open(&node) {
            Ok(admin) => admin,
            Err(error) => return self.missed("identity, formats and health", &error.to_string()),
        };
        match admin.controller() {
            Ok(raw) => self.controller = Some(ControllerFacts::from(&*raw)),
            Err(error) => self.missed("identity", &error.to_string()),
        }
        let formats = admin.namespace(self.namespace.nsid);
        let formats = formats.map_err(|error: AdminError| error.to_string());
        match formats.and_then(|raw| NamespaceFacts::try_from(&*raw)) {
            Ok(facts) => self.formats = Some(facts),
            Err(why) => self.missed("formats", &why),
        }
        match admin.health() {
            Ok(raw) => self.health = Some(SmartLog::from(&*raw)),
            Err(error) => self.missed("health", &error.to_string()),
        }
        self.ask_endurance(&admin);
    }

    /// Without a group, or a log of its life, the drive has no endurance to report.
    fn ask_endurance(&mut self, admin: &Admin) {
        let group = self.formats.as_ref().and_then(|facts| facts.endurance_group);
        match group.map(|group| admin.endurance(group)) {
            Some(Ok(raw)) => self.endurance = Endurance::of(&raw),
            Some(Err(error)) => self.missed("endurance", &error.to_string()),
            None => {}
        }
    }

    fn missed(&mut self, what: &'static str, why: &str) {
        self.unseen.push(Unseen { what, why: why.to_owned() });
    }
}
