//! Whether the network card serves a subsystem by itself, and if not, why not.
//!
//! Target offload is a feature of a network card vendor's driver stack; the upstream kernel has
//! none of its attributes and parameters. The public documents of the stack are the source of the
//! rules here.

use serde::Serialize;

use crate::diff::OFFLOAD;
use crate::error::Problem;
use crate::facts::{Device, Facts};
use crate::spec::{Offload, Subsystem, TargetSpec};

/// Server of a subsystem's reads and writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "by", rename_all = "kebab-case")]
pub enum Serving {
    /// The network card.
    Offloaded,
    /// The kernel's target.
    Kernel {
        /// Why not the card.
        why: String,
    },
    /// The card where the stack has it: the tree has no object yet that would show it.
    Unknown,
}

/// The server of one subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The subsystem's name.
    pub subsystem: String,
    /// The requested kind.
    pub asked: Offload,
    /// The server.
    pub serving: Serving,
    /// Namespaces whose transfers go through peer-to-peer memory.
    pub p2p_memory: Vec<u32>,
}

/// A reason against offload.
struct Obstacle {
    key: String,
    value: String,
    rule: String,
    remedy: &'static str,
}

/// Decides for a subsystem at a place of the wish.
///
/// # Errors
/// Every reason, where offload is required.
pub(crate) fn decide(
    wish: &TargetSpec,
    index: usize,
    facts: &Facts,
) -> Result<Serving, Vec<Problem>> {
    let subsystem = &wish.subsystem[index];
    if subsystem.offload == Offload::Off {
        return Ok(Serving::Kernel { why: "offload is \"off\"".into() });
    }
    let reasons = reasons(wish, index, facts);
    match (subsystem.offload, reasons.first()) {
        (_, None) if facts.features.is_none() => Ok(Serving::Unknown),
        (_, None) => Ok(Serving::Offloaded),
        (Offload::Required, Some(_)) => Err(reasons
            .into_iter()
            .map(|lack| Problem::refused(lack.key, lack.value, lack.rule, lack.remedy))
            .collect()),
        (_, Some(first)) => Ok(Serving::Kernel { why: first.rule.clone() }),
    }
}

fn reasons(wish: &TargetSpec, index: usize, facts: &Facts) -> Vec<Obstacle> {
    let mut found = Vec::new();
    let at = format!("target.subsystem.{index}");
    let mut add = |key: String, value: String, rule: &str, remedy: &'static str| {
        found.push(Obstacle { key, value, rule: rule.into(), remedy });
    };
    let required = "\"required\"".to_owned();
    if facts.features.as_ref().is_some_and(|features| !features.subsystem.contains(OFFLOAD)) {
        let rule = "this kernel's target has no attr_offload: offload is in the network card \
                    vendor's driver stack only";
        let remedy = "install the vendor's stack with NVMe-oF support, or set offload to \
                      \"preferred\"";
        add(format!("{at}.offload"), required.clone(), rule, remedy);
    }
    let drives: Vec<&Device> = devices(&wish.subsystem[index], facts);
    if drives.iter().any(|device| device.drive != drives[0].drive) {
        let rule = "all namespaces of an offloaded subsystem lie on one physical drive";
        add(format!("{at}.namespace"), "[...]".into(), rule, "make a subsystem for each drive");
    }
    if let Some(drive) = drives.first() {
        if drive.pci.is_none() {
            let rule = "the drive is not on this host's PCIe, and a card reaches no other";
            let remedy = "export a drive of this host, or set offload = \"off\"";
            add(format!("{at}.namespace.0.device"), drive.identity.clone(), rule, remedy);
        }
        queues(&mut add, couples(wish, drive, facts), drive, facts);
    }
    staging(&mut add, facts);
    found
}

