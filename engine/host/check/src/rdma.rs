//! NICs: links, addresses, and what target offload needs.

use kvrail_topology::{Detail, Device, DeviceKind, RdmaPort};

use crate::finding::Verdict;
use crate::machine::{HostPurpose, Machine};
use crate::outcome::Outcome;

/// The first NIC with NVMe-oF target offload, ConnectX-5, and its first firmware that has it. NICs
/// name themselves by their PCI device number in decimal: MT4119 is 0x1017.
const OFFLOAD_MODEL_MIN: u32 = 4119;
const OFFLOAD_FIRMWARE_MIN: [u32; 3] = [16, 20, 1010];

pub(crate) fn devices(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let found: Vec<&Device> = machine.map()?.of(DeviceKind::Nic).collect();
    if found.is_empty() {
        let wanted = machine.is_for(HostPurpose::Target) || machine.is_for(HostPurpose::Host);
        let verdict = if wanted { Verdict::Warning } else { Verdict::Ok };
        return Ok(vec![Outcome::new(verdict, "this host has no RDMA device")]);
    }
    let one = |nic: &&Device| Outcome::ok(nic.line()).of(&nic.name);
    Ok(found.iter().map(one).collect())
}

pub(crate) fn links(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    ports(machine, |port| {
        let seen = format!("{} {}", port.state, port.rate);
        if port.is_active() { Outcome::ok(seen) } else { Outcome::warning(seen) }
    })
}

pub(crate) fn addresses(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    ports(machine, |port| {
        let words: Vec<String> = port.addresses.iter().map(ToString::to_string).collect();
        let seen = format!("{} GIDs, addresses: {}", port.gids, words.join(" "));
        match (port.is_active(), words.is_empty()) {
            (true, true) => Outcome::warning(format!("{} GIDs, no address", port.gids)),
            _ => Outcome::ok(seen.trim_end_matches([' ', ':']).to_owned()),
        }
    })
}

pub(crate) fn offload(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let one = |nic: &Device| {
        let Detail::Nic { firmware, software_on, .. } = &nic.detail else { return None };
        if software_on.is_some() {
            let seen = "software RDMA: no offload, the CPU does all the work";
            return Some(Outcome::warning(seen).of(&nic.name));
        }
        let seen = format!("{} firmware {firmware}", nic.model);
        let fit = is_offload_model(&nic.model) && is_offload_firmware(firmware);
        Some(if fit { Outcome::ok(seen) } else { Outcome::warning(seen) }.of(&nic.name))
    };
    Ok(machine.map()?.of(DeviceKind::Nic).filter_map(one).collect())
}

/// For programs in user space; no result where there is no device.
pub(crate) fn uverbs(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let any = machine.map()?.of(DeviceKind::Nic).next();
    let node = || machine.node("dev/infiniband/uverbs*", Verdict::Warning);
    Ok(any.map(|_| node()).into_iter().collect())
}

fn is_offload_model(model: &str) -> bool {
    let number = model.split_whitespace().next().and_then(|word| word.strip_prefix("MT"));
    number
        .and_then(|digits| digits.parse::<u32>().ok())
        .is_some_and(|model| model >= OFFLOAD_MODEL_MIN)
}

fn is_offload_firmware(firmware: &str) -> bool {
    let numbers: Vec<u32> = firmware.split('.').map_while(|word| word.parse().ok()).collect();
    numbers.as_slice() >= OFFLOAD_FIRMWARE_MIN.as_slice()
}

fn ports(machine: &Machine, judge: impl Fn(&RdmaPort) -> Outcome) -> Result<Vec<Outcome>, Outcome> {
    let mut found = Vec::new();
    for nic in machine.map()?.of(DeviceKind::Nic) {
        let Detail::Nic { ports, .. } = &nic.detail else { continue };
        let subject = |port: &RdmaPort| format!("{} port {}", nic.name, port.number);
        found.extend(ports.iter().map(|port| judge(port).of(subject(port))));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{is_offload_firmware, is_offload_model};

    #[test]
    fn offload_begins_with_connectx_5_and_its_firmware() {
        for (model, fit) in [
            ("MT4119 MT_0000000008", true),
            ("MT4129", true),
            ("MT41692", true),
            ("MT4117", false),
            ("MT4115 x", false),
            ("BCM57508", false),
            ("", false),
        ] {
            assert_eq!(is_offload_model(model), fit, "{model}");
        }
        for (firmware, fit) in [
            ("16.20.1010", true),
            ("16.20.1009", false),
            ("16.9.9999", false),
            ("28.39.1002", true),
            ("", false),
        ] {
            assert_eq!(is_offload_firmware(firmware), fit, "{firmware}");
        }
    }
}
