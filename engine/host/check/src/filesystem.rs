//! Where files of volumes lie.

use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use kvrail_memory::Mount;

use crate::machine::{HostPurpose, Machine};
use crate::outcome::Outcome;

/// File systems that write in place through O_DIRECT.
const GOOD: [&str; 2] = ["ext4", "xfs"];

/// File systems in memory or stacked on another: no disk is measured or used.
const NO_DISK: [&str; 4] = ["tmpfs", "ramfs", "overlay", "squashfs"];

/// Type and options for each path.
pub(crate) fn mounts(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    each(machine, |machine, path| {
        let mounts = machine.mounts()?;
        let Some(mount) = Mount::of(&mounts, path) else {
            return Ok(Outcome::unseen("no mount holds it"));
        };
        let kind = mount.kind.as_str();
        let point = mount.point.display();
        let seen = format!("{kind} at {point} ({})", mount.options.join(","));
        // ext4 orders by default and then shows no `data=`.
        let journalled = mount.has("data=journal") || mount.has("data=writeback");
        Ok(if mount.has("ro") {
            Outcome::failure(seen).with_remedy(format!("mount -o remount,rw {point}"))
        } else if NO_DISK.contains(&kind) {
            Outcome::warning(seen).with_remedy("put the volume on ext4, xfs or a block device")
        } else if machine.is_for(HostPurpose::Gpu) && journalled {
            Outcome::failure(seen).with_remedy("mount with data=ordered: cuFile takes no other")
        } else if mount.has("sync") || journalled {
            Outcome::warning(seen).with_remedy(format!(
                "mount {point} without sync and with data=ordered: each write goes twice"
            ))
        } else if GOOD.contains(&kind) {
            Outcome::ok(seen)
        } else {
            Outcome::warning(seen)
        })
    })
}

/// Whether an existing file opens with O_DIRECT.
pub(crate) fn direct(machine: &Machine) -> Result<Vec<Outcome>, Outcome> {
    each(machine, |machine, path| {
        let here = machine.root.path(path);
        if !here.exists() {
            return Ok(Outcome::unseen("does not exist yet"));
        }
        // Folders refuse the flag on every file system.
        if here.is_dir() {
            return Ok(Outcome::unseen("a folder: name a file in it"));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK;
        Ok(match open(&here, flags, Mode::empty()) {
            Ok(_) => Outcome::ok("opens with O_DIRECT"),
            Err(Errno::INVAL) => Outcome::failure("does not open with O_DIRECT"),
            Err(why) => Outcome::unseen(format!("cannot be opened: {why}")),
        })
    })
}

/// One outcome a path; nothing where no volume is configured.
fn each(
    machine: &Machine,
    look: impl Fn(&Machine, &Path) -> Result<Outcome, Outcome>,
) -> Result<Vec<Outcome>, Outcome> {
    let files = machine.paths.iter().filter(|path| !path.starts_with("/dev"));
    let one = |path: &std::path::PathBuf| {
        let outcome = look(machine, path).unwrap_or_else(|unseen| unseen);
        outcome.of(path.display().to_string())
    };
    Ok(files.map(one).collect())
}
