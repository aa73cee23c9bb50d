//! Submission: checked, cut, named, written into lanes, published.

use kvrail_ring::slot::{FLAG_CHECKSUM, FLAG_DURABLE, FLAG_VERIFY};
use kvrail_ring::{Opcode, Ring};

use crate::done::Ticket;
use crate::flights::Origin;
use crate::plan::LanePiece;
use crate::queue::{LaneEnd, Life, Queue};
use crate::refused::{Reason, Refused};
use crate::request::Request;

const CHECKSUM_FLAGS: u8 = FLAG_CHECKSUM | FLAG_VERIFY;

impl LaneEnd {
    #[inline(always)]
    fn put(&mut self, slot: kvrail_ring::Request) {
        self.lane.stage(slot);
        self.outstanding += 1;
    }
}

impl Queue {
    /// Submits a request: checks it, cuts it at stripe borders, publishes it. A system call is
    /// made only to wake a sleeping poller.
    ///
    /// # Errors
    /// `Refused` gives the request back with the reason; nothing happened.
    #[expect(clippy::result_large_err, reason = "a refused request keeps its lease, unboxed")]
    #[inline(always)]
    pub fn submit(&mut self, request: Request) -> Result<Ticket, Refused> {
        let ticket = self.stage(request)?;
        self.publish();
        Ok(ticket)
    }

    /// Submits requests until one is refused; pushes the tickets of those submitted. All of them
    /// are published together, with one store for each lane.
    ///
    /// # Errors
    /// The first refused request; those behind it are still in the iterator.
    #[expect(clippy::result_large_err, reason = "a refused request keeps its lease, unboxed")]
    pub fn submit_all(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), Refused> {
        let mut outcome = Ok(());
        for request in requests {
            match self.stage(request) {
                Ok(ticket) => tickets.push(ticket),
                Err(refused) => {
                    outcome = Err(refused);
                    break;
                }
            }
        }
        self.publish();
        outcome
    }

    /// Checks a request and writes it into its lanes; the sidecar sees it after `publish`.
    ///
    /// # Errors
    /// As `submit`.
    #[expect(clippy::result_large_err, reason = "a refused request keeps its lease, unboxed")]
    #[inline(always)]
    pub fn stage(&mut self, request: Request) -> Result<Ticket, Refused> {
        // What most are: sound, and one piece. Nothing here takes the request's address, and
        // nothing can panic while it is held: it stays in registers on its way to the table.
        if let Some(piece) = self.simple(&request)
            && let Some(end) = self.lanes.get_mut(usize::from(piece.lane))
            && end.lane.has_room()
            && let Some(flight) = self.flights.claim()
        {
            self.last_ticket += 1;
            let ticket = Ticket(self.last_ticket);
            let template = Template::of(&request);
            let user_data = flight.carry(piece, ticket, request);
            end.put(template.slot(piece, user_data));
            self.staged |= 1 << piece.lane;
            return Ok(ticket);
        }
        self.stage_any(request.anew())
    }

    /// As `stage`, for any request.
    #[expect(clippy::result_large_err, reason = "a refused request keeps its lease, unboxed")]
    #[inline(never)]
    fn stage_any(&mut self, mut request: Request) -> Result<Ticket, Refused> {
        match self.launch(&mut request) {
            Ok(ticket) => Ok(ticket),
            Err(reason) => Err(Refused { request, reason }),
        }
    }

    /// Takes the request's lease when it takes the request.
    fn launch(&mut self, request: &mut Request) -> Result<Ticket, Reason> {
        self.admit(request)?;
        let Some(piece) = self.single(request)? else { return self.launch_pieces(request) };
        self.reserve(piece.lane, 1)?;
        let template = Template::of(request);
        let ticket = self.next_ticket();
        let flight = self.flights.claim().expect("there is room, just seen");
        let lease = request.lease.take();
        let user_data = flight.carry(piece, ticket, Request { lease, ..request.bare() });
        self.staged |= 1 << piece.lane;
        self.lanes[usize::from(piece.lane)].put(template.slot(piece, user_data));
        Ok(ticket)
    }

    /// The piece of a read or write of host memory without flags, if it is sound and one piece. Any
    /// other request is for `launch`.
    #[inline(always)]
    fn simple(&self, request: &Request) -> Option<LanePiece> {
        let plan = self.plans.get(usize::from(request.volume))?;
        let lease = request.lease.as_ref()?;
        let open = self.life == Life::Open && request.client == self.tag;
        let moves = matches!(request.opcode, Opcode::Read | Opcode::Write);
        if !open || !moves || request.flags != 0 {
            return None;
        }
        plan.check_range(request).ok()?;
        plan.check_lease(request, lease).ok()?;
        plan.single(request)
    }

    /// Publishes everything staged, with one store for each lane, and wakes pollers that sleep.
    #[inline]
    pub fn publish(&mut self) {
        while self.staged != 0 {
            let end = &mut self.lanes[self.staged.trailing_zeros() as usize];
            self.staged &= self.staged - 1;
            if end.lane.publish() == Ring::Now {
                end.doorbell.ring();
            }
        }
    }

    /// Checks what every request must fulfil.
    fn admit(&self, request: &Request) -> Result<(), Reason> {
        match self.life {
            Life::Open => {}
            Life::Gone => return Err(Reason::SidecarGone),
            Life::Broken => return Err(Reason::Broken),
        }
        if request.client != self.tag {
            return Err(Reason::Foreign { what: "volume" });
        }
        if request.flags != 0 {
            check_flags(request)?;
        }
        Ok(())
    }

