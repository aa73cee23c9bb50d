//! Requests under way: a fixed table, one entry for each piece in a lane, and the joining of
//! pieces.
//!
//! `user_data` on the wire is the entry's index (low half) and its generation (high half). Both
//! are checked, and so is the lane, before a completion is believed.

use kvrail_protocol::Hardware;
use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{CompletionWords, Opcode, Status};

use crate::arena::Lease;
use crate::done::{Done, Ticket};
use crate::request::Request;

/// Where completions go.
pub(crate) trait Sink {
    /// Adds an end, and shows it where it lies now.
    fn push(&mut self, done: Done) -> &mut Done;
    fn count(&self) -> usize;
}

impl Sink for Vec<Done> {
    #[inline(always)]
    fn push(&mut self, done: Done) -> &mut Done {
        Self::push(self, done);
        self.last_mut().expect("just pushed")
    }

    fn count(&self) -> usize {
        self.len()
    }
}

impl Sink for std::collections::VecDeque<Done> {
    #[inline]
    fn push(&mut self, done: Done) -> &mut Done {
        self.push_back(done);
        self.back_mut().expect("just pushed")
    }

    fn count(&self) -> usize {
        self.len()
    }
}

/// A completion that cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untrue {
    /// Names nothing that is under way in this lane.
    Unknown(u64),
    /// OK, but with another number of bytes than were asked for.
    Short {
        /// Bytes asked for.
        asked: u32,
        /// Bytes said to be moved.
        moved: u32,
    },
}

/// What a request owns while it is under way.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) ticket: Ticket,
    pub(crate) tag: u64,
    pub(crate) opcode: Opcode,
    pub(crate) lease: Option<Lease>,
}

/// Whose piece it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Free; the next free entry is on the stack, not here.
    Nobody,
    /// The only piece of its request, which is here.
    Single,
    /// One of several; the index of their head.
    Head(u32),
}

/// A piece under way. The lease stays here from submission to completion: it is moved in once and
/// out once.
#[derive(Debug)]
struct Flight {
    generation: u32,
    lane: u16,
    length: u32,
    owner: Owner,
    /// Of the only piece; meaningless otherwise, and then without a lease.
    origin: Origin,
}

impl Flight {
    const FREE: Self = Self {
        generation: 0,
        lane: 0,
        length: 0,
        owner: Owner::Nobody,
        origin: Origin { ticket: Ticket(0), tag: 0, opcode: Opcode::Nop, lease: None },
    };

    /// Whether OK promises `length` bytes.
    fn moves(&self) -> bool {
        matches!(self.origin.opcode, Opcode::Read | Opcode::Write)
    }
}

/// A request with several pieces under way.
#[derive(Debug)]
struct Head {
    origin: Option<Origin>,
    left: u32,
    status: Status,
    bytes: u64,
    device_ns: u32,
    queue_ns: u32,
    late: bool,
}

/// How a piece ended.
#[derive(Clone, Copy, Debug)]
struct End {
    status: Status,
    bytes: u32,
    checksum: u64,
    device_ns: u32,
    queue_ns: u32,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Flights {
    flights: Vec<Flight>,
    free: Vec<u32>,
    heads: Vec<Head>,
    free_heads: Vec<u32>,
    /// Memory that hardware may still write although its request has ended.
    fenced: Vec<Lease>,
}

impl Flights {
    /// A table for `depth` pieces. Every head under way has at least one piece under way, so as
    /// many heads are enough.
    pub(crate) fn new(depth: u32) -> Self {
        let head = |_| Head {
            origin: None,
            left: 0,
            status: Status::Ok,
            bytes: 0,
            device_ns: 0,
            queue_ns: 0,
            late: false,
        };
        Self {
            flights: (0..depth).map(|_| Flight::FREE).collect(),
            free: (0..depth).rev().collect(),
            heads: (0..depth).map(head).collect(),
            free_heads: (0..depth).rev().collect(),
            fenced: Vec::new(),
        }
    }

    /// Pieces the table holds.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.flights.len()
    }

