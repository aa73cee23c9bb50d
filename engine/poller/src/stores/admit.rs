//! Admission of requests that name a key: from 64 hostile bytes to a request of a store. Gets have
//! a way of their own.
//!
//! Only the private copies of slot and side area are looked at (invariant 4).

use kvrail_device::Device;
use kvrail_ring::limits::{REQUEST_LENGTH_MAX, TAIL_BYTES};
use kvrail_ring::slot::{FLAG_CONTINUED, FLAG_DURABLE, FLAG_SIDE, FLAG_TOUCH, LOOKUP_KEYS};
use kvrail_ring::{
    CHAIN_BEGINS, CHAIN_DEPTH_MAX, Class, Completion, Opcode, RequestSnapshot, SideSlot, Status,
};
use kvrail_store::{
    Begun, Chain, DeclineReason, Durability, Found, Hold, Key, Now, PAGE_BYTES, Phase,
    Status as Ending,
};

use super::grants::Grant;
use super::parked::{PARKED_OF_SESSION, Room};
use super::pending::{BlockCommand, Entered, Pending, Wanted, reason_number};
use super::suspects::Report;
use super::{Destination, Stores};
use crate::executor::Executor;
use crate::front_end::{Begun as Taken, Seat};
use crate::limits::SessionSlot;
use crate::regions::{Pass, Regions};
use crate::store_call::Permit;
use crate::task::{BufferRef, ClientRequest, MemoryKind};

// The store reads and writes a tail within one page of its own.
const _: () = assert!(TAIL_BYTES as usize == PAGE_BYTES);

