//! Grants of the control group: CPUs, CPU time, memory. Versions 2 and 1.
//!
//! A limit may sit on any level, so the whole way from the process's group up to the mount is
//! read and the tightest level counts.

use std::path::{Path, PathBuf};

use super::cpulist::CpuList;
use super::files::{Root, TopologyError};
use super::mounts::Mount;

/// CPU time granted: `quota_us` in every `period_us`, both in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// CPU time in one period.
    pub quota_us: u64,
    /// The period.
    pub period_us: u64,
}

impl CpuQuota {
    /// Whole CPUs it is worth, rounded down: a thread that spins on a part of a CPU stalls.
    #[must_use]
    pub const fn whole_cpus(self) -> u64 {
        self.quota_us / self.period_us
    }

    fn tighter(self, other: Self) -> Self {
        let (mine, theirs) = (self.quota_us, other.quota_us);
        let less = u128::from(theirs) * u128::from(self.period_us)
            < u128::from(mine) * u128::from(other.period_us);
        if less { other } else { self }
    }
}

/// CPUs that the control groups of this process grant; none where nothing limits.
#[derive(Debug, Default)]
pub(super) struct CpuLimits {
    pub(super) cpus: Option<CpuList>,
    pub(super) quota: Option<CpuQuota>,
}

/// Reads what limits the CPUs of the process.
pub(super) fn limits(root: &Root) -> Result<CpuLimits, TopologyError> {
    let Some(Hierarchies { groups, mounts }) = hierarchies(root)? else {
        return Ok(CpuLimits::default());
    };
    let mut limits = CpuLimits::default();
    for (kind, files) in [(Kind::Two, &VERSION_2), (Kind::One("cpuset"), &VERSION_1)] {
        for dir in levels(&groups, &mounts, kind) {
            limits.cpus = match limits.cpus {
                Some(known) => Some(known),
                None => cpus(root, &dir, files.cpus)?,
            };
        }
    }
    for dir in levels(&groups, &mounts, Kind::Two) {
        let quota = quota_2(root, &dir.join("cpu.max"))?;
        limits.quota = tightest(limits.quota, quota, CpuQuota::tighter);
    }
    for dir in levels(&groups, &mounts, Kind::One("cpu")) {
        limits.quota = tightest(limits.quota, quota_1(root, &dir)?, CpuQuota::tighter);
    }
    Ok(limits)
}

/// Bytes that the control groups of this process still grant; none where nothing limits.
pub(super) fn memory_bytes(root: &Root) -> Result<Option<u64>, TopologyError> {
    let Some(Hierarchies { groups, mounts }) = hierarchies(root)? else { return Ok(None) };
    let mut tight = None;
    for (kind, names) in [(Kind::Two, &VERSION_2), (Kind::One("memory"), &VERSION_1)] {
        for dir in levels(&groups, &mounts, kind) {
            tight = tightest(tight, memory(root, &dir, names)?, u64::min);
        }
    }
    Ok(tight)
}

/// Where the process is in which hierarchy.
struct Hierarchies {
    groups: String,
    mounts: Vec<Mount>,
}

fn hierarchies(root: &Root) -> Result<Option<Hierarchies>, TopologyError> {
    let Some(groups) = root.text("proc/self/cgroup")? else { return Ok(None) };
    let table = root.text("proc/self/mountinfo")?.unwrap_or_default();
    // A service of systemd has a hundred others.
    let own = table.lines().filter(|line| line.contains(" - cgroup"));
    let mounts = own.filter_map(Mount::parse).collect();
    Ok(Some(Hierarchies { groups, mounts }))
}

/// Names of the files of one cgroup version.
struct Names {
    cpus: &'static str,
    memory_limit: &'static str,
    memory_used: &'static str,
    /// Fields of `memory.stat` whose pages the kernel gives up when memory is needed.
    reclaimable: &'static [&'static str],
}

const VERSION_2: Names = Names {
    cpus: "cpuset.cpus.effective",
    memory_limit: "memory.max",
    memory_used: "memory.current",
    reclaimable: &["active_file", "inactive_file", "slab_reclaimable"],
};

