//! Files that a member rests on: held, so that they are not members themselves at the same time.
//!
//! A file member is locked for us alone, and refused while a loop device is made of it. A member on
//! a loop device, or on a file system that lies on one, shares the lock of the file below: two
//! partitions of one image may be members, the image itself may not.

use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;

use crate::error::Reason;
use crate::holder::Holder;
use crate::identity::Identity;
use crate::kernel::Kernel;
use crate::patience::{outlive_loops, outlive_the_dead};
use crate::stack::Loop;

/// Takes the shared locks of everything that a member rests on.
pub(crate) fn hold(kernel: &Kernel, member: Identity) -> Result<Vec<OwnedFd>, Reason> {
    let (Identity::Block { device } | Identity::File { device, .. }) = member;
    let beneath = kernel.beneath(device);
    if matches!(member, Identity::Block { .. }) {
        outlive_loops(kernel, || check_alone(kernel, &beneath))?;
    }
    let mut held = Vec::with_capacity(beneath.len());
    for it in &beneath {
        held.extend(share(kernel, it)?);
    }
    Ok(held)
}

/// Two loop devices of one file are two devices to the kernel: each can be had exclusively.
fn check_alone(kernel: &Kernel, beneath: &[Loop]) -> Result<(), Reason> {
    let twins = |it: &Loop| {
        let file = it.file.display().to_string();
        let named = move |twin: Loop| Holder::Twin { device: twin.name, file: file.clone() };
        kernel.twins(it).into_iter().map(named)
    };
    let holders: Vec<Holder> = beneath.iter().flat_map(twins).collect();
    if holders.is_empty() { Ok(()) } else { Err(Reason::Busy { holders }) }
}

/// None where the file may not be read here, and nobody is seen to have it.
fn share(kernel: &Kernel, it: &Loop) -> Result<Option<OwnedFd>, Reason> {
    let attempt = || {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Some(file) = open(&it.file, flags, Mode::empty()).ok().filter(|file| is(file, it))
        else {
            return Ok(None);
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Err(Errno::WOULDBLOCK) => Err(Reason::Busy { holders: Vec::new() }),
            Err(errno) => Err(Reason::Io { step: "locking the file that it rests on", errno }),
            Ok(()) => Ok(Some(file)),
        }
    };
    outlive_the_dead(kernel, it.identity, attempt).map_err(|reason| match reason {
        Reason::Busy { .. } => Reason::Busy { holders: kernel.lockers_beneath(it) },
        other => other,
    })
}

/// Whether the path still leads to the file that was looked up.
fn is(file: &OwnedFd, it: &Loop) -> bool {
    fstat(file)
        .is_ok_and(|stat| it.identity == Identity::File { device: stat.st_dev, inode: stat.st_ino })
}
