//! Checks of requests for one block: gets, puts and drops.

use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::{FLAG_DURABLE, FLAG_PART, FLAG_SIDE};
use kvrail_ring::{
    CHAIN_BEGINS, CHAIN_DEPTH_MAX, Class, Opcode, RequestSnapshot, SideCopy, SideSlot, Status,
};
use kvrail_store::{Chain, Durability, Extent, Get, Hint, Key, Priority, SpaceId};

use super::memory::{EnteredMemory, Masks, enter_body, enter_tail, leave};
use crate::back_ends::BackEnds;
use crate::back_ends::pending::{BlockCommand, StoreRequest};
use crate::front_end::LaneContext;
use crate::limits::SessionSlot;
use crate::regions::{Pass, Regions};
use crate::store_call::Permit;
use crate::task::ClientRequest;

/// A sound get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GetAsk {
    pub(crate) shard: usize,
    pub(crate) class: Class,
    pub(crate) space: SpaceId,
    pub(crate) extent: Extent,
}

impl GetAsk {
    /// Bytes of memory that it needs.
    #[inline(always)]
    fn bytes(&self) -> u32 {
        let (Extent::Whole { capacity: bytes } | Extent::Part { bytes, .. }) = self.extent;
        bytes
    }

    /// As its store is asked.
    #[inline(always)]
    pub(crate) fn of_store(&self, request: &RequestSnapshot) -> Get {
        Get { space: self.space, key: key_of(request), extent: self.extent }
    }
}

/// Checks a get, and enters the memory of its body. Most gets are for a whole block, in
/// memory of the host's, of a store that has one member: the common pass accepts those only.
///
/// # Errors
/// The status that is its answer, after a pass for any; else it may be sound all the same.
#[inline(always)]
pub(crate) fn check_get(
    request: &RequestSnapshot,
    session: SessionSlot,
    back_ends: &mut BackEnds,
    regions: &mut Regions,
    pass: Pass,
) -> Result<(GetAsk, Option<EnteredMemory>), Status> {
    let class = request.class().ok_or(Status::Invalid)?;
    let extent = match pass {
        Pass::Common => common_extent(request, class)?,
        Pass::Any => extent_of(request)?,
    };
    let (shard, space) = match pass {
        Pass::Common => back_ends.find_at_once(session, request.handle())?,
        Pass::Any => {
            let lo = key_of(request).lo();
            let (shard, grant) = back_ends.find(session, request.handle(), lo)?;
            back_ends.shard(shard).open_to_gets()?;
            (shard, grant.space)
        }
    };
    let ask = GetAsk { shard, class, space, extent };
    let masks = back_ends.shard(shard).masks();
    let body = enter_body(request, ask.bytes(), masks, session, regions, pass)?;
    if pass == Pass::Common && body.is_none() {
        return Err(Status::Invalid);
    }
    Ok((ask, body))
}

