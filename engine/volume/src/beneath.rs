//! Files that a member rests on: held, so that they are not members themselves at the same time.
//!
//! A file member is locked for us alone, and refused while a loop device is made of it. A member on
//! a loop device, or on a file system that lies on one, shares the lock of the file below: two
//! partitions of one image may be members, the image itself may not. A file that cannot be examined
//! counts as in use.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;

use crate::error::Reason;
use crate::holder::Holder;
use crate::identity::{FileIdentity, identity_of};
use crate::kernel::Kernel;
use crate::patience::{outlive_loops, outlive_the_dead};
use crate::stack::Loop;

/// The files that a device or file rests on, through loop devices. A claim locks them, so a process
/// that sandboxes itself first must keep the right to read them.
#[must_use]
pub fn beneath(path: &Path) -> Vec<PathBuf> {
    let Some(FileIdentity::Block { device } | FileIdentity::File { device, .. }) =
        identity_of(path)
    else {
        return Vec::new();
    };
    Kernel::default().beneath(device).into_iter().map(|beneath| beneath.file).collect()
}

/// Takes the shared locks of everything that a member rests on.
pub(crate) fn hold(kernel: &Kernel, member: FileIdentity) -> Result<Vec<OwnedFd>, Reason> {
    let (FileIdentity::Block { device } | FileIdentity::File { device, .. }) = member;
    let beneath = kernel.beneath(device);
    if matches!(member, FileIdentity::Block { .. }) {
        kernel.unseen(device).map_or(Ok(()), |what| Err(unseen(what)))?;
        outlive_loops(kernel, || check_alone(kernel, &beneath))?;
    }
    let mut held = Vec::with_capacity(beneath.len());
    for file in &beneath {
        held.push(share(kernel, file)?);
    }
    Ok(held)
}

/// Two loop devices of one file are two devices to the kernel: each can be had exclusively.
fn check_alone(kernel: &Kernel, beneath: &[Loop]) -> Result<(), Reason> {
    let twins = |device: &Loop| {
        let file = device.file.display().to_string();
        let named = move |twin: Loop| Holder::Twin { device: twin.name, file: file.clone() };
        kernel.twins(device).into_iter().map(named)
    };
    let holders: Vec<Holder> = beneath.iter().flat_map(twins).collect();
    if holders.is_empty() { Ok(()) } else { Err(Reason::Busy { holders }) }
}

/// Locks the file of a loop device, with others that rest on it.
fn share(kernel: &Kernel, it: &Loop) -> Result<OwnedFd, Reason> {
    let cannot_look = || unseen(it.file.display().to_string());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let identity = it.identity.ok_or_else(cannot_look)?;
    let file = open(&it.file, flags, Mode::empty()).ok().filter(|file| is(file, identity));
    let file = file.ok_or_else(cannot_look)?;
    let attempt = || match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => Err(Reason::Busy { holders: Vec::new() }),
        Err(errno) => Err(Reason::Io { step: "locking the file that it rests on", errno }),
        Ok(()) => Ok(()),
    };
    outlive_the_dead(kernel, identity, attempt).map_err(|reason| match reason {
        Reason::Busy { .. } => Reason::Busy { holders: kernel.lockers_beneath(it) },
        other => other,
    })?;
    Ok(file)
}

/// The reason not to have what rests on something that cannot be looked at.
fn unseen(what: String) -> Reason {
    Reason::Busy { holders: vec![Holder::Unseen { what }] }
}

/// Whether the path still leads to the file that was looked up.
fn is(file: &OwnedFd, identity: FileIdentity) -> bool {
    let found = |device, inode| identity == FileIdentity::File { device, inode };
    fstat(file).is_ok_and(|stat| found(stat.st_dev, stat.st_ino))
}
