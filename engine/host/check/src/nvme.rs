//! Drives: state, queues, firmware, scheduler, cache.

use kvrail_nvme::Controller;

use crate::finding::Verdict;
use crate::machine::{HostPurpose, Machine};
use crate::outcome::Outcome;

const PARAMETERS: &str = "sys/module/nvme/parameters";

pub(crate) fn drives(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let all = local(machine)?;
    if all.is_empty() {
        let wanted = machine.is_for(HostPurpose::Target) || machine.is_for(HostPurpose::Gpu);
        let verdict = if wanted { Verdict::Failure } else { Verdict::Ok };
        return Ok(vec![Outcome::new(verdict, "this host has no local NVMe drive")]);
    }
    let one = |drive: &&Controller| {
        let seen = format!("{} firmware {}, {}", drive.model, drive.firmware, drive.state);
        let fine = drive.state == "live";
        let outcome = if fine { Outcome::ok(seen) } else { Outcome::failure(seen) };
        outcome.of(&drive.name)
    };
    Ok(all.iter().map(one).collect())
}

/// Drives of one model with different firmware behave differently.
pub(crate) fn firmware(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let all = local(machine)?;
    let mut mixed = Vec::new();
    for (index, drive) in all.iter().enumerate() {
        let other = all[..index].iter().find(|other| other.model == drive.model);
        let Some(other) = other.filter(|other| other.firmware != drive.firmware) else { continue };
        let seen = format!("{}, {} has {}", drive.firmware, other.name, other.firmware);
        mixed.push(Outcome::warning(seen).of(&drive.name));
    }
    if mixed.is_empty() && !all.is_empty() {
        mixed.push(Outcome::ok("drives of one model have one firmware"));
    }
    Ok(mixed)
}

pub(crate) fn poll_queues(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let parameter = machine.text(&format!("{PARAMETERS}/poll_queues"))?;
    queues(machine, "io_poll", |value| {
        let asked = parameter.as_deref().unwrap_or("unknown");
        let seen = format!("io_poll {value}, nvme.poll_queues {asked}");
        if value == "1" { Outcome::ok(seen) } else { Outcome::warning(seen) }
    })
}

pub(crate) fn scheduler(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    queues(machine, "scheduler", |value| match value.split(['[', ']']).nth(1).unwrap_or(value) {
        "none" => Outcome::ok("none"),
        other => Outcome::warning(other),
    })
}

pub(crate) fn write_cache(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    queues(machine, "write_cache", |value| match value {
        "write back" => Outcome::warning("volatile write cache"),
        other => Outcome::ok(other),
    })
}

/// One finding for each namespace's queue file.
fn queues(
    machine: &Machine,
    file: &str,
    judge: impl Fn(&str) -> Outcome,
) -> Result<Vec<Outcome>, Outcome> {
    let mut found = Vec::new();
    for namespace in &machine.host()?.namespaces {
        let path = format!("sys/class/block/{}/queue/{file}", namespace.name);
        if let Some(value) = machine.text(&path)? {
            found.push(judge(&value).of(&namespace.name));
        }
    }
    Ok(found)
}

pub(crate) fn p2p_queues(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let loaded = machine.root.path("sys/module/nvme").exists();
    let value = machine.text(&format!("{PARAMETERS}/num_p2p_queues"))?;
    Ok(vec![match value.as_deref() {
        None if !loaded => Outcome::ok("the nvme module is not loaded"),
        None => Outcome::warning("this nvme driver has no num_p2p_queues: it is not the vendor's"),
        Some("0") => Outcome::warning("num_p2p_queues = 0")
            .with_remedy("options nvme num_p2p_queues=1 (2 for multipath) in /etc/modprobe.d"),
        Some(value) => Outcome::ok(format!("num_p2p_queues = {value}")),
    }])
}

/// Memory of a drive's own (its controller memory buffer), which `p2pmem` of the kernel's target
/// uses where the kernel publishes it. A drive without any is no fault.
pub(crate) fn p2p_memory(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let one = |drive: &&Controller| {
        let published = match drive.pci {
            Some(pci) => machine.text(&format!("sys/bus/pci/devices/{pci}/p2pmem/size"))?,
            None => None,
        };
        let has_buffer = machine.text(&format!("sys/class/nvme/{}/cmb", drive.name))?.is_some();
        Ok(match published {
            Some(bytes) => Outcome::ok(format!("{bytes} bytes of peer-to-peer memory")),
            None if has_buffer => {
                Outcome::warning("a controller memory buffer that the kernel does not publish")
            }
            None => Outcome::ok("no controller memory buffer"),
        }
        .of(&drive.name))
    };
    local(machine)?.iter().map(one).collect()
}

pub(crate) fn multipath(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let value = machine.text("sys/module/nvme_core/parameters/multipath")?;
    Ok(vec![match value.as_deref() {
        None => Outcome::ok("the NVMe driver is not loaded"),
        Some("N") => Outcome::warning("nvme_core.multipath N"),
        Some(value) => Outcome::ok(format!("nvme_core.multipath {value}")),
    }])
}

fn local(machine: &Machine) -> Result<Vec<&Controller>, Outcome> {
    let all = machine.host()?.controllers.iter();
    Ok(all.filter(|controller| controller.transport == "pcie").collect())
}