/// Checks a put or drop, and enters its memory.
pub(super) fn check_change(
    request: &RequestSnapshot,
    (side, copy): (SideSlot<'_>, &mut SideCopy),
    seat: LaneContext,
    back_ends: &mut BackEnds,
    regions: &mut Regions,
) -> Result<(StoreRequest, [Option<EnteredMemory>; 2]), Status> {
    let class = request.class().ok_or(Status::Invalid)?;
    let (ask, bytes) = match request.opcode() {
        Some(Opcode::Put) => (put(request, side, copy)?, request.length()),
        _ => (drop(request)?, 0),
    };
    let key = key_of(request);
    let (shard, grant) = back_ends.find(seat.session, request.handle(), key.lo())?;
    if grant.permit == Permit::Read {
        return Err(Status::Denied);
    }
    let shard = back_ends.shard(shard);
    if shard.is_gone() {
        return Err(Status::DeviceGone);
    }
    let durable = request.flags() & FLAG_DURABLE != 0;
    let asked = StoreRequest {
        client: ClientRequest {
            user_data: request.user_data(),
            lane: seat.lane,
            session: seat.session,
        },
        shard: shard.number(),
        device: shard.device(),
        class,
        durability: if durable { Durability::Durable } else { Durability::Soon },
        space: grant.space,
        key,
        ask,
        bytes: request.length(),
        deadline_ns: u64::from(request.deadline_us()) * 1000,
        is_late: grant.is_late && !durable,
    };
    let memory = enter(request, bytes, shard.masks(), seat, regions)?;
    Ok((asked, memory))
}

/// What a put asks. Its side area is copied once.
fn put(
    request: &RequestSnapshot,
    side: SideSlot<'_>,
    copy: &mut SideCopy,
) -> Result<BlockCommand, Status> {
    let (length, check) = (request.length(), request.checksum());
    let (mut block_bytes, mut at, mut hint) = (length, 0, Hint::default());
    if request.flags() & FLAG_SIDE != 0 {
        side.copy_into(copy).then_some(()).ok_or(Status::Invalid)?;
        let side = copy.side();
        (block_bytes, at) = (side.block_bytes, side.at);
        hint = Hint { priority: Priority::of(side.worth), until: side.until };
    }
    sized(length)?;
    let (chain, depth) = chain_of(request.chain());
    Ok(BlockCommand::Put { chain, depth, block_bytes, at, check, hint })
}

/// What a drop asks.
fn drop(request: &RequestSnapshot) -> Result<BlockCommand, Status> {
    let check = request.checksum();
    let stray = request.length() | request.tail() | request.region_id().0 | request.deadline_us();
    if stray != 0 || request.region_offset() != 0 {
        return Err(Status::Invalid);
    }
    Ok(BlockCommand::Drop { only: (check != 0).then_some(check) })
}

/// Enters the memory of a put: that of its body, and the page of its tail.
fn enter(
    request: &RequestSnapshot,
    bytes: u32,
    masks: Masks,
    seat: LaneContext,
    regions: &mut Regions,
) -> Result<[Option<EnteredMemory>; 2], Status> {
    let body = enter_body(request, bytes, masks, seat.session, regions, Pass::Any)?;
    if bytes & masks.block == 0 {
        return Ok([body, None]);
    }
    let tail = enter_tail(request, body, seat, regions);
    if tail.is_none() {
        leave([body, None], regions);
        return Err(Status::Invalid);
    }
    Ok([body, tail])
}

/// The bytes of its block that a get of the common pass asks for: all.
#[inline(always)]
fn common_extent(request: &RequestSnapshot, class: Class) -> Result<Extent, Status> {
    let capacity = request.length();
    let common = request.is_whole_get() && class != Class::Background;
    if !common || capacity > REQUEST_LENGTH_MAX {
        return Err(Status::Invalid);
    }
    Ok(Extent::Whole { capacity })
}

/// The bytes of its block that any get asks for.
#[inline(always)]
fn extent_of(request: &RequestSnapshot) -> Result<Extent, Status> {
    let (length, check) = (request.length(), request.checksum());
    if request.chain() != 0 || request.flags() & !FLAG_PART != 0 {
        return Err(Status::Invalid);
    }
    if request.flags() & FLAG_PART != 0 {
        sized(length)?;
        let at = u32::try_from(check).map_err(|_| Status::Invalid)?;
        return Ok(Extent::Part { at, bytes: length });
    }
    let capacity = length.min(REQUEST_LENGTH_MAX);
    if check == 0 { Ok(Extent::Whole { capacity }) } else { Err(Status::Invalid) }
}

/// The key that a request names.
#[inline(always)]
pub(crate) fn key_of(request: &RequestSnapshot) -> Key {
    let [lo, hi] = request.key();
    Key::of(hi, lo)
}

/// A put's place in its chain: any bits are one.
fn chain_of(place: u16) -> (Chain, u16) {
    let chain = if place & CHAIN_BEGINS == 0 { Chain::Extends } else { Chain::Begins };
    (chain, place & CHAIN_DEPTH_MAX)
}

/// Parts have 1 byte to what one request may move.
fn sized(length: u32) -> Result<(), Status> {
    if length.wrapping_sub(1) < REQUEST_LENGTH_MAX { Ok(()) } else { Err(Status::Invalid) }
}
