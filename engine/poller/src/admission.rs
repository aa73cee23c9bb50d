//! Admission: the only check of what clients write. It makes of 64 hostile bytes, and of the side
//! area behind them, a range of a device or what a store is asked, with its memory; or the status
//! that refuses the request.
//!
//! Slot and side area were copied from shared memory once; everything after looks at the copies
//! only (invariant 4). Most requests are a read or write of host memory without flags and
//! deadline, or a get of a whole block: a common pass over the same checks accepts those, and
//! leaves all others to the pass for any.

mod blocks;
mod keys;
mod memory;

use kvrail_device::{BufferIndex, WINDOW_BYTES};
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::{
    FLAG_CONTINUED, FLAG_DEMOTE, FLAG_DURABLE, FLAG_FETCH, FLAG_SIDE, FLAG_TOUCH, FLAGS_KNOWN,
};
use kvrail_ring::{
    METADATA_BYTES_MAX, Opcode, RequestSnapshot, SideCopy, SideSlot, Status, VolumeId,
};
use kvrail_store::Hold;

use crate::back_ends::BackEnds;
use crate::back_ends::pending::StoreRequest;
use crate::back_ends::suspects::SuspectReport;
use crate::front_end::LaneContext;
use crate::limits::SessionSlot;
use crate::regions::{Pass, Regions};
use crate::store_call::Permit;
use crate::task::{BufferRef, DeviceExtent};
use blocks::check_change;
pub(crate) use blocks::{GetAsk, check_get, key_of};
pub(crate) use keys::{KeyPlace, PlacedKeys};
pub(crate) use memory::{EnteredMemory, Masks, enter_tail, leave};

/// A sound request that is no get. Its memory is entered.
#[derive(Clone, Debug)]
pub(crate) enum Admitted {
    /// Done: it asked for an answer.
    Nop,
    /// One for a device.
    Range(DeviceRange),
    /// A put or drop, and its body and tail.
    Change(StoreRequest, [Option<EnteredMemory>; 2]),
    /// A release.
    Release(PlacedKeys),
    /// The report to a shard that a block is wrong.
    Suspect(usize, SuspectReport, Permit),
}

/// A range of a device, and its memory. Small, so that it stays in registers on the fast path.
pub(crate) type DeviceRange = (DeviceExtent, BufferRef);

/// The checks.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The side area of the put that was checked last.
    side: SideCopy,
    draining: bool,
}

impl Admission {
    pub(crate) fn new() -> Self {
        Self { side: SideCopy::new(), draining: false }
    }

    /// Answers DRAINING from now on. The common pass does not look: its callers withdraw what it
    /// finds.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether requests are answered DRAINING.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// Checks a lookup, and finds the shards of its keys.
    ///
    /// # Errors
    /// The status that is its answer.
    #[inline(always)]
    pub(crate) fn check_lookup(
        &self,
        request: &RequestSnapshot,
        session: SessionSlot,
        back_ends: &mut BackEnds,
    ) -> Result<(PlacedKeys, Hold), Status> {
        if self.draining {
            return Err(Status::Draining);
        }
        check_keyed(Opcode::Lookup, request)?;
        keys::lookup(request, session, back_ends)
    }

    /// Checks any request but a get or lookup, which `check_get` and `check_lookup` check.
    ///
    /// # Errors
    /// The status that is its answer.
    pub(crate) fn check(
        &mut self,
        request: &RequestSnapshot,
        side: SideSlot<'_>,
        seat: LaneContext,
        back_ends: &mut BackEnds,
        regions: &mut Regions,
    ) -> Result<Admitted, Status> {
        if self.draining {
            return Err(Status::Draining);
        }
        let session = seat.session;
        let Some(opcode) = request.opcode().filter(|opcode| opcode.is_keyed()) else {
            let range = Self::check_range(request, session, back_ends, regions, Pass::Any)?;
            return Ok(range.map_or(Admitted::Nop, Admitted::Range));
        };
        check_keyed(opcode, request)?;
        Ok(match opcode {
            Opcode::Put | Opcode::Drop => {
                let side = (side, &mut self.side);
                let (asked, memory) = check_change(request, side, seat, back_ends, regions)?;
                Admitted::Change(asked, memory)
            }
            Opcode::Release => Admitted::Release(PlacedKeys::new(request, session, back_ends)?),
            Opcode::Suspect => {
                let (shard, report, permit) = keys::suspect(request, session, back_ends)?;
                Admitted::Suspect(shard, report, permit)
            }
            _ => return Err(Status::Invalid),
        })
    }