const VERSION_1: Names = Names {
    cpus: "cpuset.effective_cpus",
    memory_limit: "memory.limit_in_bytes",
    memory_used: "memory.usage_in_bytes",
    reclaimable: &["total_active_file", "total_inactive_file"],
};

#[derive(Clone, Copy)]
enum Kind {
    Two,
    One(&'static str),
}

fn tightest<T>(known: Option<T>, next: Option<T>, tighter: impl Fn(T, T) -> T) -> Option<T> {
    match (known, next) {
        (Some(known), Some(next)) => Some(tighter(known, next)),
        (known, next) => known.or(next),
    }
}

/// Directories of the process's group, itself first, up to where the hierarchy is mounted.
fn levels(groups: &str, mounts: &[Mount], kind: Kind) -> Vec<PathBuf> {
    let group = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match kind {
            Kind::Two => controllers.is_empty(),
            Kind::One(name) => controllers.split(',').any(|other| other == name),
        };
        ours.then_some(Path::new(path))
    });
    let mount = mounts.iter().find(|mount| match kind {
        Kind::Two => mount.kind == "cgroup2",
        Kind::One(name) => mount.kind == "cgroup" && mount.has(name),
    });
    let (Some(group), Some(mount)) = (group, mount) else { return Vec::new() };
    // In a container without a cgroup namespace the group's path begins with the mount's root; a
    // path outside of what is mounted leaves only the mount itself to be read.
    let below = group.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let leaf = mount.point.join(below);
    leaf.ancestors()
        .take_while(|dir| dir.starts_with(&mount.point))
        .map(Path::to_path_buf)
        .collect()
}

fn cpus(root: &Root, dir: &Path, name: &str) -> Result<Option<CpuList>, TopologyError> {
    let list = root.value::<CpuList>(dir.join(name))?;
    Ok(list.filter(|list| !list.is_empty()))
}

/// `max 100000` or `150000 100000`.
fn quota_2(root: &Root, path: &Path) -> Result<Option<CpuQuota>, TopologyError> {
    let Some(text) = root.text(path)? else { return Ok(None) };
    let mut fields = text.split_whitespace();
    let (quota, period) = (fields.next().unwrap_or(""), fields.next().unwrap_or(""));
    if quota == "max" {
        return Ok(None);
    }
    match (quota.parse(), period.parse()) {
        (Ok(quota_us), Ok(period_us)) if period_us > 0 => {
            Ok(Some(CpuQuota { quota_us, period_us }))
        }
        _ => Err(root.malformed(path, format!("`{}` is no CPU quota", text.trim()))),
    }
}

/// Two files; a quota of -1 is no quota.
fn quota_1(root: &Root, dir: &Path) -> Result<Option<CpuQuota>, TopologyError> {
    let quota = root.value::<i64>(dir.join("cpu.cfs_quota_us"))?;
    let period = root.value::<u64>(dir.join("cpu.cfs_period_us"))?;
    let Some(quota_us) = quota.and_then(|quota| u64::try_from(quota).ok()) else { return Ok(None) };
    Ok(period.filter(|period| *period > 0).map(|period_us| CpuQuota { quota_us, period_us }))
}

/// Bytes the group may still take, counting what the kernel would give up for them.
fn memory(root: &Root, dir: &Path, names: &Names) -> Result<Option<u64>, TopologyError> {
    let Some(limit) = root.text(dir.join(names.memory_limit))? else { return Ok(None) };
    // "max", and version 1's PAGE_COUNTER_MAX (about 2^63), mean no limit.
    let Some(limit) = limit.trim().parse().ok().filter(|limit: &u64| *limit < 1 << 62) else {
        return Ok(None);
    };
    let used = root.value::<u64>(dir.join(names.memory_used))?.unwrap_or(0);
    let stat = root.text(dir.join("memory.stat"))?.unwrap_or_default();
    let reclaimable: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.reclaimable.contains(name))
        .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
        .sum();
    Ok(Some(limit.saturating_sub(used.saturating_sub(reclaimable))))
}
