//! A made-up host: the part of sysfs and /dev about NVMe, as a 6.12 kernel lays it out.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use kvrail_memory::Root;

/// The host; gone with the value.
pub(crate) struct Fake {
    folder: tempfile::TempDir,
}

/// A controller at a PCIe address.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) name: &'a str,
    pub(crate) pci: &'a str,
    pub(crate) serial: &'a str,
}

impl Fake {
    pub(crate) fn new() -> Self {
        let fake = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(fake.folder.path().join("dev/disk/by-id")).unwrap();
        fake
    }

    pub(crate) fn root(&self) -> Root {
        Root::new(self.folder.path())
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn link(&self, from: &str, to: &Path) {
        let from = self.folder.path().join(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(to, from).unwrap();
    }

    fn class(&self, class: &str, name: &str, directory: &str) {
        let to = self.folder.path().join(directory);
        self.link(&format!("sys/class/{class}/{name}"), &to);
        self.put(&format!("dev/{name}"), "");
    }

    /// A PCIe controller with the attributes that the kernel pads with blanks.
    pub(crate) fn controller(&self, slot: Slot<'_>) {
        let Slot { name, pci, serial } = slot;
        let device = format!("sys/devices/pci0000:00/{pci}");
        let directory = format!("{device}/nvme/{name}");
        for (file, text) in [
            ("address", pci),
            ("transport", "pcie"),
            ("serial", &format!("{serial:<20}")),
            ("model", "Example Drive                           "),
            ("firmware_rev", "1.0     "),
            ("subsysnqn", &format!("nqn.2014-08.org.example:{serial}")),
            ("state", "live"),
            ("numa_node", "1"),
            ("queue_count", "9"),
        ] {
            self.put(&format!("{directory}/{file}"), &format!("{text}\n"));
        }
        self.link(&format!("{directory}/device"), &self.folder.path().join(&device));
        self.class("nvme", name, &directory);
    }

    /// A namespace of one controller.
    pub(crate) fn namespace(&self, slot: Slot<'_>, name: &str, nsid: u32, wwid: &str) {
        let controller = format!("sys/devices/pci0000:00/{}/nvme/{}", slot.pci, slot.name);
        self.disk(&format!("{controller}/{name}"), nsid, wwid, "0");
        self.class("block", name, &format!("{controller}/{name}"));
        self.generic(&controller, name);
    }

    /// A namespace of a subsystem, with a hidden path through each of its controllers.
    pub(crate) fn shared(&self, slots: &[Slot<'_>], subsystem: u32, nsid: u32) {
        let name = format!("nvme{subsystem}n{nsid}");
        let home = format!("sys/devices/virtual/nvme-subsystem/nvme-subsys{subsystem}");
        self.disk(&format!("{home}/{name}"), nsid, "eui.0025385b71b0a1b2", "0");
        self.class("block", &name, &format!("{home}/{name}"));
        self.generic(&home, &name);
        for slot in slots {
            let path = format!("nvme{subsystem}c{}n{nsid}", &slot.name["nvme".len()..]);
            let directory =
                format!("sys/devices/pci0000:00/{}/nvme/{}/{path}", slot.pci, slot.name);
            self.disk(&directory, nsid, "eui.0025385b71b0a1b2", "1");
        }
    }

    pub(crate) fn partition(&self, slot: Slot<'_>, disk: &str, part: &str) {
        let controller = format!("sys/devices/pci0000:00/{}/nvme/{}", slot.pci, slot.name);
        self.put(&format!("{controller}/{disk}/{part}/partition"), "1\n");
        self.class("block", part, &format!("{controller}/{disk}/{part}"));
    }

    fn disk(&self, directory: &str, nsid: u32, wwid: &str, hidden: &str) {
        self.put(&format!("{directory}/nsid"), &format!("{nsid}\n"));
        self.put(&format!("{directory}/wwid"), &format!("{wwid}\n"));
        self.put(&format!("{directory}/hidden"), &format!("{hidden}\n"));
    }

    fn generic(&self, home: &str, disk: &str) {
        let name = disk.replacen("nvme", "ng", 1);
        fs::create_dir_all(self.folder.path().join(format!("{home}/{name}"))).unwrap();
        self.class("nvme-generic", &name, &format!("{home}/{name}"));
    }
}
