//! Submission: requests checked, cut into pieces, written into lanes.

use kvrail_ring::Opcode;
use kvrail_ring::slot::FLAG_DURABLE;

use crate::block_op::crc_of;
use crate::done::Ticket;
use crate::inflight::{Checksum, Inflight, InflightTable, Origin};
use crate::lanes::{Lanes, Room};
use crate::request::{CHECKSUM, Request, VERIFY};
use crate::route::{LanePiece, VolumeRoute};
use crate::submit_error_kind::SubmitErrorKind;
use crate::tag::ClientTag;

const CHECKSUM_FLAGS: u8 = CHECKSUM | VERIFY;

/// Whether requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueState {
    /// They are.
    Open,
    /// The session has ended; everything in flight was handed out.
    Gone,
    /// The sidecar broke the protocol; what is in flight may still complete.
    Broken,
}

/// Why a request was not staged.
#[derive(Debug)]
pub(crate) enum NotStaged {
    Reason(SubmitErrorKind),
    /// Its lane cannot be used any more.
    Poisoned(String),
    /// A write whose bytes have another checksum than expected: it ends so, with this one.
    Corrupt(u64),
}

impl From<SubmitErrorKind> for NotStaged {
    fn from(reason: SubmitErrorKind) -> Self {
        Self::Reason(reason)
    }
}

/// What requests are checked against.
#[derive(Debug)]
pub(crate) struct Submitter {
    /// The client's, for requests to be compared with.
    tag: ClientTag,
    routes: Vec<VolumeRoute>,
    last_ticket: u64,
    state: QueueState,
}

impl Submitter {
    pub(crate) fn new(tag: ClientTag, routes: Vec<VolumeRoute>) -> Self {
        Self { tag, routes, last_ticket: 0, state: QueueState::Open }
    }

    pub(crate) fn state(&self) -> QueueState {
        self.state
    }

    pub(crate) fn set_state(&mut self, state: QueueState) {
        self.state = state;
    }

    /// Stages what most requests are: sound reads and writes of host memory, in one piece, without
    /// flags. Any other comes back for `stage_other`.
    ///
    /// Nothing here takes the request's address, and nothing can panic while it is held: it stays
    /// in registers on its way to the table.
    #[expect(clippy::result_large_err, reason = "a request that is not taken stays unboxed")]
    #[inline(always)]
    pub(crate) fn stage(
        &mut self,
        request: Request,
        lanes: &mut Lanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, Request> {
        if let Some(piece) = self.plain_piece(&request)
            && let Some(room) = lanes.room(piece.lane)
            && let Some(entry) = inflight.claim()
        {
            return Ok(self.occupy(request, piece, entry, room));
        }
        Err(request)
    }

    /// Moves a checked request of one piece into the table and its lane.
    #[inline(always)]
    fn occupy(
        &mut self,
        request: Request,
        piece: LanePiece,
        entry: &mut Inflight,
        room: Room<'_>,
    ) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let template = Template::of(&request);
        let user_data = entry.occupy(piece, ticket, request);
        room.stage(template.slot(piece, user_data));
        ticket
    }

    /// The piece of a request that `stage` takes.
    #[inline(always)]
    fn plain_piece(&self, request: &Request) -> Option<LanePiece> {
        let route = self.routes.get(usize::from(request.volume))?;
        let lease = request.lease.as_ref()?;
        let open = self.state == QueueState::Open && request.client == self.tag;
        let moves = matches!(request.opcode, Opcode::Read | Opcode::Write);
        if !open || !moves || request.flags != 0 {
            return None;
        }
        route.check_range(request).ok()?;
        route.check_lease(request, lease).ok()?;
        route.single(request)
    }

