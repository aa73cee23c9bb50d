//! GPUs: driver, windows, and the settings of peer-to-peer DMA.

use kvrail_topology::{Detail, Device, DeviceKind};

use crate::finding::Verdict;
use crate::machine::{HostPurpose, Machine};
use crate::outcome::Outcome;

/// First release of the open driver with peer-to-peer DMA from drives.
const P2P_DRIVER_MIN: u32 = 565;

/// Options of the driver that P2PDMA needs on x86.
const P2P_SETTINGS: [&str; 2] = ["RMForceStaticBar1=1", "RmForceDisableIomapWC=1"];

/// A window smaller than this cannot hold a client's registered memory.
const BAR1_BYTES_MIN: u64 = 16 << 30;

pub(crate) fn devices(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let found = gpus(machine)?;
    if found.is_empty() {
        let wanted = machine.is_for(HostPurpose::Gpu);
        let verdict = if wanted { Verdict::Failure } else { Verdict::Ok };
        return Ok(vec![Outcome::new(verdict, "this host has no GPU")]);
    }
    let one = |gpu: &&Device| {
        let Detail::Gpu { driver, .. } = &gpu.detail else { return Outcome::ok(gpu.line()) };
        match driver {
            Some(driver) => Outcome::ok(format!("{}, driver {driver}", gpu.line())),
            None => Outcome::failure(format!("{}, no driver has it", gpu.line())),
        }
        .of(&gpu.name)
    };
    Ok(found.iter().map(one).collect())
}

/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build`
pub(crate) fn driver(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let Some(text) = machine.text("proc/driver/nvidia/version")? else {
        let verdict = if gpus(machine)?.is_empty() { Verdict::Ok } else { Verdict::Failure };
        return Ok(vec![Outcome::new(verdict, "the NVIDIA driver is not loaded")]);
    };
    let line = text.lines().next().unwrap_or_default();
    let open = line.contains("Open Kernel Module");
    let is_version = |word: &&str| word.split('.').count() > 1 && major(word).is_some();
    let version = line.split_whitespace().find(is_version).unwrap_or("?");
    let kind = if open { "open" } else { "proprietary" };
    let seen = format!("{version}, {kind} modules");
    let fit = open && major(version).is_some_and(|major| major >= P2P_DRIVER_MIN);
    Ok(vec![if fit { Outcome::ok(seen) } else { Outcome::warning(seen) }])
}

fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

pub(crate) fn nvidia_fs(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    if gpus(machine)?.is_empty() {
        return Ok(Vec::new());
    }
    let module = machine.text("sys/module/nvidia_fs/version")?;
    let stats = machine.text("proc/driver/nvidia-fs/version")?;
    let version = module.or(stats).map(|text| text.lines().next().unwrap_or_default().to_owned());
    Ok(vec![match version {
        Some(version) => Outcome::ok(format!("nvidia-fs {version}")),
        None => Outcome::warning("nvidia-fs is not loaded"),
    }])
}

/// Options of the driver, kernel and NVMe driver that P2PDMA without nvidia-fs needs.
pub(crate) fn p2pdma(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    if gpus(machine)?.is_empty() {
        return Ok(Vec::new());
    }
    let set = machine.field("proc/driver/nvidia/params", "RegistryDwords")?;
    let set = set.unwrap_or_default();
    let missing: Vec<&str> =
        P2P_SETTINGS.into_iter().filter(|setting| !set.contains(setting)).collect();
    let driver = if missing.is_empty() {
        Outcome::ok(format!("RegistryDwords {set}"))
    } else {
        Outcome::warning(format!("the driver runs without {}", missing.join(" and ")))
    };
    let multipath = machine.text("sys/module/nvme_core/parameters/multipath")?;
    let multipath = match multipath.as_deref() {
        Some("Y") => Outcome::warning("nvme_core.multipath Y").with_remedy(
            "options nvme_core multipath=N in /etc/modprobe.d, then rebuild the initramfs and boot",
        ),
        Some(other) => Outcome::ok(format!("nvme_core.multipath {other}")),
        None => Outcome::ok("the NVMe driver is not loaded"),
    };
    Ok(vec![driver.of("driver"), multipath.of("nvme")])
}

/// The IOMMU sends peer-to-peer traffic through the root complex.
pub(crate) fn iommu(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    if gpus(machine)?.is_empty() {
        return Ok(Vec::new());
    }
    let line = machine.text("proc/cmdline")?.unwrap_or_default();
    let groups = machine.root.names("sys/kernel/iommu_groups").len();
    let passes = line.split_whitespace().any(|word| word == "iommu=pt");
    Ok(vec![match (groups, passes) {
        (0, _) => Outcome::ok("no IOMMU is in use"),
        (_, true) => Outcome::ok(format!("{groups} IOMMU groups, passed through (iommu=pt)")),
        (_, false) => Outcome::warning(format!("{groups} IOMMU groups, not passed through")),
    }])
}

pub(crate) fn bar1(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let one = |gpu: &Device| {
        let Detail::Gpu { bar1_bytes, .. } = gpu.detail else { return None };
        let seen = format!("{} MiB", bar1_bytes >> 20);
        let small = bar1_bytes < BAR1_BYTES_MIN;
        Some(if small { Outcome::warning(seen) } else { Outcome::ok(seen) }.of(&gpu.name))
    };
    Ok(machine.map()?.of(DeviceKind::Gpu).filter_map(one).collect())
}

/// No result where there is no GPU.
pub(crate) fn nodes(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let node = || machine.node("dev/nvidia*", Verdict::Warning);
    Ok(gpus(machine)?.first().map(|_| node()).into_iter().collect())
}

pub(crate) fn gpus(machine: &Machine) -> Result<Vec<&Device>, Outcome> {
    Ok(machine.map()?.of(DeviceKind::Gpu).collect())
}