    /// The piece of an admitted request, if it is one.
    fn single(&self, request: &Request) -> Result<Option<LanePiece>, Reason> {
        if request.opcode == Opcode::Nop {
            return self.single_nop(request);
        }
        let Some(plan) = self.plans.get(usize::from(request.volume)) else {
            return Err(Reason::Foreign { what: "volume" });
        };
        if request.opcode != Opcode::Flush {
            plan.check_range(request)?;
        }
        if matches!(request.opcode, Opcode::Read | Opcode::Write) {
            plan.check_memory(request)?;
        }
        let piece = plan.single(request);
        if piece.is_none() && request.flags & CHECKSUM_FLAGS != 0 {
            return Err(Reason::ChecksumOverPieces);
        }
        Ok(piece)
    }

    fn single_nop(&self, request: &Request) -> Result<Option<LanePiece>, Reason> {
        let (poller, count) = (usize::from(request.lane), self.lanes.len());
        if poller >= count {
            return Err(Reason::NoPoller { poller, count });
        }
        Ok(Some(LanePiece { lane: request.lane, volume_offset: 0, length: 0 }))
    }

    /// Makes sure that `pieces` pieces fit into a lane.
    fn reserve(&mut self, lane: u16, pieces: u32) -> Result<(), Reason> {
        if self.flights.room() < pieces as usize {
            return Err(self.full());
        }
        match self.lanes[usize::from(lane)].lane.free(pieces) {
            Ok(free) if free >= pieces => Ok(()),
            // The poller gives request slots back a moment after it took them.
            Ok(_) => Err(self.full()),
            Err(fault) => {
                self.break_off(&format!("request lane {lane}: {fault}"));
                Err(Reason::Broken)
            }
        }
    }

    /// Makes sure that all pieces of a request fit.
    fn reserve_all(&mut self, request: &Request) -> Result<(), Reason> {
        let capacity = self.capacity();
        let plan = &self.plans[usize::from(request.volume)];
        let mut wanted = [0_u32; kvrail_ring::limits::POLLERS_MAX as usize];
        let mut total = 0;
        for piece in plan.pieces(request) {
            total += 1;
            if total > capacity {
                return Err(Reason::TooManyPieces { capacity });
            }
            wanted[usize::from(piece.lane)] += 1;
        }
        if total > self.flights.room() {
            return Err(self.full());
        }
        for (lane, wanted) in (0_u16..).zip(wanted).filter(|(_, wanted)| *wanted > 0) {
            self.reserve(lane, wanted)?;
        }
        Ok(())
    }

    fn full(&self) -> Reason {
        Reason::Full { outstanding: self.outstanding(), capacity: self.capacity() }
    }

    /// Writes all pieces of a request into their lanes.
    #[inline(never)]
    fn launch_pieces(&mut self, request: &mut Request) -> Result<Ticket, Reason> {
        self.reserve_all(request)?;
        let template = Template::of(request);
        let ticket = self.next_ticket();
        let (tag, opcode, lease) = (request.tag, request.opcode, request.lease.take());
        let origin = Origin { ticket, tag, opcode, lease };
        let plan = &self.plans[usize::from(request.volume)];
        let count = u32::try_from(plan.pieces(request).count()).expect("at most the depth");
        let head = self.flights.add_head(count, origin);
        for piece in plan.pieces(request) {
            let user_data = self.flights.add_piece(piece, head);
            self.staged |= 1 << piece.lane;
            self.lanes[usize::from(piece.lane)].put(template.slot(piece, user_data));
        }
        Ok(ticket)
    }

    fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }
}

/// Flags that mean nothing for an operation are refused here, with the reason.
fn check_flags(request: &Request) -> Result<(), Reason> {
    let opcode = request.opcode;
    let moves = matches!(opcode, Opcode::Read | Opcode::Write);
    if request.flags & CHECKSUM_FLAGS != 0 && !moves {
        return Err(Reason::Unfit { option: "a checksum", opcode });
    }
    if request.flags & FLAG_DURABLE != 0 && opcode != Opcode::Write {
        return Err(Reason::Unfit { option: "durable", opcode });
    }
    Ok(())
}

/// What all pieces of a request have in common, as it stands in a lane.
#[derive(Clone, Copy, Debug)]
struct Template {
    slot: kvrail_ring::Request,
    /// First byte of the request in the volume, if its bytes have a place in memory.
    memory_at: Option<u64>,
}

impl Template {
    #[inline(always)]
    fn of(request: &Request) -> Self {
        let lease = request.lease.as_ref();
        let mut place = lease.map_or((0, 0), |lease| (lease.region.0, lease.offset() as u64));
        let mut layout_block = 0;
        if let Some(range) = &request.gpu {
            place = (range.region.0, range.start);
            layout_block = range.block;
        }
        let (region, region_offset) = place;
        let slot = kvrail_ring::Request {
            opcode: request.opcode as u8,
            flags: request.flags,
            class: request.class as u8,
            region,
            volume: request.volume,
            region_offset,
            checksum: request.checksum,
            deadline_ns: request.deadline_ns,
            layout_block,
            ..kvrail_ring::Request::default()
        };
        let moves = lease.is_some() || request.gpu.is_some();
        Self { slot, memory_at: moves.then_some(request.offset) }
    }

    #[inline(always)]
    fn slot(&self, piece: LanePiece, user_data: u64) -> kvrail_ring::Request {
        let inside = self.memory_at.map_or(0, |from| piece.volume_offset - from);
        kvrail_ring::Request {
            user_data,
            length: piece.length,
            volume_offset: piece.volume_offset,
            region_offset: self.slot.region_offset + inside,
            ..self.slot
        }
    }
}
