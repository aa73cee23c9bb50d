//! Admission of requests to volumes: from 64 hostile bytes to a range of a device and a range of
//! memory, or the status that refuses them. Requests that name a key fail here, and are checked in
//! `stores/admit.rs` (gets: `stores/gets.rs`).
//!
//! The copy was loaded from shared memory once; everything after looks at the copy only
//! (invariant 4). Most requests are a read or write of host memory without flags and deadline:
//! they pass the checks that every request passes, and skip the cold ones.

use kvrail_device::{BufferIndex, WINDOW_BYTES};
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::{FLAG_DURABLE, FLAGS_KNOWN};
use kvrail_ring::{DeviceIndex, Opcode, RequestSnapshot, Status, VolumeId};

use crate::backend::{BackEnd, Route, Volume};
use crate::limits::SessionSlot;
use crate::regions::{Pass, Regions};
use crate::task::{BufferRef, DeviceExtent};

/// What a sound request is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Admitted {
    /// Done: it asked for an answer.
    Nop,
    /// One for a device.
    Io(DeviceExtent, BufferRef),
}

/// The checks, and what they look at beside the session's regions.
#[derive(Debug)]
pub(crate) struct Admission {
    back_ends: Vec<BackEnd>,
    /// All back ends, once requests are answered DRAINING. The common pass finds none then, and
    /// need not ask.
    draining: Option<Vec<BackEnd>>,
}

impl Admission {
    /// `devices` are the sidecar-wide numbers of this poller's devices, in local order.
    pub(crate) fn new(routes: &[Route], devices: &[DeviceIndex], shards: &[usize]) -> Self {
        let back_ends = routes.iter().map(|route| BackEnd::new(route, devices, shards)).collect();
        Self { back_ends, draining: None }
    }

    /// Answers DRAINING from now on.
    pub(crate) fn drain(&mut self) {
        if self.draining.is_none() {
            self.draining = Some(std::mem::take(&mut self.back_ends));
        }
    }

    /// Whether requests are answered DRAINING.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Checks a request against the volumes and the session's regions. A sound read or write is
    /// counted in at its region.
    ///
    /// # Errors
    /// The status that is its answer, after a pass for any; else it may be sound all the same.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        request: &RequestSnapshot,
        session: SessionSlot,
        regions: &mut Regions,
        pass: Pass,
    ) -> Result<Admitted, Status> {
        if pass == Pass::Any && self.draining.is_some() {
            return Err(Status::Draining);
        }
        request.class().ok_or(Status::Invalid)?;
        if pass == Pass::Common && !(request.is_simple() && request.transfer().is_some()) {
            return Err(Status::Invalid);
        }
        if !request.is_simple() {
            check_extras(request.opcode(), request.flags(), request.layout_block())?;
            request.is_plain().then_some(()).ok_or(Status::Invalid)?;
        }
        if request.transfer().is_none() {
            let at = (request.volume_id(), request.volume_offset(), request.length());
            return self.check_other(request.opcode(), request.flags(), at);
        }
        let (offset, length) = (request.region_offset(), request.length());
        let volume = self.volume(request.volume_id())?;
        // What is longer than a device's window is rare, and the budget counts it otherwise.
        let max = if pass == Pass::Common { WINDOW_BYTES } else { REQUEST_LENGTH_MAX };
        let extent = volume.locate(request.volume_offset(), length, max)?;
        volume.check_alignment(offset)?;
        let range = (request.layout_block(), offset, length);
        let memory = regions.enter(session, request.region_id(), range, pass)?;
        Ok(Admitted::Io(extent, memory))
    }

    #[inline(always)]
    fn volume(&self, id: VolumeId) -> Result<&Volume, Status> {
        match self.back_ends.get(usize::from(id.0)) {
            Some(BackEnd::Volume(volume)) => Ok(volume),
            Some(BackEnd::Store) | None => Err(Status::Invalid),
        }
    }

    /// Checks a request that moves no bytes, or none that are known.
    #[cold]
    #[inline(never)]
    fn check_other(
        &self,
        opcode: Option<Opcode>,
        flags: u8,
        (volume, offset, length): (VolumeId, u64, u32),
    ) -> Result<Admitted, Status> {
        let extent = match opcode {
            Some(Opcode::Nop) if length <= REQUEST_LENGTH_MAX => return Ok(Admitted::Nop),
            _ if flags != 0 => return Err(Status::Invalid), // they make sense where bytes move
            // A flush names a member by any offset on it.
            Some(Opcode::Flush) if length == 0 => self.volume(volume)?.device_at(offset)?,
            Some(Opcode::Discard) => {
                self.volume(volume)?.locate(offset, length, REQUEST_LENGTH_MAX)?
            }
            _ => return Err(Status::Invalid),
        };
        let none = BufferRef { buffer: BufferIndex(0), offset: 0 };
        Ok(Admitted::Io(extent, none))
    }
}

/// Checks what simple requests do not have: flags, and the block of a layout.
#[cold]
#[inline(never)]
fn check_extras(opcode: Option<Opcode>, flags: u8, block: u32) -> Result<(), Status> {
    let moves = matches!(opcode, Some(Opcode::Read | Opcode::Write));
    let stray = block != 0 && !moves;
    let durable_read = opcode == Some(Opcode::Read) && flags & FLAG_DURABLE != 0;
    let sound = !stray && !durable_read && flags & !FLAGS_KNOWN == 0;
    if sound { Ok(()) } else { Err(Status::Invalid) }
}
