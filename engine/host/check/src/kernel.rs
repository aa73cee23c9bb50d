//! Version and io_uring.

use crate::machine::{Machine, Tried};
use crate::outcome::Outcome;

/// Oldest kernel that kvrail runs on, and the one from which all of it is there.
const OLDEST: (u32, u32) = (6, 1);
const GOOD: (u32, u32) = (6, 12);

pub(crate) fn version(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let release = &machine.release;
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
    let (Some(major), Some(minor)) = (number(), number()) else {
        return Err(Outcome::unseen(format!("release `{release}` is not understood")));
    };
    Ok(vec![match (major, minor) {
        old if old < OLDEST => Outcome::failure(format!("{release}, older than 6.1")),
        middle if middle < GOOD => Outcome::warning(format!("{release}, older than 6.12")),
        _ => Outcome::ok(release.clone()),
    }])
}

pub(crate) fn io_uring_switch(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    let value = machine.text("proc/sys/kernel/io_uring_disabled")?;
    Ok(vec![match value.as_deref() {
        None => Outcome::ok("this kernel has no switch: io_uring is open to all"),
        Some("0") => Outcome::ok("kernel.io_uring_disabled = 0"),
        Some("1") => Outcome::warning("kernel.io_uring_disabled = 1: privileged, or one group")
            .with_remedy("sysctl kernel.io_uring_group=GID of kvrail's group, or ...disabled=0"),
        Some(other) => Outcome::failure(format!("kernel.io_uring_disabled = {other}")),
    }])
}

pub(crate) fn io_uring_tried(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    Ok(vec![match &machine.live.io_uring {
        None => Outcome::unseen("not tried: the root is not this host's"),
        Some(Tried::Works(seen)) => Outcome::ok(seen),
        Some(Tried::Fails { seen, remedy }) => Outcome::failure(seen).with_remedy(remedy),
    }])
}
