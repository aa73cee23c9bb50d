//! Admission of requests that name a key: from 64 hostile bytes to a request of a store.
//!
//! Only the private copies of slot and side area are looked at (invariant 4).

use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::{FLAG_DURABLE, FLAG_PART, FLAG_SIDE, LOOKUP_KEYS};
use kvrail_ring::{Class, Completion, Opcode, RequestSnapshot, SideSlot, Status};
use kvrail_store::{
    Begun, Durability, Extent, Found, Hold, Key, Now, Phase, Reason, Status as Ending,
};

use super::Stores;
use super::grants::Grant;
use super::parked::{PARKED_OF_SESSION, Room};
use super::pending::{Ask, Entered, Pending, Wanted, reason_number};
use super::suspects::Report;
use crate::front_end::{Begun as Taken, Seat};
use crate::limits::SessionSlot;
use crate::regions::{Pass, Regions};
use crate::task::{ClientRequest, MemoryKind};

/// Bytes of a page of the tail arena.
const TAIL_BYTES: u32 = 4096;

/// What a request's memory must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    /// So many bytes.
    Exactly(u32),
    /// So many bytes, or fewer.
    UpTo(u32),
}

impl Stores {
    /// Takes a request that names a key; an answer that it has already goes to the place given.
    #[cold]
    #[inline(never)]
    pub(crate) fn admit(
        &mut self,
        (request, side): (&RequestSnapshot, SideSlot<'_>),
        (seat, kept): (Seat, &mut Completion),
        regions: &mut Regions,
        now_ns: u64,
    ) -> Taken {
        let now = self.calendar.now(now_ns);
        match self.begin(request, side, seat, regions, now) {
            Ok(None) => Taken::Task,
            Ok(Some(completion)) => {
                *kept = completion;
                Taken::Kept
            }
            Err(status) => Taken::Answer(status),
        }
    }

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
            Some(Opcode::Get) => FLAG_PART,
            Some(Opcode::Drop) => FLAG_DURABLE,
            _ => 0,
        };
        let depth = request.opcode() == Some(Opcode::Put) || request.depth() == 0;
        if request.flags() & !allowed != 0 || !depth {
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
            Some(Opcode::Put | Opcode::Get | Opcode::Drop) => {
                let (ask, fill) = self.ask(request, side)?;
                let wanted = self.wanted(request, (ask, class), seat)?;
                let memory = self.enter(request, fill, (seat, wanted.shard), regions)?;
                Ok(self.take(request, &wanted, memory, regions, now))
            }
            _ => Err(Status::Invalid),
        }
    }

    /// What a put, get or drop asks, and the memory that it needs.
    fn ask(
        &mut self,
        request: &RequestSnapshot,
        side: SideSlot<'_>,
    ) -> Result<(Ask, Fill), Status> {
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
                let ask = Ask::Put { depth: request.depth(), block_bytes, at, check };
                Ok((ask, Fill::Exactly(length)))
            }
            Some(Opcode::Get) if request.flags() & FLAG_PART != 0 => {
                sized(length)?;
                let at = u32::try_from(check).map_err(|_| Status::Invalid)?;
                Ok((Ask::Get(Extent::Part { at, bytes: length }), Fill::Exactly(length)))
            }
            Some(Opcode::Get) if check == 0 => {
                let capacity = length.min(REQUEST_LENGTH_MAX);
                Ok((Ask::Get(Extent::Whole { capacity }), Fill::UpTo(capacity)))
            }
            Some(Opcode::Drop) => {
                let nothing =
                    length | request.tail() | request.region_id().0 | request.deadline_us();
                if nothing != 0 || request.region_offset() != 0 {
                    return Err(Status::Invalid);
                }
                Ok((Ask::Drop { only: (check != 0).then_some(check) }, Fill::Exactly(0)))
            }
            _ => Err(Status::Invalid),
        }
    }

    /// The request as its shard is asked.
    fn wanted(
        &mut self,
        request: &RequestSnapshot,
        (ask, class): (Ask, Class),
        seat: Seat,
    ) -> Result<Wanted, Status> {
        let key = key_of(request);
        let (shard, grant) = self.find(seat.session, request.handle(), key.lo())?;
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
    fn find(
        &mut self,
        session: SessionSlot,
        handle: u16,
        lo: u64,
    ) -> Result<(usize, Grant), Status> {
        let place = Self::handle_at(session, handle).ok_or(Status::Invalid)?;
        let number = usize::from(self.handles[place]).checked_sub(1).ok_or(Status::Invalid)?;
        let group = &self.groups[number];
        let first = usize::from(group.local[0].1);
        let grant = self.shards[first].resolve(session, handle)?;
        if group.members < 2 {
            return Ok((first, grant));
        }
        let shard = self.groups[number].shard_of(grant.uid, lo).ok_or(Status::Invalid)?;
        Ok((shard, self.shards[shard].resolve(session, handle)?))
    }

    /// Enters the memory of a body and a tail.
    fn enter(
        &self,
        request: &RequestSnapshot,
        fill: Fill,
        (seat, shard): (Seat, u8),
        regions: &mut Regions,
    ) -> Result<[Option<Entered>; 2], Status> {
        let (block_mask, memory_mask) = self.shards[usize::from(shard)].masks();
        let (Fill::Exactly(bytes) | Fill::UpTo(bytes)) = fill;
        let (session, region) = (seat.session, request.region_id());
        let (body_bytes, tail_bytes) = (bytes & !block_mask, bytes & block_mask);
        let remote = body_bytes > 0 && regions.is_remote(region);
        let mut body = None;
        if body_bytes > 0 {
            let offset = request.region_offset();
            if offset & memory_mask != 0 {
                return Err(Status::Invalid);
            }
            let block = if remote { request.tail() } else { 0 };
            let place = regions.enter(session, region, (block, offset, body_bytes), Pass::Any)?;
            body = Some(Entered { region, place });
        }
        let mut tail = None;
        if !remote && fill != Fill::Exactly(body_bytes) && bytes > 0 {
            tail = seat.tails.and_then(|region| {
                let offset = u64::from(request.tail()) * u64::from(TAIL_BYTES);
                let range = (0, offset, TAIL_BYTES);
                let place = regions.enter(session, region, range, Pass::Any).ok()?;
                let host = place.kind() == MemoryKind::Host;
                debug_assert!(host, "tails are in an arena of the host's memory");
                Some(Entered { region, place })
            });
        }
        if tail.is_none() && tail_bytes > 0 && matches!(fill, Fill::Exactly(_)) {
            if let Some(entered) = body {
                regions.leave(entered.region, 1);
            }
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
        let session = usize::from(pending.wanted().client.session.0);
        let mut line = room;
        let waits = !shard.lines().of(room).is_empty() || !shard.has_room(room);
        if !waits {
            match shard.give(pending, metadata, now) {
                Begun::Taken => {
                    shard.count_request();
                    self.set_deadline(request, id, now.ns);
                    return None;
                }
                Begun::Done(answer) if answer.status == Ending::Declined(Reason::Busy) => {}
                // Its first part may wait itself.
                Begun::Done(answer)
                    if room == Room::Part
                        && answer.status == Ending::Dropped
                        && self.parked_of[session] > 0 =>
                {
                    line = Room::Put;
                }
                Begun::Done(answer) => {
                    let ended = self.pending.release(id).expect("just claimed").end(&answer);
                    for region in ended.regions.into_iter().flatten() {
                        regions.leave(region, 1);
                    }
                    return Some(ended.completion);
                }
            }
        }
        if usize::from(self.parked_of[session]) >= PARKED_OF_SESSION {
            let busy = reason_number(Reason::Busy);
            let ended = self.pending.release(id).expect("just claimed");
            let ended = ended.refuse(Status::Declined, busy);
            for region in ended.regions.into_iter().flatten() {
                regions.leave(region, 1);
            }
            return Some(ended.completion);
        }
        self.newly_parked |= 1 << session;
        let parked = self.metadata.keep((id, pending.wanted().client.session), metadata);
        shard.lines().of(line).push_back(parked);
        shard.count_request();
        self.parked_of[session] += 1;
        self.set_deadline(request, id, now.ns);
        None
    }

    fn set_deadline(&mut self, request: &RequestSnapshot, id: kvrail_device::SlotId, now_ns: u64) {
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
        let hold = match request.hold_ms() {
            0 => Hold::No,
            ms => Hold::For(u64::from(ms) * 1_000_000),
        };
        let (first, grant) = self.find(session, request.handle(), lows[0])?;
        let several = self.groups[self.group_of_shard(first)].members > 1;
        if !several {
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
        Ok(match shard.suspect(report, now.ns) {
            Some(true) => (0, Status::Ok),
            Some(false) => (0, Status::Miss),
            None => (reason_number(Reason::Busy), Status::Declined),
        })
    }
}

/// The room that a request needs.
pub(super) fn room_of(ask: &Ask) -> Room {
    match ask {
        Ask::Put { at: 0, .. } => Room::Put,
        Ask::Put { .. } => Room::Part,
        Ask::Get(_) => Room::Get,
        Ask::Drop { .. } => Room::Drop,
    }
}

fn key_of(request: &RequestSnapshot) -> Key {
    let [lo, hi] = request.key();
    Key::of(hi, lo)
}

/// Parts have 1 byte to what one request may move.
fn sized(length: u32) -> Result<(), Status> {
    if length.wrapping_sub(1) < REQUEST_LENGTH_MAX { Ok(()) } else { Err(Status::Invalid) }
}

/// A lookup's answer in one word.
fn bits(found: &Found) -> u32 {
    let byte = |bits: u64| u32::try_from(bits).expect("five keys at most");
    byte(found.found) | byte(found.held) << 8 | byte(found.warming) << 16
}
