//! Checks of the kernel, memory and CPUs.

use super::{ALL, HOST, LOCAL, PEER, RINGS, TARGET};
use crate::finding::Group::{Cpu, Kernel, Memory};
use crate::finding::Verdict::{Failure, Warning};
use crate::probe::Check;
use crate::probe::Probe::{Look, Module, Option};
use crate::{cpu, kernel, memory, tools};

pub(super) const KERNEL: &[Check] = &[
    Check {
        id: "kernel-version",
        group: Kernel,
        purposes: ALL,
        probe: Look(kernel::version),
        cost: "older kernels lack ring modes: below 6.1 kvrail does not start",
        remedy: "boot kernel 6.12 or later",
    },
    Check {
        id: "io-uring-switch",
        group: Kernel,
        purposes: RINGS,
        probe: Look(kernel::io_uring_switch),
        cost: "the sidecar cannot make a ring",
        remedy: "sysctl kernel.io_uring_disabled=0",
    },
    Check {
        id: "io-uring-tried",
        group: Kernel,
        purposes: RINGS,
        probe: Look(kernel::io_uring_tried),
        cost: "the sidecar cannot serve",
        remedy: "see the message",
    },
    Check {
        id: "option-io-uring",
        group: Kernel,
        purposes: RINGS,
        probe: Option("IO_URING", Failure),
        cost: "no rings at all",
        remedy: "boot a kernel with CONFIG_IO_URING=y",
    },
    Check {
        id: "option-hugetlbfs",
        group: Kernel,
        purposes: RINGS,
        probe: Option("HUGETLBFS", Warning),
        cost: "registered memory takes hundreds of times more entries",
        remedy: "boot a kernel with CONFIG_HUGETLBFS=y",
    },
    Check {
        id: "option-p2pdma",
        group: Kernel,
        purposes: PEER,
        probe: Option("PCI_P2PDMA", Warning),
        cost: "bytes between drive, NIC and GPU go through this host's memory",
        remedy: "boot a kernel with CONFIG_PCI_P2PDMA=y, or use the vendor's stack",
    },
    Check {
        id: "option-nvme-multipath",
        group: Kernel,
        purposes: HOST,
        probe: Option("NVME_MULTIPATH", Warning),
        cost: "one path to a target: when it goes, I/O fails",
        remedy: "boot a kernel with CONFIG_NVME_MULTIPATH=y",
    },
    Check {
        id: "option-nvme-host-auth",
        group: Kernel,
        purposes: HOST,
        probe: Option("NVME_HOST_AUTH", Warning),
        cost: "no authentication: targets that ask for it refuse this host",
        remedy: "boot a kernel with CONFIG_NVME_HOST_AUTH=y",
    },
    Check {
        id: "option-nvme-target-auth",
        group: Kernel,
        purposes: TARGET,
        probe: Option("NVME_TARGET_AUTH", Warning),
        cost: "no authentication: whoever knows a host's NQN gets its namespaces",
        remedy: "boot a kernel with CONFIG_NVME_TARGET_AUTH=y",
    },
    Check {
        id: "module-nvme-fabrics",
        group: Kernel,
        purposes: HOST,
        probe: Module("nvme_fabrics", Failure),
        cost: "this host cannot connect to any target",
        remedy: "install the kernel's extra modules; modprobe nvme-fabrics",
    },
    Check {
        id: "module-nvme-rdma",
        group: Kernel,
        purposes: HOST,
        probe: Module("nvme_rdma", Warning),
        cost: "no connections over RDMA",
        remedy: "install the kernel's extra modules; modprobe nvme-rdma",
    },
    Check {
        id: "module-nvme-tcp",
        group: Kernel,
        purposes: HOST,
        probe: Module("nvme_tcp", Warning),
        cost: "no connections over TCP",
        remedy: "install the kernel's extra modules; modprobe nvme-tcp",
    },
    Check {
        id: "module-nvmet",
        group: Kernel,
        purposes: TARGET,
        probe: Module("nvmet", Failure),
        cost: "this host cannot export drives",
        remedy: "install the kernel's extra modules; modprobe nvmet",
    },
    Check {
        id: "module-nvmet-rdma",
        group: Kernel,
        purposes: TARGET,
        probe: Module("nvmet_rdma", Warning),
        cost: "no ports over RDMA",
        remedy: "install the kernel's extra modules; modprobe nvmet-rdma",
    },
    Check {
        id: "module-nvmet-tcp",
        group: Kernel,
        purposes: TARGET,
        probe: Module("nvmet_tcp", Warning),
        cost: "no ports over TCP",
        remedy: "install the kernel's extra modules; modprobe nvmet-tcp",
    },
    Check {
        id: "configfs",
        group: Kernel,
        purposes: TARGET,
        probe: Look(tools::configfs),
        cost: "the kernel's target cannot be set up",
        remedy: "mount -t configfs none /sys/kernel/config",
    },
];

pub(super) const MEMORY: &[Check] = &[
    Check {
        id: "hugepages",
        group: Memory,
        purposes: RINGS,
        probe: Look(memory::hugepages),
        cost: "arenas of ordinary pages: more entries, slower registration, slower DMA",
        remedy: "reserve hugepages: vm.nr_hugepages in /etc/sysctl.d",
    },
    Check {
        id: "memlock",
        group: Memory,
        purposes: RINGS,
        probe: Look(memory::memlock),
        cost: "registering memory with rings fails without CAP_IPC_LOCK",
        remedy: "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
    },
    Check {
        id: "overcommit",
        group: Memory,
        purposes: RINGS,
        probe: Look(memory::overcommit),
        cost: "sparse mappings count in full: making large arenas may fail",
        remedy: "sysctl vm.overcommit_memory=0",
    },
    Check {
        id: "distance",
        group: Memory,
        purposes: LOCAL,
        probe: Look(memory::paths),
        cost: "bytes take a longer way than they need",
        remedy: "`kvrail topology` draws the ways",
    },
];

pub(super) const CPU: &[Check] = &[
    Check {
        id: "cores",
        group: Cpu,
        purposes: RINGS,
        probe: Look(cpu::cores),
        cost: "spinning threads take turns, and latency grows to milliseconds",
        remedy: "give the machine or container at least 3 CPUs",
    },
    Check {
        id: "isolated",
        group: Cpu,
        purposes: LOCAL,
        probe: Look(cpu::isolated),
        cost: "other threads interrupt pollers: the tail of latencies grows",
        remedy: "boot with isolcpus=CPUS nohz_full=CPUS rcu_nocbs=CPUS for the pollers' CPUs",
    },
    Check {
        id: "governor",
        group: Cpu,
        purposes: LOCAL,
        probe: Look(cpu::governor),
        cost: "cores slow down between bursts",
        remedy: "cpupower frequency-set -g performance",
    },
    Check {
        id: "siblings",
        group: Cpu,
        purposes: RINGS,
        probe: Look(cpu::siblings),
        cost: "a poller that shares its core gets about half of it",
        remedy: "isolate both threads of a core",
    },
];