    /// Pieces that can be added.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Adds a request of one piece; returns its `user_data`. The caller has asked `room`.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        lane: u16,
        length: u32,
        ticket: Ticket,
        request: &mut Request,
    ) -> u64 {
        let (index, flight) = self.enter(lane, length, Owner::Single);
        flight.origin.ticket = ticket;
        flight.origin.tag = request.tag;
        flight.origin.opcode = request.opcode;
        debug_assert!(flight.origin.lease.is_none(), "a free entry owns nothing");
        flight.origin.lease = request.lease.take();
        u64::from(flight.generation) << 32 | u64::from(index)
    }

    /// Adds a request of `pieces` pieces, at least two, to be added by `add_piece`.
    pub(crate) fn add_head(&mut self, pieces: u32, origin: Origin) -> u32 {
        debug_assert!(pieces > 1, "a request of one piece needs no head");
        let head = self.free_heads.pop().expect("as many heads as pieces, and room for these");
        self.heads[head as usize] = Head {
            origin: Some(origin),
            left: pieces,
            status: Status::Ok,
            bytes: 0,
            device_ns: 0,
            queue_ns: 0,
            late: false,
        };
        head
    }

    /// Adds one piece of a request; returns its `user_data`.
    pub(crate) fn add_piece(&mut self, lane: u16, length: u32, head: u32) -> u64 {
        let origin = self.heads[head as usize].origin.as_ref().expect("added before its pieces");
        let opcode = origin.opcode;
        let (index, flight) = self.enter(lane, length, Owner::Head(head));
        flight.origin.opcode = opcode;
        u64::from(flight.generation) << 32 | u64::from(index)
    }

    #[inline(always)]
    fn enter(&mut self, lane: u16, length: u32, owner: Owner) -> (u32, &mut Flight) {
        let index = self.free.pop().expect("the caller has asked for room");
        let flight = &mut self.flights[index as usize];
        (flight.lane, flight.length, flight.owner) = (lane, length, owner);
        (index, flight)
    }

    /// Believes a completion or notice of this lane, if it can be true. A completion that is
    /// short of bytes ends its request as INTERNAL. Returns whether a piece ended.
    #[inline(always)]
    pub(crate) fn settle(
        &mut self,
        lane: u16,
        completion: &CompletionWords,
        sink: &mut impl Sink,
    ) -> Result<bool, Untrue> {
        let [generation, index] = halves(completion.user_data());
        let unknown = Untrue::Unknown(completion.user_data());
        let flight = self.flights.get_mut(index as usize).ok_or(unknown)?;
        let live = flight.owner != Owner::Nobody;
        if !live || flight.generation != generation || flight.lane != lane {
            return Err(unknown);
        }
        if completion.flags() & FLAG_NOTICE != 0 {
            self.notice(index, sink);
            return Ok(false);
        }
        let (asked, moved) = (flight.length, completion.bytes());
        let mut end = End {
            status: completion.status(),
            bytes: moved,
            checksum: completion.checksum(),
            device_ns: completion.device_ns(),
            queue_ns: completion.queue_ns(),
        };
        // Invariant 3: OK means every byte asked for.
        let short = end.status == Status::Ok && flight.moves() && moved != asked;
        if short {
            end.status = Status::Internal;
        }
        self.finish(index, end, Hardware::Settled, sink);
        if short { Err(Untrue::Short { asked, moved }) } else { Ok(true) }
    }

    /// Ends a piece; hands out its request if it was the last.
    #[inline(always)]
    fn finish(&mut self, index: u32, end: End, hardware: Hardware, sink: &mut impl Sink) {
        let flight = &mut self.flights[index as usize];
        flight.generation = flight.generation.wrapping_add(1);
        let owner = std::mem::replace(&mut flight.owner, Owner::Nobody);
        self.free.push(index);
        match owner {
            Owner::Single => {
                let Origin { ticket, tag, opcode, .. } = flight.origin;
                if opcode == Opcode::Read && hardware == Hardware::MayBeActive {
                    self.fenced.extend(flight.origin.lease.take()); // invariant 2
                }
                let End { status, bytes, checksum, device_ns, queue_ns } = end;
                let (bytes, lease) = (u64::from(bytes), None);
                // The lease goes from here to there: made into one struct with the rest on the
                // stack it would be loaded wide right after it was stored narrow.
                let done = sink.push(Done {
                    ticket,
                    tag,
                    status,
                    bytes,
                    checksum,
                    device_ns,
                    queue_ns,
                    lease,
                });
                done.lease = flight.origin.lease.take();
            }
            Owner::Head(head) => self.join(head, end, hardware, sink),
            Owner::Nobody => {}
        }
    }

    #[inline(never)]
    fn join(&mut self, index: u32, end: End, hardware: Hardware, sink: &mut impl Sink) {
        let head = &mut self.heads[index as usize];
        head.left -= 1;
        if severity(end.status) > severity(head.status) {
            head.status = end.status;
        }
        head.bytes += u64::from(end.bytes);
        head.device_ns = head.device_ns.max(end.device_ns);
        head.queue_ns = head.queue_ns.max(end.queue_ns);
        if head.left > 0 {
            return;
        }
        let (device_ns, queue_ns, bytes) = (head.device_ns, head.queue_ns, head.bytes);
        let (status, checksum) = (head.status, 0);
        let origin = head.origin.take().expect("a head lives until its last piece ends");
        self.free_heads.push(index);
        let Origin { ticket, tag, opcode, mut lease } = origin;
        if opcode == Opcode::Read && hardware == Hardware::MayBeActive {
            self.fenced.extend(lease.take()); // invariant 2: may still be written
        }
        sink.push(Done { ticket, tag, status, bytes, checksum, device_ns, queue_ns, lease });
    }

    /// Passes a notice on, once for each request.
    #[cold]
    fn notice(&mut self, index: u32, sink: &mut impl Sink) {
        let flight = &self.flights[index as usize];
        let origin = match flight.owner {
            Owner::Single => &flight.origin,
            Owner::Head(head) => {
                let head = &mut self.heads[head as usize];
                if std::mem::replace(&mut head.late, true) {
                    return;
                }
                head.origin.as_ref().expect("a head lives until its last piece ends")
            }
            Owner::Nobody => return,
        };
        let (ticket, tag, status) = (origin.ticket, origin.tag, Status::Late);
        let (bytes, checksum, device_ns, queue_ns, lease) = (0, 0, 0, 0, None);
        sink.push(Done { ticket, tag, status, bytes, checksum, device_ns, queue_ns, lease });
    }

    /// Ends everything under way with this status.
    pub(crate) fn abandon(&mut self, status: Status, hardware: Hardware, sink: &mut impl Sink) {
        let end = End { status, bytes: 0, checksum: 0, device_ns: 0, queue_ns: 0 };
        for index in 0..self.flights.len() {
            if self.flights[index].owner != Owner::Nobody {
                let index = u32::try_from(index).expect("a lane has few slots");
                self.finish(index, end, hardware, sink);
            }
        }
    }

    /// Memory of abandoned reads.
    pub(crate) fn take_fenced(&mut self) -> Vec<Lease> {
        std::mem::take(&mut self.fenced)
    }
}

fn halves(user_data: u64) -> [u32; 2] {
    [user_data >> 32, user_data & 0xffff_ffff]
        .map(|half| u32::try_from(half).expect("half of 64 bits"))
}

/// Of several pieces' statuses the one that says most about what may have happened: unknown
/// outcomes above failures, failures above "nothing was done".
fn severity(status: Status) -> u8 {
    match status {
        Status::Ok | Status::Late => 0,
        Status::Miss => 1,
        Status::Unsupported => 2,
        Status::Invalid => 3,
        Status::Quota => 4,
        Status::Draining => 5,
        Status::DeviceDegraded => 6,
        Status::Corrupt => 7,
        Status::NoSpace => 8,
        Status::DeviceGone => 9,
        Status::IoError => 10,
        Status::GpuError => 11,
        Status::Restarted => 12,
        Status::Internal => 13,
    }
}
