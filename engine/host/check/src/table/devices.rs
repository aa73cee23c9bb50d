//! Checks of drives, file systems, NICs, programs, GPUs, and of what a container takes away.

use super::purposes::{ALL, FILES, GPU, HOST, LOCAL, RINGS, STORE, TARGET, WIRE};
use crate::finding::CheckGroup::{Container, FileSystem, Gpu, Nvme, Rdma, Store, Tools};
use crate::finding::Verdict::{Failure, Warning};
use crate::machine::CAP_IPC_LOCK;
use crate::probe::Check;
use crate::probe::Probe::{Capability, Look, Node};
use crate::{container, cufile, filesystem, gpu, nvme, rdma, store, tools};

pub(super) const NVME: &[Check] = &[
    Check {
        id: "drives",
        group: Nvme,
        purposes: LOCAL,
        probe: Look(nvme::drives),
        cost: "nothing to serve or to export",
        remedy: "`dmesg | grep nvme` has the reason why a drive is not live",
    },
    Check {
        id: "firmware",
        group: Nvme,
        purposes: LOCAL,
        probe: Look(nvme::firmware),
        cost: "members of one volume differ in speed and faults",
        remedy: "bring them to one release: nvme fw-download, nvme fw-commit",
    },
    Check {
        id: "poll-queues",
        group: Nvme,
        purposes: RINGS,
        probe: Look(nvme::poll_queues),
        cost: "modes iopoll and sqpoll+iopoll cannot be used: small blocks cost an interrupt each",
        remedy: "options nvme poll_queues=4 in /etc/modprobe.d, then reload or boot",
    },
    Check {
        id: "scheduler",
        group: Nvme,
        purposes: LOCAL,
        probe: Look(nvme::scheduler),
        cost: "each request takes a lock and a queue more",
        remedy: "echo none >/sys/block/NAME/queue/scheduler, and in a udev rule",
    },
    Check {
        id: "write-cache",
        group: Nvme,
        purposes: LOCAL,
        probe: Look(nvme::write_cache),
        cost: "durable writes wait for a flush",
        remedy: "nothing to repair: take drives with power-loss protection for durable writes",
    },
    Check {
        id: "p2p-queues",
        group: Nvme,
        purposes: TARGET,
        probe: Look(nvme::p2p_queues),
        cost: "no target offload: this host's CPU and memory carry remote traffic",
        remedy: "install the vendor's stack with its nvme driver (mlnx-nvme)",
    },
    Check {
        id: "p2p-memory",
        group: Nvme,
        purposes: TARGET,
        probe: Look(nvme::p2p_memory),
        cost: "bytes between drive and network card go through this host's memory",
        remedy: "boot a kernel with CONFIG_PCI_P2PDMA, and see `dmesg | grep CMB`",
    },
    Check {
        id: "multipath",
        group: Nvme,
        purposes: HOST,
        probe: Look(nvme::multipath),
        cost: "each path is a device of its own: a lost path is a lost device",
        remedy: "options nvme_core multipath=Y in /etc/modprobe.d, then boot",
    },
];

pub(super) const STORES: &[Check] = &[
    Check {
        id: "store-endurance",
        group: Store,
        purposes: STORE,
        probe: Look(store::endurance),
        cost: "a drive beyond its rated life fails sooner, and keeps bytes less long",
        remedy: "replace the drive: a store fills itself; until then lower its write_budget",
    },
    Check {
        id: "store-spare",
        group: Store,
        purposes: STORE,
        probe: Look(store::spare),
        cost: "blocks that cannot be read are misses, and the drive may become read-only",
        remedy: "replace the drive: a store fills itself",
    },
    Check {
        id: "store-budget",
        group: Store,
        purposes: STORE,
        probe: Look(store::budget),
        cost: "puts may wear the drive out before its time",
        remedy: "write_budget = \"1dwpd\" in the volume's table, or the data sheet's value",
    },
    Check {
        id: "store-memory",
        group: Store,
        purposes: STORE,
        probe: Look(store::memory),
        cost: "the index of a store is in memory: less of it is left for arenas and engines",
        remedy: "make the store with a larger --block-mean, as long as its blocks are",
    },
    Check {
        id: "store-format",
        group: Store,
        purposes: STORE,
        probe: Look(store::format),
        cost: "the drive does more for each request",
        remedy: "nvme format with the faster format, which erases; then make the store again",
    },
];

