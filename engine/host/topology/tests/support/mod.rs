//! Machines as their sysfs shows them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use kvrail_memory::Root;
use kvrail_topology::Map;

/// A machine in a temporary directory.
pub(crate) struct Machine(tempfile::TempDir);

impl Machine {
    /// Nodes with their socket and CPU list.
    pub(crate) fn new(nodes: &[(u32, &str)]) -> Self {
        let machine = Self(tempfile::tempdir().unwrap());
        machine.put("sys/devices/system/cpu/online", "0-63");
        machine.put("proc/self/status", "Cpus_allowed_list:\t0-63\n");
        machine.put("proc/meminfo", "MemAvailable: 1024 kB\n");
        for (node, (socket, cpus)) in nodes.iter().enumerate() {
            machine.put(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
            let first = cpus.split(['-', ',']).next().unwrap();
            let cpu = format!("sys/devices/system/cpu/cpu{first}/topology/physical_package_id");
            machine.put(&cpu, &socket.to_string());
        }
        machine
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    pub(crate) fn link(&self, from: &str, to: &str) {
        let from = self.0.path().join(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(self.0.path().join(to), from).unwrap();
    }

    /// A PCI function below `route`, its node known to its host bridge's child alone.
    pub(crate) fn function(&self, route: &str, node: i32, class: &str) -> String {
        let dir = format!("sys/devices/{route}");
        self.put(&format!("{dir}/numa_node"), &node.to_string());
        self.put(&format!("{dir}/class"), class);
        self.put(&format!("{dir}/vendor"), "0x10de");
        self.put(&format!("{dir}/device"), "0x2335");
        let address = Path::new(route).file_name().unwrap().to_str().unwrap();
        self.link(&format!("sys/bus/pci/devices/{address}"), &dir);
        dir
    }

    pub(crate) fn drive(&self, name: &str, route: &str, node: i32) -> &Self {
        let dir = self.function(route, node, "0x010802");
        let address = Path::new(route).file_name().unwrap().to_str().unwrap();
        let controller = format!("{dir}/nvme/{name}");
        for (file, text) in [
            ("transport", "pcie"),
            ("address", address),
            ("serial", "S123"),
            ("model", "EXAMPLE 1TB"),
            ("firmware_rev", "1.0"),
            ("subsysnqn", "nqn.2026-11.org.example:drive"),
            ("state", "live"),
        ] {
            self.put(&format!("{controller}/{file}"), text);
        }
        self.put(&format!("{controller}/{name}n1/nsid"), "1");
        self.link(&format!("sys/class/nvme/{name}"), &controller);
        for (file, text) in [
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "4"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("max_link_width", "4"),
        ] {
            self.put(&format!("{dir}/{file}"), text);
        }
        self
    }

    pub(crate) fn nic(&self, name: &str, route: &str, node: i32, gid: &str) -> &Self {
        let dir = self.function(route, node, "0x020000");
        self.rdma(name, &format!("{dir}/infiniband/{name}"), gid, "Ethernet");
        self
    }

    pub(crate) fn rdma(&self, name: &str, dir: &str, gid: &str, layer: &str) {
        self.put(&format!("{dir}/hca_type"), "MT4119");
        self.put(&format!("{dir}/board_id"), "MT_0000000008");
        self.put(&format!("{dir}/fw_ver"), "16.35.4030");
        let port = format!("{dir}/ports/1");
        self.put(&format!("{port}/state"), "4: ACTIVE");
        self.put(&format!("{port}/link_layer"), layer);
        self.put(&format!("{port}/rate"), "100 Gb/sec (4X EDR)");
        self.put(&format!("{port}/gids/0"), "fe80:0000:0000:0000:0a00:27ff:fe00:0001");
        self.put(&format!("{port}/gids/1"), gid);
        self.put(&format!("{port}/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000");
        self.put(&format!("{port}/gid_attrs/ndevs/1"), "eth0");
        self.link(&format!("sys/class/infiniband/{name}"), dir);
    }

    pub(crate) fn gpu(&self, route: &str, node: i32) -> &Self {
        let dir = self.function(route, node, "0x030200");
        self.put(
            &format!("{dir}/resource"),
            "0x00000000a0000000 0x00000000a0ffffff 0x0000000000040200\n\
             0x0000200000000000 0x00002003ffffffff 0x000000000014220c",
        );
        let address = Path::new(route).file_name().unwrap().to_str().unwrap();
        let model = format!("proc/driver/nvidia/gpus/{address}/information");
        self.put(&model, "Model: \t\t NVIDIA H200\nIRQ: 5");
        self
    }

    pub(crate) fn map(&self) -> Map {
        Map::read(&Root::new(self.0.path())).unwrap()
    }
}

pub(crate) const GID: &str = "0000:0000:0000:0000:0000:ffff:c000:0201";

/// Root port and switch with three ports, and a root port of its own, on one socket.
pub(crate) fn one_socket() -> Machine {
    let machine = Machine::new(&[(0, "0-31")]);
    let switch = "pci0000:00/0000:00:01.0/0000:01:00.0";
    machine
        .drive("nvme0", &format!("{switch}/0000:02:00.0/0000:03:00.0"), -1)
        .drive("nvme1", "pci0000:00/0000:00:02.0/0000:06:00.0", -1)
        .nic("mlx5_0", &format!("{switch}/0000:02:01.0/0000:04:00.0"), -1, GID)
        .gpu(&format!("{switch}/0000:02:02.0/0000:05:00.0"), -1);
    machine
}
