//! Every check on made-up hosts: what is fine is ok, what is wrong is said with cost and remedy,
//! what cannot be seen is said so.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use kvrail_check::{Finding, Live, Machine, Purpose, Report, Tried, Verdict, examine};
use kvrail_memory::Root;

const RELEASE: &str = "6.12.107-example";
const SWITCH: &str = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";

/// A host in a temporary directory, everything as it should be.
struct Host(tempfile::TempDir);

impl Host {
    fn good() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
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
        let modules = "nvme_rdma nvme_tcp nvme_fabrics nvmet nvmet_tcp nvmet_rdma nvidia_fs";
        modules.split(' ').for_each(|name| host.put(&format!("sys/module/{name}/refcnt"), "0"));
        host.cpus();
        host.drive("nvme0", "0000:02:00.0/0000:03:00.0", "1.0");
        host.nic();
        host.gpu();
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.path(path);
        match path.symlink_metadata().unwrap().is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }

    fn link(&self, from: &str, to: &str) {
        let from = self.path(from);
        fs::create_dir_all(from.parent().unwrap()).unwrap();
        symlink(self.path(to), from).unwrap();
    }

    fn status(&self, capabilities: &str, seccomp: &str) {
        let lines = format!("CapEff:\t{capabilities}\nSeccomp:\t{seccomp}");
        self.put("proc/self/status", &format!("Cpus_allowed_list:\t0-7\n{lines}"));
    }

    fn options(&self, options: &str) {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        let lines = options.split(' ').map(|name| format!("CONFIG_{name}=y\n"));
        packed.write_all(lines.collect::<String>().as_bytes()).unwrap();
        self.put("proc/config.gz", "");
        fs::write(self.path("proc/config.gz"), packed.finish().unwrap()).unwrap();
    }

    fn cpus(&self) {
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

    fn function(&self, route: &str) -> String {
        let dir = format!("{SWITCH}/{route}");
        self.put(&format!("{dir}/numa_node"), "0");
        self.put(&format!("{dir}/class"), "0x010802");
        self.put(&format!("{dir}/vendor"), "0x10de");
        self.put(&format!("{dir}/device"), "0x2335");
        let (_, address) = route.rsplit_once('/').unwrap();
        self.link(&format!("sys/bus/pci/devices/{address}"), &dir);
        dir
    }

    fn drive(&self, name: &str, route: &str, firmware: &str) {
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

    fn nic(&self) {
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

    fn program(&self, path: &str, says: &str) {
        self.put(path, &format!("#!/bin/sh\necho '{says}'"));
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn gpu(&self) {
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

    fn report(&self, purpose: Option<Purpose>, live: Live) -> Report {
        let paths = vec![PathBuf::from("/data/kv.img")];
        examine(&Machine::read(Root::new(self.0.path()), purpose, paths, live))
    }
}

const OPTIONS: &str =
    "IO_URING HUGETLBFS PCI_P2PDMA NVME_MULTIPATH NVME_HOST_AUTH NVME_TARGET_AUTH";

const MOUNTS: &str = "22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/nvme0n1 rw\n\
                      23 22 0:9 / /sys/kernel/config rw - configfs configfs rw\n\
                      24 22 0:10 / /dev/hugepages rw - hugetlbfs hugetlbfs rw";

fn works() -> Live {
    Live { io_uring: Some(Tried::Works("tried".into())), cufile_config: None }
}

const PURPOSES: [Purpose; 5] =
    [Purpose::Serve, Purpose::Target, Purpose::Host, Purpose::Gpu, Purpose::Bench];

fn find<'a>(report: &'a Report, check: &str) -> Vec<&'a Finding> {
    report.findings.iter().filter(|finding| finding.check == check).collect()
}

#[test]
fn on_a_good_host_nothing_is_wrong_but_what_excludes_each_other() {
    let host = Host::good();
    for purpose in PURPOSES {
        let report = host.report(Some(purpose), works());
        let bad: Vec<&Finding> =
            report.findings.iter().filter(|it| it.verdict != Verdict::Ok).collect();
        // Native multipath and P2PDMA exclude each other: a host is for one of them.
        let expected: &[&str] = if purpose == Purpose::Gpu { &["gpu-p2pdma"] } else { &[] };
        let names: Vec<&str> = bad.iter().map(|finding| finding.check).collect();
        assert_eq!(names, expected, "{purpose:?}: {bad:?}");
    }
}

/// One thing wrong: which check says so, for what use, how grave, and a word of what it saw.
type Case = (&'static str, Purpose, Verdict, &'static str, fn(&Host));

use Purpose::{Bench, Gpu, Host as Initiator, Serve, Target};
use Verdict::{Failure, Unseen, Warning};

const NVME: &str = "sys/class/nvme/nvme0";
const QUEUE: &str = "sys/class/block/nvme0n1/queue";
const CARD: &str = "sys/class/infiniband/mlx5_0";

const CASES: &[Case] = &[
    ("kernel-version", Serve, Failure, "5.15", |it| {
        it.put("proc/sys/kernel/osrelease", "5.15.0-generic");
    }),
    ("kernel-version", Bench, Warning, "6.6", |it| it.put("proc/sys/kernel/osrelease", "6.6.1")),
    ("kernel-version", Serve, Unseen, "`odd`", |it| it.put("proc/sys/kernel/osrelease", "odd")),
    ("io-uring-switch", Serve, Failure, "= 2", |it| {
        it.put("proc/sys/kernel/io_uring_disabled", "2");
    }),
    ("io-uring-switch", Serve, Warning, "= 1", |it| {
        it.put("proc/sys/kernel/io_uring_disabled", "1");
    }),
    ("option-io-uring", Serve, Failure, "CONFIG_IO_URING is not set", |it| it.options("X")),
    ("option-hugetlbfs", Serve, Warning, "HUGETLBFS", |it| it.options("IO_URING")),
    ("option-p2pdma", Gpu, Warning, "PCI_P2PDMA", |it| it.options("IO_URING")),
    ("option-p2pdma", Target, Unseen, "no configuration", |it| it.remove("proc/config.gz")),
    ("option-nvme-multipath", Initiator, Warning, "MULTIPATH", |it| it.options("X")),
    ("option-nvme-host-auth", Initiator, Warning, "HOST_AUTH", |it| it.options("X")),
    ("option-nvme-target-auth", Target, Warning, "TARGET_AUTH", |it| it.options("X")),
    ("module-nvme-fabrics", Initiator, Failure, "nvme_fabrics is not", |it| {
        it.remove("sys/module/nvme_fabrics");
    }),
    ("module-nvme-rdma", Initiator, Warning, "not among", |it| {
        it.remove("sys/module/nvme_rdma");
        it.put(&format!("lib/modules/{RELEASE}/modules.dep"), "kernel/nvme-tcp.ko:");
    }),
    ("module-nvme-tcp", Initiator, Warning, "not here", |it| it.remove("sys/module/nvme_tcp")),
    ("module-nvmet", Target, Failure, "nvmet is not", |it| it.remove("sys/module/nvmet")),
    ("module-nvmet-rdma", Target, Warning, "nvmet_rdma is", |it| {
        it.remove("sys/module/nvmet_rdma");
    }),
    ("module-nvmet-tcp", Target, Warning, "nvmet_tcp is", |it| it.remove("sys/module/nvmet_tcp")),
    ("configfs", Target, Failure, "not mounted", |it| it.put("proc/self/mountinfo", "")),
    ("hugepages", Serve, Warning, "0 pages of 2 MiB", |it| {
        let home = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        it.put(&format!("{home}/nr_hugepages"), "0");
    }),
    ("hugepages", Serve, Warning, "0 free", |it| {
        let home = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        it.put(&format!("{home}/free_hugepages"), "0");
    }),
    ("memlock", Serve, Warning, "8 MiB", |it| {
        it.put("proc/self/limits", "Max locked memory         8388608    8388608    bytes");
        it.status("0", "0");
    }),
    ("memlock", Serve, Unseen, "limits", |it| it.remove("proc/self/limits")),
    ("overcommit", Serve, Warning, "= 2", |it| it.put("proc/sys/vm/overcommit_memory", "2")),
    ("distance", Gpu, Warning, "root complex", |it| {
        let far = "sys/devices/pci0000:00/0000:00:02.0/0000:06:00.0";
        it.put(&format!("{far}/nvme/nvme1/serial"), "S2");
        it.put(&format!("{far}/nvme/nvme1/transport"), "pcie");
        it.link("sys/class/nvme/nvme1", &format!("{far}/nvme/nvme1"));
    }),
    ("cores", Serve, Warning, "1 of 1", |it| it.put("sys/devices/system/cpu/online", "0")),
    ("cores", Serve, Warning, "quota", |it| {
        it.put("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
        it.put("sys/fs/cgroup/cpu.max", "150000 100000");
    }),
    ("isolated", Serve, Warning, "no CPU", |it| it.put("sys/devices/system/cpu/isolated", "")),
    ("governor", Serve, Warning, "powersave on 1", |it| {
        it.put("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave");
    }),
    ("siblings", Serve, Warning, "one core", |it| {
        it.put("sys/devices/system/cpu/isolated", "4,6");
    }),
    ("cores", Serve, Unseen, "online", |it| it.remove("sys/devices/system/cpu/online")),
    ("drives", Target, Failure, "no local NVMe", |it| it.remove(NVME)),
    ("drives", Serve, Failure, "resetting", |it| it.put(&format!("{NVME}/state"), "resetting")),
    ("firmware", Serve, Warning, "2.0", |it| {
        it.drive("nvme1", "0000:02:03.0/0000:07:00.0", "2.0");
    }),
    ("poll-queues", Bench, Warning, "io_poll 0", |it| it.put(&format!("{QUEUE}/io_poll"), "0")),
    ("scheduler", Serve, Warning, "mq-deadline", |it| {
        it.put(&format!("{QUEUE}/scheduler"), "none [mq-deadline]");
    }),
    ("write-cache", Serve, Warning, "volatile", |it| {
        it.put(&format!("{QUEUE}/write_cache"), "write back");
    }),
    ("p2p-queues", Target, Warning, "= 0", |it| {
        it.put("sys/module/nvme/parameters/num_p2p_queues", "0");
    }),
    ("p2p-queues", Target, Warning, "not the vendor's", |it| {
        it.remove("sys/module/nvme/parameters/num_p2p_queues");
    }),
    ("multipath", Initiator, Warning, "N", |it| {
        it.put("sys/module/nvme_core/parameters/multipath", "N");
    }),
    ("file-system", Serve, Failure, "ro", |it| {
        it.put("proc/self/mountinfo", "22 1 259:1 / / ro - ext4 /dev/nvme0n1 rw");
    }),
    ("file-system", Serve, Warning, "overlay", |it| {
        it.put("proc/self/mountinfo", "22 1 0:30 / / rw - overlay overlay rw");
    }),
    ("file-system", Serve, Warning, "nfs4", |it| {
        it.put("proc/self/mountinfo", "22 1 0:30 / /data rw - nfs4 server:/x rw");
    }),
    ("file-system", Gpu, Failure, "data=journal", |it| {
        it.put("proc/self/mountinfo", "22 1 259:1 / / rw - ext4 /dev/nvme0n1 rw,data=journal");
    }),
    ("file-system", Serve, Unseen, "no mount", |it| it.put("proc/self/mountinfo", "")),
    ("direct-io", Serve, Unseen, "not exist", |it| it.remove("data/kv.img")),
    ("rdma-devices", Target, Warning, "no RDMA", |it| it.remove(CARD)),
    ("rdma-links", Initiator, Warning, "DOWN", |it| {
        it.put(&format!("{CARD}/ports/1/state"), "1: DOWN");
    }),
    ("rdma-addresses", Initiator, Warning, "no address", |it| {
        it.put(&format!("{CARD}/ports/1/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001");
    }),
    ("rdma-offload", Target, Warning, "16.20.1009", |it| {
        it.put(&format!("{CARD}/fw_ver"), "16.20.1009");
    }),
    ("rdma-offload", Target, Warning, "software", |it| it.put(&format!("{CARD}/parent"), "eth0")),
    ("uverbs", Initiator, Warning, "uverbs", |it| it.remove("dev/infiniband/uverbs0")),
    ("vendor-stack", Target, Warning, "own drivers", |it| {
        it.remove("sys/module/mlx5_core/version");
    }),
    ("offload-parameters", Target, Warning, "no offload", |it| {
        it.remove("sys/module/nvmet_rdma/parameters");
    }),
    ("nvme-cli", Initiator, Warning, "not installed", |it| it.remove("usr/sbin/nvme")),
    ("gpus", Gpu, Failure, "no GPU", |it| it.remove("sys/bus/pci/devices/0000:05:00.0")),
    ("gpus", Gpu, Failure, "no driver", |it| {
        it.remove("sys/bus/pci/devices/0000:05:00.0/driver");
    }),
    ("gpu-driver", Gpu, Failure, "not loaded", |it| it.remove("proc/driver/nvidia/version")),
    ("gpu-driver", Gpu, Warning, "proprietary", |it| {
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue";
        it.put("proc/driver/nvidia/version", line);
    }),
    ("nvidia-fs", Gpu, Warning, "not loaded", |it| it.remove("sys/module/nvidia_fs")),
    ("cufile-library", Gpu, Warning, "libcufile", |it| it.remove("usr/local/cuda-13.0")),
    ("cufile-configuration", Gpu, Warning, "missing", |it| it.remove("etc/cufile.json")),
    ("cufile-configuration", Gpu, Failure, "no JSON", |it| it.put("etc/cufile.json", "{")),
    ("cufile-configuration", Gpu, Warning, "use_pci_p2pdma false", |it| {
        it.remove("sys/module/nvidia_fs");
        it.put("etc/cufile.json", "{\"properties\": {\"use_pci_p2pdma\": false}}");
    }),
    ("cufile-udev", Gpu, Failure, "b259:1", |it| it.remove("run/udev/data/b259:1")),
    ("cufile-udev", Gpu, Failure, "b259:1", |it| it.put("run/udev/data/b259:1", "E:X=1")),
    ("gpu-p2pdma", Gpu, Warning, "RMForceStaticBar1=1 and", |it| {
        it.put("proc/driver/nvidia/params", "RegistryDwords: \"\"");
    }),
    ("gpu-iommu", Gpu, Warning, "not passed", |it| {
        it.put("proc/cmdline", "quiet");
        it.put("sys/kernel/iommu_groups/1/type", "DMA");
    }),
    ("gpu-bar1", Gpu, Warning, "256 MiB", |it| {
        let file = "sys/bus/pci/devices/0000:05:00.0/resource";
        it.put(file, "0x0 0xffffff 0\n0x10000000 0x1fffffff 0");
    }),
    ("seccomp", Serve, Warning, "mode 2", |it| it.status("0", "2")),
    ("capability-ipc-lock", Serve, Warning, "not held", |it| it.status("0", "0")),
    ("capability-sys-nice", Serve, Warning, "not held", |it| it.status("0", "0")),
    ("capability-sys-admin", Initiator, Failure, "not held", |it| it.status("0", "0")),
    ("capability-sys-admin", Target, Unseen, "CapEff", |it| {
        it.put("proc/self/status", "Cpus_allowed_list:\t0-7");
    }),
    ("node-nvme-fabrics", Initiator, Warning, "nvme-fabrics", |it| it.remove("dev/nvme-fabrics")),
    ("node-gpu", Gpu, Warning, "/dev/nvidia*", |it| it.remove("dev/nvidia0")),
];

#[test]
fn each_thing_that_is_wrong_is_found_with_cost_and_remedy() {
    for (check, purpose, verdict, words, harm) in CASES {
        let host = Host::good();
        harm(&host);
        // Whether a filter lets io_uring pass, only a try tells: here nothing was tried.
        let report = host.report(Some(*purpose), Live::default());
        let found = find(&report, check);
        let hit = found.iter().find(|it| it.verdict == *verdict && it.seen.contains(words));
        let hit = hit.unwrap_or_else(|| panic!("{check} {verdict:?} `{words}`: {found:?}"));
        if *verdict > Unseen {
            assert!(hit.cost.is_some_and(|cost| cost.len() > 10), "{hit:?}");
            assert!(hit.remedy.as_ref().is_some_and(|remedy| remedy.len() > 10), "{hit:?}");
        }
    }
}

#[test]
fn every_check_that_can_complain_has_a_case() {
    let report = Host::good().report(None, works());
    // These three only tell.
    let telling = ["container", "hugepage-mounts", "direct-io", "io-uring-tried"];
    for finding in &report.findings {
        let told = telling.contains(&finding.check);
        let tried = CASES.iter().any(|(check, ..)| *check == finding.check);
        assert!(told || tried, "{} has no case", finding.check);
    }
}

#[test]
fn the_try_of_io_uring_is_believed() {
    let host = Host::good();
    let fails = Tried::Fails { seen: "EPERM".into(), remedy: "allow io_uring_setup".into() };
    let report = host.report(Some(Serve), Live { io_uring: Some(fails), cufile_config: None });
    let found = find(&report, "io-uring-tried")[0];
    assert_eq!((found.verdict, found.seen.as_str()), (Failure, "EPERM"));
    assert_eq!(found.remedy.as_deref(), Some("allow io_uring_setup"));
    assert_eq!(report.worst(), Failure);
    host.status("000001ffffffffff", "2");
    let report = host.report(Some(Serve), works());
    assert!(find(&report, "seccomp")[0].seen.contains("io_uring passes"));
}

#[test]
fn without_a_use_only_what_the_sidecar_needs_fails() {
    let host = Host::good();
    host.remove("sys/module/nvmet");
    let report = host.report(None, works());
    assert_eq!(find(&report, "module-nvmet")[0].verdict, Warning);
    host.put("proc/sys/kernel/io_uring_disabled", "2");
    let report = host.report(None, works());
    assert_eq!(find(&report, "io-uring-switch")[0].verdict, Failure);
}

#[test]
fn an_empty_root_is_all_unseen_or_absent_and_never_a_panic() {
    let empty = tempfile::tempdir().unwrap();
    for purpose in PURPOSES {
        let root = Root::new(empty.path());
        let report = examine(&Machine::read(root, Some(purpose), Vec::new(), Live::default()));
        assert!(report.count(Unseen) > 1, "{purpose:?}");
    }
}

#[test]
fn modules_may_be_loadable_or_built_in() {
    let host = Host::good();
    host.remove("sys/module/nvme_tcp");
    for (list, line) in [
        ("lib/modules/6.12.107-example/modules.dep", "kernel/drivers/nvme/host/nvme-tcp.ko.xz: a"),
        (
            "usr/lib/modules/6.12.107-example/modules.builtin",
            "kernel/drivers/nvme/host/nvme-tcp.ko",
        ),
    ] {
        host.put(list, line);
        let report = host.report(Some(Initiator), works());
        assert!(find(&report, "module-nvme-tcp")[0].seen.contains("can be loaded"));
        host.remove(list);
    }
}

#[test]
fn options_come_from_any_of_their_homes() {
    let host = Host::good();
    host.remove("proc/config.gz");
    host.put(&format!("boot/config-{RELEASE}"), "# CONFIG_X is not set\nCONFIG_PCI_P2PDMA=y");
    let report = host.report(Some(Gpu), works());
    assert_eq!(find(&report, "option-p2pdma")[0].seen, "CONFIG_PCI_P2PDMA=y");
}

#[test]
fn a_configuration_of_cufile_may_be_elsewhere() {
    let host = Host::good();
    host.put("opt/cufile.json", "{}");
    let live = Live { cufile_config: Some(PathBuf::from("/opt/cufile.json")), ..works() };
    let report = host.report(Some(Gpu), live);
    assert!(find(&report, "cufile-configuration")[0].seen.starts_with("/opt/cufile.json"));
}

#[test]
fn nothing_below_the_root_is_changed() {
    let host = Host::good();
    let before = listing(host.0.path());
    host.report(None, works());
    assert_eq!(listing(host.0.path()), before);
}

/// Every path with its length and time of change.
fn listing(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.path().symlink_metadata().unwrap();
        let (path, modified) = (entry.path(), meta.modified().unwrap());
        all.push(format!("{} {} {modified:?}", path.display(), meta.len()));
        if meta.is_dir() {
            all.extend(listing(&path));
        }
    }
    all.sort();
    all
}
