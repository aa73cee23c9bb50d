//! Faults of a host, one at a time.

use HostPurpose::{Bench, Gpu, Host as Initiator, Serve, Store, Target};
use Verdict::{Failure, Ok, Unseen, Warning};
use kvrail_check::{HostPurpose, Verdict};

use crate::host::{Host, RELEASE};

/// One fault: the check that reports it, for which purpose, its severity, and a word of its text.
pub(crate) type Case = (&'static str, HostPurpose, Verdict, &'static str, fn(&Host));

const NVME: &str = "sys/class/nvme/nvme0";
const QUEUE: &str = "sys/class/block/nvme0n1/queue";
const CARD: &str = "sys/class/infiniband/mlx5_0";

pub(crate) const CASES: &[Case] = &[
    ("kernel-version", Serve, Failure, "5.15", |host| {
        host.put("proc/sys/kernel/osrelease", "5.15.0-generic");
    }),
    ("kernel-version", Bench, Warning, "6.6", |host| {
        host.put("proc/sys/kernel/osrelease", "6.6.1")
    }),
    ("kernel-version", Serve, Unseen, "`odd`", |host| host.put("proc/sys/kernel/osrelease", "odd")),
    ("io-uring-switch", Serve, Failure, "= 2", |host| {
        host.put("proc/sys/kernel/io_uring_disabled", "2");
    }),
    ("io-uring-switch", Serve, Warning, "= 1", |host| {
        host.put("proc/sys/kernel/io_uring_disabled", "1");
    }),
    ("option-io-uring", Serve, Failure, "CONFIG_IO_URING is not set", |host| host.options("X")),
    ("option-hugetlbfs", Serve, Warning, "HUGETLBFS", |host| host.options("IO_URING")),
    ("option-p2pdma", Gpu, Warning, "PCI_P2PDMA", |host| host.options("IO_URING")),
    ("option-p2pdma", Target, Unseen, "no configuration", |host| host.remove("proc/config.gz")),
    ("option-nvme-multipath", Initiator, Warning, "MULTIPATH", |host| host.options("X")),
    ("option-nvme-host-auth", Initiator, Warning, "HOST_AUTH", |host| host.options("X")),
    ("option-nvme-target-auth", Target, Warning, "TARGET_AUTH", |host| host.options("X")),
    ("module-nvme-fabrics", Initiator, Failure, "nvme_fabrics is not", |host| {
        host.remove("sys/module/nvme_fabrics");
    }),
    ("module-nvme-rdma", Initiator, Warning, "not among", |host| {
        host.remove("sys/module/nvme_rdma");
        host.put(&format!("lib/modules/{RELEASE}/modules.dep"), "kernel/nvme-tcp.ko:");
    }),
    ("module-nvme-tcp", Initiator, Warning, "not here", |host| host.remove("sys/module/nvme_tcp")),
    ("module-nvme-loop", Target, Warning, "nvme_loop is", |host| {
        host.remove("sys/module/nvme_loop")
    }),
    ("module-nvmet", Target, Failure, "nvmet is not", |host| host.remove("sys/module/nvmet")),
    ("module-nvmet-rdma", Target, Warning, "nvmet_rdma is", |host| {
        host.remove("sys/module/nvmet_rdma");
    }),
    ("module-nvmet-tcp", Target, Warning, "nvmet_tcp is", |host| {
        host.remove("sys/module/nvmet_tcp")
    }),
    ("configfs", Target, Failure, "not mounted", |host| host.put("proc/self/mountinfo", "")),
    ("hugepages", Serve, Warning, "0 pages of 2 MiB", |host| {
        let home = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        host.put(&format!("{home}/nr_hugepages"), "0");
    }),
    ("hugepages", Serve, Warning, "0 free", |host| {
        let home = "sys/devices/system/node/node0/hugepages/hugepages-2048kB";
        host.put(&format!("{home}/free_hugepages"), "0");
    }),
    ("memlock", Serve, Warning, "8388608 bytes may be pinned, 67108864 are to be", |host| {
        host.put("proc/self/limits", "Max locked memory         8388608    8388608    bytes");
        host.status("0", "0");
    }),
    ("memlock", Store, Warning, "8388608 bytes may be pinned", |host| {
        host.put("proc/self/limits", "Max locked memory         8388608    8388608    bytes");
        host.status("0", "0");
    }),
    ("memlock", Serve, Unseen, "limits", |host| host.remove("proc/self/limits")),
    ("overcommit", Serve, Warning, "= 2", |host| host.put("proc/sys/vm/overcommit_memory", "2")),
    ("distance", Gpu, Warning, "root complex", |host| {
        let far = "sys/devices/pci0000:00/0000:00:02.0/0000:06:00.0";
        host.put(&format!("{far}/nvme/nvme1/serial"), "S2");
        host.put(&format!("{far}/nvme/nvme1/transport"), "pcie");
        host.link("sys/class/nvme/nvme1", &format!("{far}/nvme/nvme1"));
    }),
    ("cores", Serve, Warning, "1 of 1", |host| host.put("sys/devices/system/cpu/online", "0")),
    ("cores", Serve, Warning, "quota", |host| {
        host.put("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw");
        host.put("sys/fs/cgroup/cpu.max", "150000 100000");
    }),
    ("isolated", Serve, Warning, "no CPU", |host| host.put("sys/devices/system/cpu/isolated", "")),
    ("governor", Serve, Warning, "powersave on 1", |host| {
        host.put("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave");
    }),
    ("siblings", Serve, Warning, "one core", |host| {
        host.put("sys/devices/system/cpu/isolated", "4,6");
    }),
    ("cores", Serve, Unseen, "online", |host| host.remove("sys/devices/system/cpu/online")),
    ("drives", Target, Failure, "no local NVMe", |host| host.remove(NVME)),
    ("drives", Serve, Failure, "resetting", |host| host.put(&format!("{NVME}/state"), "resetting")),
    ("firmware", Serve, Warning, "2.0", |host| {
        host.drive("nvme1", "0000:02:03.0/0000:07:00.0", "2.0");
    }),
    ("poll-queues", Bench, Warning, "io_poll 0", |host| host.put(&format!("{QUEUE}/io_poll"), "0")),
    ("scheduler", Serve, Warning, "mq-deadline", |host| {
        host.put(&format!("{QUEUE}/scheduler"), "none [mq-deadline]");
    }),
    ("write-cache", Serve, Warning, "volatile", |host| {
        host.put(&format!("{QUEUE}/write_cache"), "write back");
    }),
    ("p2p-queues", Target, Warning, "= 0", |host| {
        host.put("sys/module/nvme/parameters/num_p2p_queues", "0");
    }),
    ("p2p-queues", Target, Warning, "not the vendor's", |host| {
        host.remove("sys/module/nvme/parameters/num_p2p_queues");
    }),
    ("p2p-memory", Target, Warning, "does not publish", |host| {
        host.put(&format!("{NVME}/cmb"), "cmbloc : 0x00000002\ncmbsz  : 0x0000401b");
    }),
    ("multipath", Initiator, Warning, "N", |host| {
        host.put("sys/module/nvme_core/parameters/multipath", "N");
    }),
    ("file-system", Serve, Failure, "ro", |host| {
        host.put("proc/self/mountinfo", "22 1 259:1 / / ro - ext4 /dev/nvme0n1 rw");
    }),
    ("file-system", Serve, Warning, "overlay", |host| {
        host.put("proc/self/mountinfo", "22 1 0:30 / / rw - overlay overlay rw");
    }),
    ("file-system", Serve, Warning, "nfs4", |host| {
        host.put("proc/self/mountinfo", "22 1 0:30 / /data rw - nfs4 server:/x rw");
    }),
    ("file-system", Gpu, Failure, "data=journal", |host| {
        host.put("proc/self/mountinfo", "22 1 259:1 / / rw - ext4 /dev/nvme0n1 rw,data=journal");
    }),
    ("store-budget", Store, Ok, "no store is configured or named", |_| ()),
    ("file-system", Serve, Unseen, "no mount", |host| host.put("proc/self/mountinfo", "")),
    ("direct-io", Serve, Unseen, "not exist", |host| host.remove("data/kv.img")),
    ("direct-io", Serve, Unseen, "a folder", |host| {
        host.remove("data/kv.img");
        host.put("data/kv.img/inside", "");
    }),
    ("rdma-devices", Target, Warning, "no RDMA", |host| host.remove(CARD)),
    ("rdma-links", Initiator, Warning, "DOWN", |host| {
        host.put(&format!("{CARD}/ports/1/state"), "1: DOWN");
    }),
    ("rdma-addresses", Initiator, Warning, "no address", |host| {
        host.put(&format!("{CARD}/ports/1/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001");
    }),
    ("rdma-offload", Target, Warning, "16.20.1009", |host| {
        host.put(&format!("{CARD}/fw_ver"), "16.20.1009");
    }),
    ("rdma-offload", Target, Warning, "software", |host| {
        host.put(&format!("{CARD}/parent"), "eth0")
    }),
    ("uverbs", Initiator, Warning, "uverbs", |host| host.remove("dev/infiniband/uverbs0")),
    ("vendor-stack", Target, Warning, "own drivers", |host| {
        host.remove("sys/module/mlx5_core/version");
    }),
    ("offload-parameters", Target, Warning, "no offload", |host| {
        host.remove("sys/module/nvmet_rdma/parameters");
    }),
    ("nvme-cli", Initiator, Warning, "not installed", |host| host.remove("usr/sbin/nvme")),
    ("gpus", Gpu, Failure, "no GPU", |host| host.remove("sys/bus/pci/devices/0000:05:00.0")),
    ("gpus", Gpu, Failure, "no driver", |host| {
        host.remove("sys/bus/pci/devices/0000:05:00.0/driver");
    }),
    ("gpu-driver", Gpu, Failure, "not loaded", |host| host.remove("proc/driver/nvidia/version")),
    ("gpu-driver", Gpu, Warning, "proprietary", |host| {
        let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue";
        host.put("proc/driver/nvidia/version", line);
    }),
    ("nvidia-fs", Gpu, Warning, "not loaded", |host| host.remove("sys/module/nvidia_fs")),
    ("cufile-library", Gpu, Warning, "libcufile", |host| host.remove("usr/local/cuda-13.0")),
    ("cufile-configuration", Gpu, Warning, "missing", |host| host.remove("etc/cufile.json")),
    ("cufile-configuration", Gpu, Failure, "no JSON", |host| host.put("etc/cufile.json", "{")),
    ("cufile-configuration", Gpu, Warning, "use_pci_p2pdma false", |host| {
        host.remove("sys/module/nvidia_fs");
        host.put("etc/cufile.json", "{\"properties\": {\"use_pci_p2pdma\": false}}");
    }),
    ("cufile-udev", Gpu, Failure, "b259:1", |host| host.remove("run/udev/data/b259:1")),
    ("cufile-udev", Gpu, Failure, "b259:1", |host| host.put("run/udev/data/b259:1", "E:X=1")),
    ("gpu-p2pdma", Gpu, Warning, "RMForceStaticBar1=1 and", |host| {
        host.put("proc/driver/nvidia/params", "RegistryDwords: \"\"");
    }),
    ("gpu-iommu", Gpu, Warning, "not passed", |host| {
        host.put("proc/cmdline", "quiet");
        host.put("sys/kernel/iommu_groups/1/type", "DMA");
    }),
    ("gpu-bar1", Gpu, Warning, "256 MiB", |host| {
        let file = "sys/bus/pci/devices/0000:05:00.0/resource";
        host.put(file, "0x0 0xffffff 0\n0x10000000 0x1fffffff 0");
    }),
    ("seccomp", Serve, Warning, "mode 2", |host| host.status("0", "2")),
    ("capability-ipc-lock", Serve, Warning, "not held", |host| host.status("0", "0")),
    ("capability-sys-nice", Serve, Warning, "not held", |host| host.status("0", "0")),
    ("capability-sys-admin", Initiator, Failure, "not held", |host| host.status("0", "0")),
    ("capability-sys-admin", Target, Unseen, "CapEff", |host| {
        host.put("proc/self/status", "Cpus_allowed_list:\t0-7");
    }),
    ("node-nvme-fabrics", Initiator, Warning, "nvme-fabrics", |host| {
        host.remove("dev/nvme-fabrics")
    }),
    ("node-gpu", Gpu, Warning, "/dev/nvidia*", |host| host.remove("dev/nvidia0")),
];
