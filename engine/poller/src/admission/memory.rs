//! The memory that a request for a block names: the body's in any region of the session, the
//! tail's in a page of the queue's tail arena.

use kvrail_ring::limits::TAIL_BYTES;
use kvrail_ring::{RegionId, RequestSnapshot, Status};
use kvrail_store::PAGE_BYTES;

use crate::front_end::LaneContext;
use crate::limits::SessionSlot;
use crate::regions::{Pass, Regions};
use crate::task::{BufferRef, MemoryKind};

// The store reads and writes a tail within one page of its own.
const _: () = assert!(TAIL_BYTES as usize == PAGE_BYTES);

/// Memory that a request has entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnteredMemory {
    pub(crate) region: RegionId,
    pub(crate) place: BufferRef,
}

/// One less than the unit of a device's transfers, and than that of offsets in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Masks {
    pub(crate) block: u32,
    pub(crate) memory: u64,
}

/// Enters the memory of the whole logical blocks among `bytes` bytes, if there are any.
///
/// # Errors
/// INVALID.
#[inline(always)]
pub(crate) fn enter_body(
    request: &RequestSnapshot,
    bytes: u32,
    masks: Masks,
    session: SessionSlot,
    regions: &mut Regions,
    pass: Pass,
) -> Result<Option<EnteredMemory>, Status> {
    let (region, offset) = (request.region_id(), request.region_offset());
    let body_bytes = bytes & !masks.block;
    if body_bytes == 0 {
        return Ok(None);
    }
    if offset & masks.memory != 0 {
        return Err(Status::Invalid);
    }
    let range = (0, offset, body_bytes);
    let place = match regions.enter(session, region, range, Pass::Common) {
        Ok(place) => place,
        Err(status) if pass == Pass::Common => return Err(status),
        Err(_) => enter_remote(request, body_bytes, session, regions)?,
    };
    Ok(Some(EnteredMemory { region, place }))
}

/// Enters a body that is not in the host's memory.
#[cold]
#[inline(never)]
fn enter_remote(
    request: &RequestSnapshot,
    body_bytes: u32,
    session: SessionSlot,
    regions: &mut Regions,
) -> Result<BufferRef, Status> {
    let (region, offset) = (request.region_id(), request.region_offset());
    let block = if regions.is_remote(region) { request.tail() } else { 0 };
    regions.enter(session, region, (block, offset, body_bytes), Pass::Any)
}

/// Enters the page of a request's tail. `None`: the request has no such page. Bodies in remote
/// memory have no tail.
pub(crate) fn enter_tail(
    request: &RequestSnapshot,
    body: Option<EnteredMemory>,
    seat: LaneContext,
    regions: &mut Regions,
) -> Option<EnteredMemory> {
    if body.is_some_and(|body| body.place.kind() == MemoryKind::Gpu) {
        return None;
    }
    let region = seat.tails?;
    let offset = u64::from(request.tail()) * u64::from(TAIL_BYTES);
    let range = (0, offset, TAIL_BYTES);
    let place = regions.enter(seat.session, region, range, Pass::Any).ok()?;
    let host = place.kind() == MemoryKind::Host;
    debug_assert!(host, "tails are in an arena of the host's memory");
    Some(EnteredMemory { region, place })
}

/// Leaves memory that was entered for a request that is answered at once.
pub(crate) fn leave(memory: [Option<EnteredMemory>; 2], regions: &mut Regions) {
    for entered in memory.into_iter().flatten() {
        regions.leave(entered.region, 1);
    }
}
