//! Limits of a container.

use crate::machine::{Machine, Tried};
use crate::outcome::Outcome;

/// Files that container engines leave, and words of their control groups.
const MARKS: [&str; 2] = [".dockerenv", "run/.containerenv"];
const GROUPS: [&str; 4] = ["docker", "kubepods", "containerd", "libpod"];

pub(crate) fn kind(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let mark = MARKS.iter().find(|mark| machine.root.path(mark).exists());
    let groups = machine.text("proc/self/cgroup")?.unwrap_or_default();
    let group = GROUPS.iter().find(|name| groups.contains(*name));
    Ok(vec![match (mark, group) {
        (Some(mark), _) => Outcome::ok(format!("in a container (/{mark})")),
        (None, Some(name)) => Outcome::ok(format!("in a container (control group of {name})")),
        (None, None) => Outcome::ok("no sign of a container"),
    }])
}

/// A filter may forbid io_uring; whether it does, only the try shows.
pub(crate) fn seccomp(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let mode = machine.field("proc/self/status", "Seccomp")?;
    let works = matches!(machine.live.io_uring, Some(Tried::Works(_)));
    Ok(vec![match mode.as_deref() {
        None => Outcome::ok("this kernel has no seccomp"),
        Some("0") => Outcome::ok("no filter"),
        Some(mode) if works => Outcome::ok(format!("mode {mode}, io_uring passes it")),
        Some(mode) => Outcome::warning(format!("mode {mode}")),
    }])
}

/// A mount serves only programs that need files in it: kvrail takes a memfd.
pub(crate) fn hugepage_mounts(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let mounts = machine.mounts()?;
    let points: Vec<String> = mounts
        .iter()
        .filter(|mount| mount.kind == "hugetlbfs")
        .map(|mount| mount.point.display().to_string())
        .collect();
    Ok(vec![if points.is_empty() {
        Outcome::ok("no hugetlbfs is mounted; kvrail needs none")
    } else {
        Outcome::ok(format!("hugetlbfs at {}", points.join(" ")))
    }])
}