    /// The metadata that a put brought with it, after its check.
    pub(crate) fn metadata(&self, request: &RequestSnapshot) -> &[u8] {
        let metadata =
            if request.flags() & FLAG_SIDE != 0 { self.side.side().metadata } else { &[] };
        debug_assert!(metadata.len() <= METADATA_BYTES_MAX, "the copy of a side area is bounded");
        metadata
    }

    /// Checks a request that names no key, against the volumes and the session's regions. A sound
    /// read or write is counted in at its region. `None`: the request asked for an answer only.
    ///
    /// # Errors
    /// The status that is its answer, after a pass for any; else it may be sound all the same.
    #[inline(always)]
    pub(crate) fn check_range(
        request: &RequestSnapshot,
        session: SessionSlot,
        back_ends: &BackEnds,
        regions: &mut Regions,
        pass: Pass,
    ) -> Result<Option<DeviceRange>, Status> {
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
            return check_other(request.opcode(), request.flags(), at, back_ends);
        }
        let (offset, length) = (request.region_offset(), request.length());
        let volume = back_ends.volume(request.volume_id())?;
        // What is longer than a device's window is rare, and the budget counts it otherwise.
        let max = if pass == Pass::Common { WINDOW_BYTES } else { REQUEST_LENGTH_MAX };
        let extent = volume.locate(request.volume_offset(), length, max)?;
        volume.check_alignment(offset)?;
        let range = (request.layout_block(), offset, length);
        let memory = regions.enter(session, request.region_id(), range, pass)?;
        Ok(Some((extent, memory)))
    }
}

/// Checks a request that moves no bytes, or none that are known.
#[cold]
#[inline(never)]
fn check_other(
    opcode: Option<Opcode>,
    flags: u8,
    (volume, offset, length): (VolumeId, u64, u32),
    back_ends: &BackEnds,
) -> Result<Option<DeviceRange>, Status> {
    let extent = match opcode {
        Some(Opcode::Nop) if length <= REQUEST_LENGTH_MAX => return Ok(None),
        _ if flags != 0 => return Err(Status::Invalid), // they make sense where bytes move
        // A flush names a member by any offset on it.
        Some(Opcode::Flush) if length == 0 => back_ends.volume(volume)?.device_at(offset)?,
        Some(Opcode::Discard) => {
            back_ends.volume(volume)?.locate(offset, length, REQUEST_LENGTH_MAX)?
        }
        _ => return Err(Status::Invalid),
    };
    let none = BufferRef { buffer: BufferIndex(0), offset: 0 };
    Ok(Some((extent, none)))
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

/// Checks what every request that names a key but a get has: its class, flags and place in a chain.
fn check_keyed(opcode: Opcode, request: &RequestSnapshot) -> Result<(), Status> {
    request.class().ok_or(Status::Invalid)?;
    let allowed = match opcode {
        Opcode::Put => FLAG_DURABLE | FLAG_SIDE,
        Opcode::Drop => FLAG_DURABLE,
        Opcode::Lookup => FLAG_CONTINUED | FLAG_TOUCH | FLAG_DEMOTE | FLAG_FETCH,
        Opcode::Release => FLAG_CONTINUED,
        _ => 0,
    };
    let placed = opcode == Opcode::Put || request.chain() == 0;
    if request.flags() & !allowed == 0 && placed { Ok(()) } else { Err(Status::Invalid) }
}

#[cfg(test)]
mod tests;
