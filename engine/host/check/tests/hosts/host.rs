//! A made-up host.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use kvrail_check::{CheckReport, HostPurpose, Live, Machine, examine};
use kvrail_memory::Root;

pub(crate) const RELEASE: &str = "6.12.107-example";
const SWITCH: &str = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";

/// A host in a temporary directory, everything as it should be.
pub(crate) struct Host(pub(crate) tempfile::TempDir);

impl Host {
    pub(crate) fn good() -> Self {
        // Small files by the thousand: in memory, where this machine has a folder for that.
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let host = Self(folder.unwrap());
        host.put("proc/sys/kernel/osrelease", RELEASE);
        host.put("proc/sys/kernel/io_uring_disabled", "0");
        host.put("proc/sys/vm/overcommit_memory", "0");
        host.put("proc/meminfo", "MemAvailable: 1024 kB");
        host.put("proc/cmdline", "quiet iommu=pt");
        host.put("proc/self/limits", "Max locked memory         unlimited    unlimited    bytes");
        host.put("proc/self/cgroup", "0::/");
        host.status("000001ffffffffff", "0");
        host.put("proc/self/mountinfo", MOUNTS);
        host.options(OPTIONS);
        let modules =
            "nvme_rdma nvme_tcp nvme_loop nvme_fabrics nvmet nvmet_tcp nvmet_rdma nvidia_fs";
        modules.split(' ').for_each(|name| host.put(&format!("sys/module/{name}/refcnt"), "0"));
        host.cpus();
        host.drive("nvme0", "0000:02:00.0/0000:03:00.0", "1.0");
        host.nic();
        host.gpu();
        host
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        match path.symlink_metadata().unwrap().is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }

