//! Isolation, frequency, limits, hardware threads.

use std::collections::BTreeMap;

use kvrail_memory::Near;

use crate::machine::Machine;
use crate::outcome::Outcome;

/// A poller, a client and the kernel: with fewer, spinning threads take turns.
const CORES_MIN: usize = 3;

const CPUS: &str = "sys/devices/system/cpu";

pub(crate) fn isolated(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let isolated = machine.topology()?.isolated();
    Ok(vec![if isolated.is_empty() {
        Outcome::warning("no CPU is isolated")
    } else {
        Outcome::ok(format!("CPUs {isolated}"))
    }])
}

pub(crate) fn cores(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let topology = machine.topology()?;
    let (usable, online) = (topology.usable_cores(), topology.online().len());
    let allowed = topology.allowed();
    let mut seen = format!("{usable} of {online} CPUs can spin at a time, allowed {allowed}");
    if let Some(quota) = topology.quota() {
        let (quota_us, period_us) = (quota.quota_us, quota.period_us);
        seen = format!("{seen}, quota {quota_us} us in {period_us} us");
        let remedy = "lift cpu.max of the control group (in Kubernetes: equal whole-CPU requests \
                      and limits with the static CPU manager)";
        return Ok(vec![Outcome::warning(seen).with_remedy(remedy)]);
    }
    Ok(vec![if usable < CORES_MIN { Outcome::warning(seen) } else { Outcome::ok(seen) }])
}

pub(crate) fn governor(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let mut by_name: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for cpu in machine.topology()?.online().iter() {
        let path = format!("{CPUS}/cpu{cpu}/cpufreq/scaling_governor");
        if let Some(name) = machine.text(&path)? {
            by_name.entry(name).or_default().push(cpu);
        }
    }
    if by_name.is_empty() {
        return Ok(vec![Outcome::ok("the kernel scales no frequencies here")]);
    }
    let outcome = |(name, cpus): (String, Vec<u32>)| {
        let seen = format!("{name} on {} CPUs", cpus.len());
        if name == "performance" { Outcome::ok(seen) } else { Outcome::warning(seen) }
    };
    Ok(by_name.into_iter().map(outcome).collect())
}

pub(crate) fn siblings(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let topology = machine.topology()?;
    // The CPUs that pollers take first.
    let isolated = topology.isolated();
    let allowed = topology.allowed();
    let shared = |cpu: &u32| topology.siblings(*cpu).len() > 1;
    let first = topology.cpus_by_preference(&Near::default()).into_iter().find(shared);
    let Some(cpu) = first else {
        return Ok(vec![Outcome::ok("each core has one hardware thread")]);
    };
    let siblings = topology.siblings(cpu);
    let busy = siblings.without(isolated);
    if isolated.is_empty() || !busy.is_empty() {
        let seen = format!("CPUs {siblings} are one core; a poller there shares it");
        let remedy = format!(
            "isolate both threads of a core, or take the other off: echo 0 >/{CPUS}/cpuN/online \
             (allowed here: {allowed})"
        );
        return Ok(vec![Outcome::warning(seen).with_remedy(remedy)]);
    }
    Ok(vec![Outcome::ok(format!("CPUs {siblings} are one core, both isolated"))])
}