impl Stores {
    /// Takes a request that names a key; an answer that it has already goes to the place given.
    #[inline(never)]
    pub(crate) fn admit<D: Device>(
        &mut self,
        (request, side): (&RequestSnapshot, SideSlot<'_>),
        (seat, kept): (Seat, &mut Completion),
        regions: &mut Regions,
        executor: &mut Executor<D>,
    ) -> Taken {
        if request.opcode() == Some(Opcode::Get) {
            return self.get(request, (seat, kept), regions, executor);
        }
        let now = self.calendar.now(executor.now_ns());
        match taken(self.begin(request, side, seat, regions, now), kept) {
            // Of all opcodes only lookups and releases may have the flag.
            Taken::Kept if request.flags() & FLAG_CONTINUED != 0 => Taken::Continued,
            taken => taken,
        }
    }

    #[cold]
    #[inline(never)]
    fn begin(
        &mut self,
        request: &RequestSnapshot,
        side: SideSlot<'_>,
        seat: Seat,
        regions: &mut Regions,
        now: Now,
    ) -> Result<Option<Completion>, Status> {
        let class = request.class().ok_or(Status::Invalid)?;
        let allowed = match request.opcode() {
            Some(Opcode::Put) => FLAG_DURABLE | FLAG_SIDE,
            Some(Opcode::Drop) => FLAG_DURABLE,
            Some(Opcode::Lookup) => FLAG_CONTINUED | FLAG_TOUCH,
            Some(Opcode::Release) => FLAG_CONTINUED,
            _ => 0,
        };
        let placed = request.opcode() == Some(Opcode::Put) || request.chain() == 0;
        if request.flags() & !allowed != 0 || !placed {
            return Err(Status::Invalid);
        }
        let answered = |(bytes, status): (u32, Status)| Completion {
            bytes,
            ..Completion::refused(request.user_data(), status)
        };
        match request.opcode() {
            Some(Opcode::Lookup) => Ok(Some(answered(self.lookup(request, seat.session, now)?))),
            Some(Opcode::Release) => Ok(Some(answered(self.release(request, seat.session)?))),
            Some(Opcode::Suspect) => {
                Ok(Some(answered(self.suspect(request, seat.session, now)?)))
            }
            Some(Opcode::Put | Opcode::Drop) => {
                let (ask, bytes) = self.ask(request, side)?;
                let wanted = self.wanted(request, (ask, class), seat)?;
                let memory = self.enter(request, bytes, (seat, wanted.shard), regions)?;
                Ok(self.take(request, &wanted, memory, regions, now))
            }
            _ => Err(Status::Invalid),
        }
    }

    /// What a put or drop asks, and the bytes of memory that it needs.
    fn ask(
        &mut self,
        request: &RequestSnapshot,
        side: SideSlot<'_>,
    ) -> Result<(BlockCommand, u32), Status> {
        let (length, check) = (request.length(), request.checksum());
        match request.opcode() {
            Some(Opcode::Put) => {
                let (mut block_bytes, mut at) = (length, 0);
                if request.flags() & FLAG_SIDE != 0 {
                    side.copy_into(&mut self.side).then_some(()).ok_or(Status::Invalid)?;
                    let side = self.side.side();
                    (block_bytes, at) = (side.block_bytes, side.at);
                }
                sized(length)?;
                let (chain, depth) = chain_of(request.chain());
                Ok((BlockCommand::Put { chain, depth, block_bytes, at, check }, length))
            }
            Some(Opcode::Drop) => {
                let nothing =
                    length | request.tail() | request.region_id().0 | request.deadline_us();
                if nothing != 0 || request.region_offset() != 0 {
                    return Err(Status::Invalid);
                }
                Ok((BlockCommand::Drop { only: (check != 0).then_some(check) }, 0))
            }
            _ => Err(Status::Invalid),
        }
    }

    /// The request as its shard is asked.
    fn wanted(
        &mut self,
        request: &RequestSnapshot,
        (ask, class): (BlockCommand, Class),
        seat: Seat,
    ) -> Result<Wanted, Status> {
        let key = key_of(request);
        let (shard, grant) = self.find(seat.session, request.handle(), key.lo())?;
        if grant.permit == Permit::Read {
            return Err(Status::Denied);
        }
        if self.shards[shard].is_gone() {
            return Err(Status::DeviceGone);
        }
        let durable = request.flags() & FLAG_DURABLE != 0;
        Ok(Wanted {
            client: ClientRequest {
                user_data: request.user_data(),
                lane: seat.lane,
                session: seat.session,
            },
            shard: u8::try_from(shard).expect("256 devices"),
            class,
            durability: if durable { Durability::Durable } else { Durability::Soon },
            space: grant.space,
            key,
            ask,
            bytes: request.length(),
        })
    }

    /// The shard that has a key, and what the handle means there.
    #[inline(always)]
    pub(super) fn find(
        &mut self,
        session: SessionSlot,
        handle: u16,
        lo: u64,
    ) -> Result<(usize, Grant), Status> {
        let place = Self::handle_at(session, handle).ok_or(Status::Invalid)?;
        let shard = match self.handles[place] {
            Destination::Nowhere => return Err(Status::Invalid),
            Destination::Shard(shard) => usize::from(shard),
            Destination::Group(group) => self.find_among(group, (session, handle), lo)?,
        };
        Ok((shard, self.shards[shard].resolve(session, handle)?))
    }

    /// The same, where a store has several members.
    #[inline(never)]
    fn find_among(
        &mut self,
        group: u8,
        (session, handle): (SessionSlot, u16),
        lo: u64,
    ) -> Result<usize, Status> {
        let group = &self.groups[usize::from(group)];
        let first = usize::from(group.local[0].1);
        let uid = self.shards[first].resolve(session, handle)?.uid;
        group.shard_of(uid, lo).ok_or(Status::Invalid)
    }

    /// Enters the memory of a body and a tail.
    fn enter(
        &self,
        request: &RequestSnapshot,
        bytes: u32,
        (seat, shard): (Seat, u8),
        regions: &mut Regions,
    ) -> Result<[Option<Entered>; 2], Status> {
        let masks = self.shards[usize::from(shard)].masks();
        let body = enter_body(request, bytes, (seat, masks), regions)?;
        if bytes & masks.0 == 0 {
            return Ok([body, None]);
        }
        let tail = enter_tail(request, (seat, body), regions);
        if tail.is_none() {
            leave([body, None], regions);
            return Err(Status::Invalid);
        }
        Ok([body, tail])
    }

    /// Gives a request to its shard, or has it wait; returns its answer, if it has one already.
    fn take(
        &mut self,
        request: &RequestSnapshot,
        wanted: &Wanted,
        memory: [Option<Entered>; 2],
        regions: &mut Regions,
        now: Now,
    ) -> Option<Completion> {
        let pending = Pending::new(wanted, memory, now.ns);
        let id = self.pending.claim(pending).expect("sessions' shares add up to the table");
        let pending = self.pending.get_mut(id).expect("just claimed");
        pending.id = id;
        let shard = &mut self.shards[usize::from(pending.wanted().shard)];
        let has_side = request.flags() & FLAG_SIDE != 0;
        let metadata = if has_side { self.side.side().metadata } else { &[] };
        let room = room_of(&pending.wanted().ask);
        let of = pending.wanted().client.session;
        let session = usize::from(of.0);
        let mut line = room;
        let waits = shard.lines().has_before(room, of) || !shard.has_room(pending.wanted());
        if !waits {
            match shard.give(pending, metadata, now) {
                Begun::Taken => {
                    shard.count_request();
                    self.set_deadline(request, id, now.ns);
                    return None;
                }
                Begun::Done(answer) if answer.status == Ending::Declined(DeclineReason::Busy) => {}
                // Its first part may wait itself.
                Begun::Done(answer)
                    if room == Room::Part
                        && answer.status == Ending::Dropped
                        && self.parked_of[session] > 0 =>
                {
                    line = Room::Put;
                }
                Begun::Done(answer) => {
                    let pending = self.pending.release(id).expect("just claimed");
                    leave(memory, regions);
                    return Some(pending.end(&answer).completion);
                }
            }
        }
        if usize::from(self.parked_of[session]) >= PARKED_OF_SESSION {
            let busy = reason_number(DeclineReason::Busy);
            let ended = self.pending.release(id).expect("just claimed");
            leave(memory, regions);
            return Some(ended.refuse(Status::Declined, busy).completion);
        }
        self.parked |= 1 << session;
        let parked = self.metadata.keep((id, of), metadata);
        shard.lines().push(line, parked);
        shard.count_request();
        self.parked_of[session] += 1;
        self.set_deadline(request, id, now.ns);
        None
    }

    pub(super) fn set_deadline(
        &mut self,
        request: &RequestSnapshot,
        id: kvrail_device::SlotId,
        now_ns: u64,
    ) {
        if request.deadline_us() != 0 {
            let after_ns = u64::from(request.deadline_us()) * 1000;
            self.deadlines.set(now_ns.saturating_add(after_ns), id);
        }
    }

    /// The lower halves of a lookup's or release's keys.
    fn lows(request: &RequestSnapshot) -> Result<([u64; LOOKUP_KEYS], usize), Status> {
        let count = request.length() as usize;
        let sound = (1..=LOOKUP_KEYS).contains(&count);
        sound.then(|| (request.lows(), count)).ok_or(Status::Invalid)
    }

    fn lookup(
        &mut self,
        request: &RequestSnapshot,
        session: SessionSlot,
        now: Now,
    ) -> Result<(u32, Status), Status> {
        let (lows, count) = Self::lows(request)?;
        let hold = match (request.hold_ms(), request.flags() & FLAG_TOUCH) {
            (0, 0) => Hold::No,
            (0, _) => Hold::Touch,
            (ms, 0) => Hold::For(u64::from(ms) * 1_000_000),
            (_, _) => return Err(Status::Invalid),
        };
        let (first, grant) = self.find(session, request.handle(), lows[0])?;
        if matches!(self.destination(first), Destination::Shard(_)) {
            let found = self.look(first, &grant, (session, &lows[..count]), hold, now)?;
            return Ok((bits(&found), Status::Ok));
        }
        let mut all = Found::default();
        for (bit, lo) in lows[..count].iter().enumerate() {
            let (shard, grant) = self.find(session, request.handle(), *lo)?;
            let one = self.look(shard, &grant, (session, &[*lo]), hold, now)?;
            all.found |= one.found << bit;
            all.held |= one.held << bit;
            all.warming |= one.warming << bit;
        }
        Ok((bits(&all), Status::Ok))
    }

    fn look(
        &mut self,
        shard: usize,
        grant: &Grant,
        (session, lows): (SessionSlot, &[u64]),
        hold: Hold,
        now: Now,
    ) -> Result<Found, Status> {
        let shard = &mut self.shards[shard];
        if shard.is_gone() {
            let stats = &self.stats.devices[shard.device()].store;
            stats.gone_keys.add(lows.len() as u64);
            return Err(Status::DeviceGone);
        }
        if shard.phase() == Phase::Starting {
            let warming = (1 << lows.len()) - 1;
            return Ok(Found { warming, ..Found::default() });
        }
        let found = shard.store().lookup(grant.space, session.0.into(), lows, hold, now);
        found.map_err(|fault| match fault {
            kvrail_store::Fault::Space => Status::Stale,
            _ => Status::Invalid,
        })
    }

    fn release(
        &mut self,
        request: &RequestSnapshot,
        session: SessionSlot,
    ) -> Result<(u32, Status), Status> {
        let (lows, count) = Self::lows(request)?;
        let mut ended = 0;
        for lo in &lows[..count] {
            let (shard, grant) = self.find(session, request.handle(), *lo)?;
            let store = self.shards[shard].store();
            ended += u32::from(store.release(grant.space, session.0.into(), *lo));
        }
        Ok((ended, Status::Ok))
    }

    fn suspect(
        &mut self,
        request: &RequestSnapshot,
        session: SessionSlot,
        now: Now,
    ) -> Result<(u32, Status), Status> {
        let nothing = request.length() | request.tail() | request.region_id().0;
        if nothing != 0 || request.region_offset() != 0 {
            return Err(Status::Invalid);
        }
        let key = key_of(request);
        let (shard, grant) = self.find(session, request.handle(), key.lo())?;
        let check = request.checksum();
        let report = Report { space: grant.space, key, check, reporter: session };
        let shard = &mut self.shards[shard];
        if shard.is_gone() {
            return Err(Status::DeviceGone);
        }
        if grant.permit == Permit::Read {
            shard.count_ignored();
            return Ok((0, Status::Ok));
        }
        Ok(match shard.suspect(report, now.ns) {
            Some(true) => (0, Status::Ok),
            Some(false) => (0, Status::Miss),
            None => (reason_number(DeclineReason::Busy), Status::Declined),
        })
    }
}

/// What came of a request, whose answer goes to the place given.
pub(super) fn taken(begun: Result<Option<Completion>, Status>, kept: &mut Completion) -> Taken {
    match begun {
        Ok(None) => Taken::Task,
        Ok(Some(completion)) => {
            *kept = completion;
            Taken::Kept
        }
        Err(status) => Taken::Answer(status),
    }
}

/// The room that a request needs.
pub(super) fn room_of(ask: &BlockCommand) -> Room {
    match ask {
        BlockCommand::Put { at: 0, .. } => Room::Put,
        BlockCommand::Put { .. } => Room::Part,
        BlockCommand::Get(_) => unreachable!("gets never wait for room"),
        BlockCommand::Drop { .. } => Room::Drop,
    }
}

/// Enters the memory of the whole logical blocks among so many bytes, if there are any.
#[inline(always)]
pub(super) fn enter_body(
    request: &RequestSnapshot,
    bytes: u32,
    (seat, (block_mask, memory_mask)): (Seat, (u32, u64)),
    regions: &mut Regions,
) -> Result<Option<Entered>, Status> {
    let (region, offset) = (request.region_id(), request.region_offset());
    let body_bytes = bytes & !block_mask;
    if body_bytes == 0 {
        return Ok(None);
    }
    if offset & memory_mask != 0 {
        return Err(Status::Invalid);
    }
    let range = (0, offset, body_bytes);
    let place = match regions.enter(seat.session, region, range, Pass::Common) {
        Ok(place) => place,
        Err(_) => enter_remote(request, body_bytes, seat, regions)?,
    };
    Ok(Some(Entered { region, place }))
}

/// The same for what is in no memory of the host's.
#[cold]
#[inline(never)]
fn enter_remote(
    request: &RequestSnapshot,
    body_bytes: u32,
    seat: Seat,
    regions: &mut Regions,
) -> Result<BufferRef, Status> {
    let (region, offset) = (request.region_id(), request.region_offset());
    let block = if regions.is_remote(region) { request.tail() } else { 0 };
    regions.enter(seat.session, region, (block, offset, body_bytes), Pass::Any)
}

/// Enters the page of a request's tail, if it has one. Bodies in remote memory have none.
pub(super) fn enter_tail(
    request: &RequestSnapshot,
    (seat, body): (Seat, Option<Entered>),
    regions: &mut Regions,
) -> Option<Entered> {
    if body.is_some_and(|body| body.place.kind() == MemoryKind::Gpu) {
        return None;
    }
    let region = seat.tails?;
    let offset = u64::from(request.tail()) * u64::from(TAIL_BYTES);
    let range = (0, offset, TAIL_BYTES);
    let place = regions.enter(seat.session, region, range, Pass::Any).ok()?;
    let host = place.kind() == MemoryKind::Host;
    debug_assert!(host, "tails are in an arena of the host's memory");
    Some(Entered { region, place })
}

/// Leaves memory that was entered for a request that is answered at once.
pub(super) fn leave(memory: [Option<Entered>; 2], regions: &mut Regions) {
    for entered in memory.into_iter().flatten() {
        regions.leave(entered.region, 1);
    }
}

pub(super) fn key_of(request: &RequestSnapshot) -> Key {
    let [lo, hi] = request.key();
    Key::of(hi, lo)
}

/// A put's place in its chain: any bits are one.
fn chain_of(place: u16) -> (Chain, u16) {
    let chain = if place & CHAIN_BEGINS == 0 { Chain::Extends } else { Chain::Begins };
    (chain, place & CHAIN_DEPTH_MAX)
}

/// Parts have 1 byte to what one request may move.
pub(super) fn sized(length: u32) -> Result<(), Status> {
    if length.wrapping_sub(1) < REQUEST_LENGTH_MAX { Ok(()) } else { Err(Status::Invalid) }
}

/// A lookup's answer in one word.
fn bits(found: &Found) -> u32 {
    let byte = |bits: u64| u32::try_from(bits).expect("five keys at most");
    byte(found.found) | byte(found.held) << 8 | byte(found.warming) << 16
}