    pub(crate) fn link(&self, from: &str, to: &str) {
        let from = self.path(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(self.path(to), from).unwrap();
    }

    pub(crate) fn status(&self, capabilities: &str, seccomp: &str) {
        let lines = format!("CapEff:\t{capabilities}\nSeccomp:\t{seccomp}");
        self.put("proc/self/status", &format!("Cpus_allowed_list:\t0-7\n{lines}"));
    }

    pub(crate) fn options(&self, options: &str) {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        let lines = options.split(' ').map(|name| format!("CONFIG_{name}=y\n"));
        packed.write_all(lines.collect::<String>().as_bytes()).unwrap();
        self.put("proc/config.gz", "");
        fs::write(self.path("proc/config.gz"), packed.finish().unwrap()).unwrap();
    }

    pub(crate) fn cpus(&self) {
        let cpus = "sys/devices/system/cpu";
        self.put(&format!("{cpus}/online"), "0-7");
        self.put(&format!("{cpus}/isolated"), "4-7");
        for cpu in 0..8 {
            let home = format!("{cpus}/cpu{cpu}");
            self.put(&format!("{home}/cpufreq/scaling_governor"), "performance");
            self.put(&format!("{home}/topology/physical_package_id"), "0");
            let pair = format!("{},{}", cpu & !1, cpu | 1);
            self.put(&format!("{home}/topology/thread_siblings_list"), &pair);
        }
        let node = "sys/devices/system/node/node0";
        self.put(&format!("{node}/cpulist"), "0-7");
        for (file, value) in [("nr_hugepages", "64"), ("free_hugepages", "60")] {
            self.put(&format!("{node}/hugepages/hugepages-2048kB/{file}"), value);
        }
    }

    pub(crate) fn function(&self, route: &str) -> String {
        let dir = format!("{SWITCH}/{route}");
        self.put(&format!("{dir}/numa_node"), "0");
        self.put(&format!("{dir}/class"), "0x010802");
        self.put(&format!("{dir}/vendor"), "0x10de");
        self.put(&format!("{dir}/device"), "0x2335");
        let (_, address) = route.rsplit_once('/').unwrap();
        self.link(&format!("sys/bus/pci/devices/{address}"), &dir);
        dir
    }

    pub(crate) fn drive(&self, name: &str, route: &str, firmware: &str) {
        let dir = format!("{}/nvme/{name}", self.function(route));
        let (_, address) = route.rsplit_once('/').unwrap();
        for (file, text) in [
            ("transport", "pcie"),
            ("address", address),
            ("serial", "S1"),
            ("model", "EXAMPLE"),
            ("firmware_rev", firmware),
            ("state", "live"),
        ] {
            self.put(&format!("{dir}/{file}"), text);
        }
        self.put(&format!("{dir}/{name}n1/nsid"), "1");
        self.link(&format!("sys/class/nvme/{name}"), &dir);
        self.put("sys/module/nvme/parameters/poll_queues", "4");
        self.put("sys/module/nvme/parameters/num_p2p_queues", "2");
        self.put("sys/module/nvme_core/parameters/multipath", "Y");
        for (file, text) in [
            ("io_poll", "1"),
            ("scheduler", "[none] mq-deadline"),
            ("write_cache", "write through"),
        ] {
            self.put(&format!("sys/class/block/{name}n1/queue/{file}"), text);
        }
    }

    pub(crate) fn nic(&self) {
        let dir = format!("{}/infiniband/mlx5_0", self.function("0000:02:01.0/0000:04:00.0"));
        self.put(&format!("{dir}/hca_type"), "MT4119");
        self.put(&format!("{dir}/fw_ver"), "16.35.4030");
        let port = format!("{dir}/ports/1");
        self.put(&format!("{port}/state"), "4: ACTIVE");
        self.put(&format!("{port}/link_layer"), "Ethernet");
        self.put(&format!("{port}/rate"), "100 Gb/sec");
        self.put(&format!("{port}/gids/0"), "0000:0000:0000:0000:0000:ffff:c000:0201");
        self.link("sys/class/infiniband/mlx5_0", &dir);
        self.put("dev/infiniband/uverbs0", "");
        self.put("dev/nvme-fabrics", "");
        self.put("sys/module/mlx5_core/version", "24.10-0.7.0");
        self.put("sys/module/nvmet_rdma/parameters/offload_mem_start", "0x800000000");
        self.program("usr/sbin/nvme", "nvme version 2.13 (git 2.13)");
    }

    pub(crate) fn program(&self, path: &str, says: &str) {
        self.put(path, &format!("#!/bin/sh\necho '{says}'"));
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn gpu(&self) {
        let dir = self.function("0000:02:02.0/0000:05:00.0");
        self.put(&format!("{dir}/class"), "0x030200");
        self.put(&format!("{dir}/resource"), "0x0 0xffffff 0\n0x200000000000 0x203fffffffff 0");
        self.link(&format!("{dir}/driver"), "sys/bus/pci/drivers/nvidia");
        self.put("proc/driver/nvidia/gpus/0000:05:00.0/information", "Model: NVIDIA H200");
        self.put(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
        );
        self.put(
            "proc/driver/nvidia/params",
            "RegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"",
        );
        self.put("sys/module/nvidia_fs/version", "2.30");
        self.put("usr/local/cuda-13.0/lib64/libcufile.so.1.15.0", "");
        let name = "usr/local/cuda-13.0/lib64/libcufile.so";
        self.link(&format!("{name}.0"), &format!("{name}.1.15.0"));
        self.put("etc/cufile.json", "{ // default\n\"properties\": {\"use_pci_p2pdma\": true} }");
        self.put("run/udev/data/b259:1", "E:ID_FS_USAGE=filesystem\nE:ID_FS_TYPE=ext4");
        self.put("dev/nvidia0", "");
        self.put("data/kv.img", "");
    }

    pub(crate) fn report(&self, purpose: Option<HostPurpose>, live: Live) -> CheckReport {
        let paths = vec![PathBuf::from("/data/kv.img")];
        examine(&Machine::read(Root::new(self.0.path()), purpose, paths, live))
    }
}

const OPTIONS: &str =
    "IO_URING HUGETLBFS PCI_P2PDMA NVME_MULTIPATH NVME_HOST_AUTH NVME_TARGET_AUTH";

const MOUNTS: &str = "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1 rw\n\
                      23 22 0:9 / /sys/kernel/config rw - configfs configfs rw\n\
                      24 22 0:10 / /dev/hugepages rw - hugetlbfs hugetlbfs rw";