pub(super) const FILE_SYSTEMS: &[Check] = &[
    Check {
        id: "file-system",
        group: FileSystem,
        purposes: FILES,
        probe: Look(filesystem::mounts),
        cost: "writes take more steps, or no disk is behind them",
        remedy: "put the volume on ext4, xfs or a block device",
    },
    Check {
        id: "direct-io",
        group: FileSystem,
        purposes: FILES,
        probe: Look(filesystem::direct),
        cost: "every byte goes through the page cache, and is copied",
        remedy: "put the volume on ext4, xfs or a block device",
    },
];

pub(super) const RDMA: &[Check] = &[
    Check {
        id: "rdma-devices",
        group: Rdma,
        purposes: WIRE,
        probe: Look(rdma::devices),
        cost: "only TCP is left",
        remedy: "load the NIC's driver (mlx5_ib), or for a try: rdma link add rxe0 type rxe netdev \
                 X",
    },
    Check {
        id: "rdma-links",
        group: Rdma,
        purposes: WIRE,
        probe: Look(rdma::links),
        cost: "nothing travels through this port",
        remedy: "ip link set INTERFACE up; check the cable and the switch",
    },
    Check {
        id: "rdma-addresses",
        group: Rdma,
        purposes: WIRE,
        probe: Look(rdma::addresses),
        cost: "peers cannot reach this port",
        remedy: "ip address add ADDRESS/LENGTH dev INTERFACE",
    },
    Check {
        id: "rdma-offload",
        group: Rdma,
        purposes: TARGET,
        probe: Look(rdma::offload),
        cost: "no target offload on this NIC",
        remedy: "take a ConnectX-5 or later, with firmware 16.20.1010 or later (mlxfwmanager)",
    },
    Check {
        id: "uverbs",
        group: Rdma,
        purposes: WIRE,
        probe: Look(rdma::uverbs),
        cost: "programs in user space (rping, perftest) cannot use RDMA; the kernel can",
        remedy: "modprobe ib_uverbs; in a container pass /dev/infiniband",
    },
];

pub(super) const TOOLS: &[Check] = &[
    Check {
        id: "vendor-stack",
        group: Tools,
        purposes: TARGET,
        probe: Look(tools::vendor_stack),
        cost: "no target offload",
        remedy: "install DOCA-Host or MLNX_OFED with NVMe-oF (--with-nvmf)",
    },
    Check {
        id: "offload-parameters",
        group: Tools,
        purposes: TARGET,
        probe: Look(tools::offload_parameters),
        cost: "no memory for offload queues: offloaded subsystems are refused",
        remedy: "use the vendor's nvmet-rdma; options nvmet_rdma offload_mem_start=... in \
                 /etc/modprobe.d",
    },
    Check {
        id: "nvme-cli",
        group: Tools,
        purposes: WIRE,
        probe: Look(tools::nvme_cli),
        cost: "no second opinion; kvrail itself needs none",
        remedy: "install nvme-cli",
    },
];