/// The vendor stack's module parameters and their meaning here, in words; none without the stack.
pub(crate) fn parameters(facts: &Facts) -> Option<String> {
    let given = facts.parameters;
    let queues = given.p2p_queues?;
    let staging = match given.staging_start.filter(|&start| start != 0) {
        Some(start) => format!(
            "it stages data in {} MiB at {start:#x}, in buffers of {} KiB (offload_mem_*)",
            given.staging_mib.unwrap_or(0),
            given.staging_buffer_kib.unwrap_or(0)
        ),
        None => "it stages data in memory that the driver takes from the kernel; \
                 offload_mem_start of nvmet_rdma would set some aside"
            .into(),
    };
    Some(format!(
        "offload: the card may take {queues} queue(s) of each drive (nvme num_p2p_queues), one for \
         each pair of port and subsystem; {staging}"
    ))
}

type Add<'a> = dyn FnMut(String, String, &str, &'static str) + 'a;

fn devices<'a>(subsystem: &Subsystem, facts: &'a Facts) -> Vec<&'a Device> {
    let known = |it: &crate::spec::Namespace| {
        facts.devices.get(&it.device.to_string()).and_then(|device| device.as_ref().ok())
    };
    subsystem.namespace.iter().filter_map(known).collect()
}

/// Pairs of a port and an offloaded subsystem on a drive: each takes a queue of it.
fn couples(wish: &TargetSpec, drive: &Device, facts: &Facts) -> usize {
    let on_it = |it: &&Subsystem| {
        it.offload != Offload::Off
            && devices(it, facts).iter().any(|device| device.drive == drive.drive)
    };
    let ports = |subsystem: &Subsystem| {
        wish.port.iter().filter(|port| port.subsystems.contains(&subsystem.nqn)).count()
    };
    wish.subsystem.iter().filter(on_it).map(ports).sum()
}

fn queues(add: &mut Add<'_>, couples: usize, drive: &Device, facts: &Facts) {
    let key = "nvme.num_p2p_queues".to_owned();
    let remedy = "write `options nvme num_p2p_queues=N` into /etc/modprobe.d, N a queue for each \
                  pair of port and subsystem (2 for two paths), and load nvme again";
    let rule = format!(
        "each pair of port and offloaded subsystem takes a queue of the drive: {couples} needed"
    );
    let few = |queues: u32| (queues as usize) < couples.max(1);
    match facts.parameters.p2p_queues {
        None => {
            let rule = "the module nvme has no parameter num_p2p_queues: it is not the vendor's";
            add(key, "none".into(), rule, "install the vendor's stack, its nvme module included");
        }
        Some(queues) if few(queues) => add(key, queues.to_string(), &rule, remedy),
        Some(_) => {
            if let Some(queues) = drive.p2p_queues.filter(|&queues| few(queues)) {
                let rule = format!("{rule}, and the drive gives no more");
                let key = format!("{}/num_p2p_queues", drive.node.display());
                add(key, queues.to_string(), &rule, "use fewer ports, or a drive with more queues");
            }
        }
    }
}

/// The memory through which the card moves data. Without any, the stack takes some by itself.
fn staging(add: &mut Add<'_>, facts: &Facts) {
    let given = facts.parameters;
    let Some(start) = given.staging_start.filter(|&start| start != 0) else { return };
    let key = |name: &str| format!("nvmet_rdma.offload_{name}");
    let mib = given.staging_mib.unwrap_or(0);
    let buffer_kib = given.staging_buffer_kib.unwrap_or(0);
    let reload = "correct it in /etc/modprobe.d and load nvmet_rdma again";
    if mib == 0 {
        let rule = "offload_mem_start names memory, and its size is 0";
        add(key("mem_size"), "0".into(), rule, reload);
    }
    if buffer_kib == 0 || !(mib << 10).is_multiple_of(buffer_kib) {
        let rule = format!("the staging memory ({mib} MiB) must be a multiple of the buffers");
        add(key("buffer_size"), format!("{buffer_kib} KiB"), &rule, reload);
    }
    let end = start.saturating_add(mib << 20);
    if let Some(used) = facts.memory.iter().find(|range| range.start < end && start < range.end) {
        let rule = format!(
            "the staging memory must be memory that the kernel does not use, and it uses \
             {:#x}-{:#x}",
            used.start, used.end
        );
        let remedy = "keep it from the kernel with mem= or memmap= on its command line";
        add(key("mem_start"), format!("{start:#x}"), &rule, remedy);
    }
}
