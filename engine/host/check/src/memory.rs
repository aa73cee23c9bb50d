//! Hugepages and limits.

use std::collections::BTreeSet;

use kvrail_memory::pin_remedy;
use kvrail_topology::DeviceKind;

use crate::machine::{CAP_IPC_LOCK, Machine};
use crate::outcome::Outcome;

/// Bytes that a client's smallest private arena pins with each ring: those of ordinary memory.
const ARENA_BYTES: u64 = 16 << 20;

/// Bytes that a sidecar with one small client pins where no store is known.
const PINNED_BYTES_MIN: u64 = 64 << 20;

pub(crate) fn hugepages(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let pools = machine.topology()?.hugepages();
    if pools.is_empty() {
        return Ok(vec![Outcome::warning("this kernel has no hugepages")]);
    }
    let bare = pools.iter().all(|pool| pool.total == 0);
    // Nodes with a device should have pages of their own.
    let devices = machine.map().map(|map| map.devices.as_slice()).unwrap_or_default();
    let used: BTreeSet<u32> = devices.iter().filter_map(|device| device.place.node).collect();
    let one = |pool: &kvrail_memory::HugePages| {
        let size = pool.page_bytes >> 20;
        let seen = format!("{} pages of {size} MiB, {} free", pool.total, pool.free);
        let node_is_bare =
            pools.iter().filter(|other| other.node == pool.node).all(|other| other.total == 0);
        let remedy = format!(
            "echo N >/sys/devices/system/node/node{}/hugepages/hugepages-2048kB/nr_hugepages, or \
             vm.nr_hugepages in /etc/sysctl.d",
            pool.node
        );
        let wanting = bare || (node_is_bare && used.contains(&pool.node));
        let usual = pool.page_bytes == 2 << 20;
        let outcome = match (wanting && usual, pool.total > 0 && pool.free == 0) {
            (true, _) | (_, true) => Outcome::warning(seen).with_remedy(remedy),
            (false, false) => Outcome::ok(seen),
        };
        outcome.of(format!("node {}", pool.node))
    };
    Ok(pools.iter().map(one).collect())
}

pub(crate) fn memlock(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let text = machine.text("proc/self/limits")?;
    let text = text.ok_or_else(|| Outcome::unseen("no /proc/self/limits"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let soft = line.and_then(|line| line.split_whitespace().next());
    let soft = soft.ok_or_else(|| Outcome::unseen("/proc/self/limits has no such limit"))?;
    let Ok(bytes) = soft.parse::<u64>() else { return Ok(vec![Outcome::ok("unlimited")]) };
    let seen = format!("{} MiB", bytes >> 20);
    if machine.holds(CAP_IPC_LOCK)? == Some(true) {
        return Ok(vec![Outcome::ok(format!("{seen}, which CAP_IPC_LOCK lifts"))]);
    }
    let needed = pinned_bytes(machine);
    let seen = format!("{bytes} bytes may be pinned, {needed} are to be");
    Ok(vec![if bytes < needed {
        Outcome::warning(seen).with_remedy(pin_remedy(needed))
    } else {
        Outcome::ok(seen)
    }])
}

/// Bytes registered with rings: the buffers of all stores, and an arena with each of their rings.
fn pinned_bytes(machine: &Machine) -> u64 {
    let stores = &machine.live.stores;
    let each = stores.iter().map(|store| store.pinned_bytes + ARENA_BYTES);
    each.sum::<u64>().max(PINNED_BYTES_MIN)
}

pub(crate) fn overcommit(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let value = machine.text("proc/sys/vm/overcommit_memory")?;
    let value = value.ok_or_else(|| Outcome::unseen("no vm.overcommit_memory"))?;
    let seen = format!("vm.overcommit_memory = {value}");
    Ok(vec![if value == "2" { Outcome::warning(seen) } else { Outcome::ok(seen) }])
}

/// How far drives are from what they feed: the map's own warnings.
pub(crate) fn paths(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let map = machine.map()?;
    let warnings: Vec<Outcome> = map.warnings().into_iter().map(Outcome::warning).collect();
    if !warnings.is_empty() {
        return Ok(warnings);
    }
    let count = |kind| map.of(kind).count();
    let (drives, nics, gpus) =
        (count(DeviceKind::Drive), count(DeviceKind::Nic), count(DeviceKind::Gpu));
    Ok(vec![Outcome::ok(format!("{drives} drives, {nics} RDMA NICs, {gpus} GPUs, none far"))])
}