pub(super) const GPUS: &[Check] = &[
    Check {
        id: "gpus",
        group: Gpu,
        purposes: GPU,
        probe: Look(gpu::devices),
        cost: "nothing to move blocks to",
        remedy: "install the GPU's driver; in a container ask for the runtime class nvidia",
    },
    Check {
        id: "gpu-driver",
        group: Gpu,
        purposes: GPU,
        probe: Look(gpu::driver),
        cost: "no direct way from drive to GPU memory: staged through host memory",
        remedy: "install the open kernel modules, release 565 or later",
    },
    Check {
        id: "nvidia-fs",
        group: Gpu,
        purposes: GPU,
        probe: Look(gpu::nvidia_fs),
        cost: "cuFile is direct through P2PDMA only, else it copies",
        remedy: "install nvidia-gds and modprobe nvidia-fs, or set P2PDMA up",
    },
    Check {
        id: "cufile-library",
        group: Gpu,
        purposes: GPU,
        probe: Look(cufile::library),
        cost: "no mechanism direct: staged through host memory",
        remedy: "install libcufile of the CUDA toolkit",
    },
    Check {
        id: "cufile-configuration",
        group: Gpu,
        purposes: GPU,
        probe: Look(cufile::configuration),
        cost: "cuFile falls back to copies where nvidia-fs is not loaded",
        remedy: "set properties.use_pci_p2pdma to true in cufile.json, or load nvidia-fs",
    },
    Check {
        id: "cufile-udev",
        group: Gpu,
        purposes: GPU,
        probe: Look(cufile::udev),
        cost: "cuFile refuses files there with error 5027",
        remedy: "pass /run/udev into the container",
    },
    Check {
        id: "gpu-p2pdma",
        group: Gpu,
        purposes: GPU,
        probe: Look(gpu::p2pdma),
        cost: "no P2PDMA between drives and GPU",
        remedy: "options nvidia \
                 NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\" in \
                 /etc/modprobe.d, then boot",
    },
    Check {
        id: "gpu-iommu",
        group: Gpu,
        purposes: GPU,
        probe: Look(gpu::iommu),
        cost: "peer-to-peer traffic goes up to the root complex and back",
        remedy: "boot with iommu=pt, or intel_iommu=off or amd_iommu=off",
    },
    Check {
        id: "gpu-bar1",
        group: Gpu,
        purposes: GPU,
        probe: Look(gpu::bar1),
        cost: "only this much GPU memory can be registered for direct I/O",
        remedy: "switch on Above 4G Decoding and Resizable BAR in the firmware",
    },
];

pub(super) const CONTAINER: &[Check] = &[
    Check {
        id: "container",
        group: Container,
        purposes: ALL,
        probe: Look(container::kind),
        cost: "",
        remedy: "",
    },
    Check {
        id: "seccomp",
        group: Container,
        purposes: RINGS,
        probe: Look(container::seccomp),
        cost: "default profiles of container engines forbid io_uring",
        remedy: "a profile that allows io_uring_setup, io_uring_enter and io_uring_register",
    },
    Check {
        id: "capability-ipc-lock",
        group: Container,
        purposes: RINGS,
        probe: Capability("CAP_IPC_LOCK", CAP_IPC_LOCK, Warning),
        cost: "registered memory counts against RLIMIT_MEMLOCK; what is beyond is not registered",
        remedy: "--cap-add IPC_LOCK, or --ulimit memlock=-1",
    },
    Check {
        id: "capability-sys-nice",
        group: Container,
        purposes: RINGS,
        probe: Capability("CAP_SYS_NICE", 23, Warning),
        cost: "memory of other nodes cannot be moved, and threads get no priority",
        remedy: "cap_add SYS_NICE",
    },
    Check {
        id: "capability-sys-admin",
        group: Container,
        purposes: WIRE,
        probe: Capability("CAP_SYS_ADMIN", 21, Failure),
        cost: "connections and targets cannot be set up",
        remedy: "run as root on the host; in a container cap_add SYS_ADMIN",
    },
    Check {
        id: "node-nvme-fabrics",
        group: Container,
        purposes: HOST,
        probe: Node("dev/nvme-fabrics", Warning),
        cost: "this host cannot connect to targets",
        remedy: "modprobe nvme-fabrics; in a container pass the device",
    },
    Check {
        id: "node-gpu",
        group: Container,
        purposes: GPU,
        probe: Look(gpu::nodes),
        cost: "programs cannot reach the GPU",
        remedy: "nvidia-modprobe -u; in a container use the runtime class nvidia",
    },
    Check {
        id: "hugepage-mounts",
        group: Container,
        purposes: RINGS,
        probe: Look(container::hugepage_mounts),
        cost: "",
        remedy: "",
    },
];
