//! Replaces a device that was taken away: the same namespace or file, opened again.
//!
//! Examined on the control thread, against the description of the running device. The poller only
//! points its ring to the new file: rings, lanes and registered memory stay as they are.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::contract::Description;
use crate::error::DeviceError;
use crate::removal::Removal;
use crate::replacement::Replacement;
use crate::target::{Io, Target};
use crate::uring::device::UringOptions;
use crate::uring::mode::ModeName;
use crate::uring::sqe::{Block, Nvme, SqeFormat};

/// A replacement for a ring's file.
#[derive(Debug)]
pub(super) struct Successor {
    pub(super) target: Target,
    pub(super) removal: Removal,
    /// The forms of requests, block requests or commands passed through; each with its file where
    /// that is not the target's own.
    wires: Vec<Box<dyn Any + Send>>,
}

impl Successor {
    /// The form of requests of this kind, and their file.
    pub(super) fn wire<W: SqeFormat + Clone>(&self) -> (W, BorrowedFd<'_>) {
        let wires = self.wires.iter();
        let found = wires.filter_map(|wire| wire.downcast_ref::<(W, Option<OwnedFd>)>()).next();
        let (wire, file) = found.expect("examined for the mode of the device that runs");
        (wire.clone(), file.as_ref().map_or(self.target.fd(), AsFd::as_fd))
    }
}

impl Replacement {
    /// Examines a device that came back, for a running one with that description. Its opener has
    /// claimed it and checked that it is the same.
    ///
    /// # Errors
    /// `Unfit` with the first thing in which it differs from the one that ran.
    pub fn examine(running: &Description, options: UringOptions) -> Result<Self, DeviceError> {
        let UringOptions { path, fd, direct, write_stream, tried_block, .. } = options;
        let target = Target::examine_in(&path, fd, direct, tried_block)?;
        let stream = target.stream(write_stream)?;
        let block = Block::open(&target, stream)?;
        let mut request_bytes_max = block.0.request_bytes_max(&target);
        let mut wires: Vec<Box<dyn Any + Send>> = vec![Box::new(block)];
        let mode = running.mode.parse::<ModeName>();
        if mode.is_ok_and(ModeName::passes_through) {
            let nvme = Nvme::open(&target, stream)?;
            request_bytes_max = nvme.0.request_bytes_max(&target);
            wires.push(Box::new(nvme));
        }
        check(running, &target, request_bytes_max)?;
        let removal = Removal::watch(&target);
        Ok(Self::new(Successor { target, removal, wires }))
    }
}

/// Clients and the ring rely on the device's description.
fn check(running: &Description, target: &Target, most: u32) -> Result<(), DeviceError> {
    let refuse = |what: &str, was: u64, is: u64| {
        let what = format!("came back with {what} {is}, it had {was}");
        Err(DeviceError::unfit(
            &target.path,
            &what,
            "give it the format it had, or restart the sidecar",
        ))
    };
    let (block, alignment) = (target.logical_block, target.memory_alignment);
    if running.capacity_bytes != target.capacity_bytes {
        return refuse("bytes:", running.capacity_bytes, target.capacity_bytes);
    }
    if running.logical_block != block {
        return refuse("a logical block of", running.logical_block.into(), block.into());
    }
    if running.memory_alignment < alignment {
        return refuse("a memory alignment of", running.memory_alignment.into(), alignment.into());
    }
    if running.transfer_bytes_max > most {
        return refuse("a largest request of", running.transfer_bytes_max.into(), most.into());
    }
    if (running.io == "direct") != (target.io == Io::Direct) {
        let what = format!("came back without the {} I/O it had", running.io);
        return Err(DeviceError::unfit(&target.path, &what, "restart the sidecar"));
    }
    Ok(())
}
