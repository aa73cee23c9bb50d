//! What takes the place of a device that was taken away: the same namespace or file, opened anew.
//!
//! Examined on the control thread, against what the running device says of itself. The poller only
//! points the ring it has to the new file: rings, lanes and registered memory stay as they are.

use std::os::fd::OwnedFd;

use crate::contract::Description;
use crate::error::DeviceError;
use crate::removal::Removal;
use crate::target::{Io, Target, unfit};
use crate::uring::{Block, ModeName, Nvme, UringOptions, Wire};

/// A device that may go on where another one ended. After `Device::replace` it holds what the ring
/// had before.
#[derive(Debug)]
pub struct Replacement {
    pub(crate) target: Target,
    pub(crate) removal: Removal,
    pub(crate) block: Block,
    /// For modes that pass commands through, with the character device.
    pub(crate) nvme: Option<(Nvme, OwnedFd)>,
}

impl Replacement {
    /// Examines a device that came back, for a running one with that description. Whoever opened
    /// it has claimed it and checked that it is the same.
    ///
    /// # Errors
    /// `Unfit` with the first thing in which it differs from the one that ran.
    pub fn examine(running: &Description, options: UringOptions) -> Result<Self, DeviceError> {
        let UringOptions { path, fd, direct, write_stream, .. } = options;
        let target = Target::examine(&path, fd, direct)?;
        let stream = target.stream(write_stream)?;
        let (block, _) = Block::open(&target, stream)?;
        let mode = running.mode.parse::<ModeName>();
        let nvme = match mode.map(ModeName::passes_through) {
            Ok(true) => {
                let (wire, file) = Nvme::open(&target, stream)?;
                file.map(|file| (wire, file))
            }
            _ => None,
        };
        let request_bytes_max = match &nvme {
            Some((wire, _)) => wire.request_bytes_max(&target),
            None => block.request_bytes_max(&target),
        };
        check(running, &target, request_bytes_max)?;
        let removal = Removal::watch(&target);
        Ok(Self { target, removal, block, nvme })
    }
}

/// Clients and the ring rely on what the device said of itself.
fn check(running: &Description, target: &Target, most: u32) -> Result<(), DeviceError> {
    let refuse = |what: &str, was: u64, is: u64| {
        let what = format!("came back with {what} {is}, it had {was}");
        Err(unfit(&target.path, &what, "give it the format it had, or restart the sidecar"))
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
        return Err(unfit(&target.path, &what, "restart the sidecar"));
    }
    Ok(())
}
