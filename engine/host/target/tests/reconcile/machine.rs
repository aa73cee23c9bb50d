//! A made-up machine: sysfs and procfs of drives and RDMA cards, and a file for each drive. Two
//! sockets; the first has a switch.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use kvrail_memory::Root;

/// Below the switch of the first socket.
pub(crate) const NEAR: &str = "pci0000:00/0000:00:01.0/0000:01:00.0";
/// At the second socket.
pub(crate) const FAR: &str = "pci0000:80";

/// The machine; gone with the value.
pub(crate) struct Machine(tempfile::TempDir);

impl Machine {
    pub(crate) fn new() -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.put("sys/devices/system/cpu/online", "0-3");
        machine.put("proc/self/status", "Cpus_allowed_list:\t0-3\n");
        machine.put("proc/meminfo", "MemAvailable: 1024 kB\n");
        for (socket, cpus) in ["0-1", "2-3"].into_iter().enumerate() {
            machine.put(&format!("sys/devices/system/node/node{socket}/cpulist"), cpus);
            let cpu = format!("sys/devices/system/cpu/cpu{}", socket * 2);
            let package = format!("{cpu}/topology/physical_package_id");
            machine.put(&package, &socket.to_string());
        }
        machine
    }

    pub(crate) fn root(&self) -> Root {
        Root::new(self.0.path())
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn link(&self, from: &str, to: &str) {
        let from = self.0.path().join(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(self.0.path().join(to), from).unwrap();
    }

    /// A PCI function at the end of `route`.
    fn function(&self, route: &str) -> String {
        let device = format!("sys/devices/{route}");
        let node = if route.starts_with(FAR) { "1" } else { "0" };
        self.put(&format!("{device}/numa_node"), node);
        let address = Path::new(route).file_name().unwrap().to_str().unwrap();
        self.link(&format!("sys/bus/pci/devices/{address}"), &device);
        device
    }

    /// A drive with one namespace of 16 MiB of zeros; its node.
    pub(crate) fn drive(&self, name: &str, serial: &str, route: &str) -> PathBuf {
        let device = self.function(route);
        let address = Path::new(route).file_name().unwrap().to_str().unwrap();
        let home = format!("{device}/nvme/{name}");
        for (file, text) in [
            ("address", address),
            ("transport", "pcie"),
            ("serial", serial),
            ("model", "Example"),
            ("firmware_rev", "1.0"),
            ("subsysnqn", &*format!("nqn.2014-08.org.example:{serial}")),
            ("state", "live"),
        ] {
            self.put(&format!("{home}/{file}"), text);
        }
        self.link(&format!("sys/class/nvme/{name}"), &home);
        self.link(&format!("{home}/device"), &device);
        let disk = format!("{name}n1");
        let wwid = format!("eui.{serial}");
        for (file, text) in [("nsid", "1"), ("wwid", &*wwid), ("hidden", "0")] {
            self.put(&format!("{home}/{disk}/{file}"), text);
        }
        self.link(&format!("sys/class/block/{disk}"), &format!("{home}/{disk}"));
        let node = self.0.path().join("dev").join(disk);
        fs::create_dir_all(node.parent().unwrap()).unwrap();
        fs::File::create(&node).unwrap().set_len(16 << 20).unwrap();
        node
    }

    /// An RDMA card with one port that is up, `interface` on it, and these GIDs.
    pub(crate) fn card(&self, name: &str, route: &str, interface: &str, gids: &[&str]) {
        let device = self.function(route);
        let home = format!("{device}/infiniband/{name}");
        let port = format!("{home}/ports/1");
        self.put(&format!("{port}/state"), "4: ACTIVE");
        self.put(&format!("{port}/link_layer"), "Ethernet");
        for (index, gid) in gids.iter().enumerate() {
            self.put(&format!("{port}/gids/{index}"), gid);
            self.put(&format!("{port}/gid_attrs/ndevs/{index}"), interface);
        }
        self.link(&format!("sys/class/infiniband/{name}"), &home);
    }
}