    /// The rest of `stage`: all other requests, and why one cannot be taken. Takes the lease when
    /// it takes the request.
    pub(crate) fn stage_other(
        &mut self,
        request: &mut Request,
        lanes: &mut Lanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, NotStaged> {
        self.admit(request)?;
        let piece = self.single(request, lanes.count())?;
        if request.flags & CHECKSUM_FLAGS != 0 {
            let checksum = checksum_of(request)?;
            return self.stage_pieces(request, checksum, lanes, inflight);
        }
        let Some(piece) = piece else {
            return self.stage_pieces(request, Checksum::Off, lanes, inflight);
        };
        reserve((piece.lane, 1), lanes, inflight)?;
        let (room, entry) = (lanes.room(piece.lane), inflight.claim());
        let (room, entry) = room.zip(entry).expect("there is room, just seen");
        let whole = Request { lease: request.lease.take(), ..request.bare() };
        Ok(self.occupy(whole, piece, entry, room))
    }

    /// Whether requests are taken now.
    pub(crate) fn check_state(&self) -> Result<(), SubmitErrorKind> {
        match self.state {
            QueueState::Open => Ok(()),
            QueueState::Gone => Err(SubmitErrorKind::SidecarGone),
            QueueState::Broken => Err(SubmitErrorKind::Broken),
        }
    }

    /// The name of the next request.
    pub(crate) fn next_ticket(&mut self) -> Ticket {
        self.last_ticket += 1;
        Ticket(self.last_ticket)
    }

    /// Checks what every request must fulfil.
    fn admit(&self, request: &Request) -> Result<(), SubmitErrorKind> {
        self.check_state()?;
        if request.client != self.tag {
            return Err(SubmitErrorKind::Foreign { what: "volume" });
        }
        if request.flags != 0 {
            check_flags(request)?;
        }
        Ok(())
    }

    /// The piece of an admitted request, if it is one.
    fn single(
        &self,
        request: &Request,
        lanes: usize,
    ) -> Result<Option<LanePiece>, SubmitErrorKind> {
        if request.opcode == Opcode::Nop {
            let (poller, lane) = (usize::from(request.lane), request.lane);
            let piece = LanePiece { lane, volume_offset: 0, length: 0 };
            let missing = SubmitErrorKind::NoPoller { poller, count: lanes };
            return if poller < lanes { Ok(Some(piece)) } else { Err(missing) };
        }
        let Some(route) = self.routes.get(usize::from(request.volume)) else {
            return Err(SubmitErrorKind::Foreign { what: "volume" });
        };
        if request.opcode != Opcode::Flush {
            route.check_range(request)?;
        }
        if matches!(request.opcode, Opcode::Read | Opcode::Write) {
            route.check_memory(request)?;
        }
        Ok(route.single(request))
    }

    /// Makes sure that all pieces of a request fit; returns how many they are.
    fn reserve_all(
        &self,
        request: &Request,
        lanes: &mut Lanes,
        inflight: &InflightTable,
    ) -> Result<u32, NotStaged> {
        let capacity = inflight.capacity();
        let mut wanted = [0_u32; kvrail_ring::limits::POLLERS_MAX as usize];
        let mut total = 0;
        for piece in self.routes[usize::from(request.volume)].pieces(request) {
            total += 1;
            if total as usize > capacity {
                return Err(SubmitErrorKind::TooManyPieces { capacity }.into());
            }
            wanted[usize::from(piece.lane)] += 1;
        }
        if total as usize > inflight.room() {
            return Err(full(inflight).into());
        }
        for need in (0_u16..).zip(wanted).filter(|(_, wanted)| *wanted > 0) {
            reserve(need, lanes, inflight)?;
        }
        Ok(total)
    }

    /// Writes all pieces of a request into their lanes.
    #[inline(never)]
    fn stage_pieces(
        &mut self,
        request: &mut Request,
        checksum: Checksum,
        lanes: &mut Lanes,
        inflight: &mut InflightTable,
    ) -> Result<Ticket, NotStaged> {
        let count = self.reserve_all(request, lanes, inflight)?;
        let template = Template::of(request);
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        let (tag, opcode, lease) = (request.tag, request.opcode, request.lease.take());
        let head = inflight.add_head(count, Origin { ticket, tag, opcode, lease, checksum });
        for piece in self.routes[usize::from(request.volume)].pieces(request) {
            let user_data = inflight.add_piece(piece, head);
            let room = lanes.room(piece.lane).expect("there is room, just seen");
            room.stage(template.slot(piece, user_data));
        }
        Ok(ticket)
    }
}

/// Makes sure that so many pieces fit into the table and a lane.
fn reserve(
    (lane, pieces): (u16, u32),
    lanes: &mut Lanes,
    inflight: &InflightTable,
) -> Result<(), NotStaged> {
    if inflight.room() < pieces as usize {
        return Err(full(inflight).into());
    }
    match lanes.fit(lane, pieces) {
        Ok(true) => Ok(()),
        Ok(false) => Err(full(inflight).into()),
        Err(fault) => Err(NotStaged::Poisoned(format!("request lane {lane}: {fault}"))),
    }
}

fn full(inflight: &InflightTable) -> SubmitErrorKind {
    let capacity = inflight.capacity();
    SubmitErrorKind::Full { outstanding: capacity - inflight.room(), capacity }
}

/// What is to be done about the checksum of an admitted read or write. That of a write is known
/// before it is submitted.
fn checksum_of(request: &Request) -> Result<Checksum, NotStaged> {
    let expected = (request.flags & VERIFY != 0).then_some(request.checksum);
    let Some(lease) = &request.lease else { return Err(SubmitErrorKind::GpuChecksum.into()) };
    if request.opcode == Opcode::Read {
        return Ok(expected.map_or(Checksum::Compute, Checksum::Verify));
    }
    let bytes = usize::try_from(request.length).expect("no more than the lease has");
    let computed = crc_of(&lease[..bytes]);
    match expected {
        Some(expected) if expected != computed => Err(NotStaged::Corrupt(computed)),
        _ => Ok(Checksum::Known(computed)),
    }
}

/// Flags that mean nothing for an operation are refused here, with the reason.
fn check_flags(request: &Request) -> Result<(), SubmitErrorKind> {
    let opcode = request.opcode;
    let moves = matches!(opcode, Opcode::Read | Opcode::Write);
    if request.flags & CHECKSUM_FLAGS != 0 && !moves {
        return Err(SubmitErrorKind::Unfit { option: "a checksum", opcode });
    }
    if request.flags & FLAG_DURABLE != 0 && opcode != Opcode::Write {
        return Err(SubmitErrorKind::Unfit { option: "durable", opcode });
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
        let mut place = lease.map_or((0, 0), |lease| (lease.region().0, lease.offset() as u64));
        let mut layout_block = 0;
        if let Some(range) = &request.gpu {
            place = (range.region.0, range.start);
            layout_block = range.block;
        }
        let (region, region_offset) = place;
        let slot = kvrail_ring::Request {
            opcode: request.opcode as u8,
            flags: request.flags & FLAG_DURABLE,
            class: request.class as u8,
            region,
            volume: request.volume,
            region_offset,
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
