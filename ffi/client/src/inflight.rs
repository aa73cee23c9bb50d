//! Requests in flight: a fixed table, one entry for each piece in a lane, and the joining of
//! pieces.
//!
//! `user_data` on the wire is the entry's index (low half) and its generation (high half). Both
//! are checked, and so is the lane, before a completion is believed.

use kvrail_protocol::Hardware;
use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{CompletionSnapshot, Opcode, Status};

use crate::block_op::{BlockOp, Next, Verified, crc_of};
use crate::done::{BlockNote, Completed, Ticket};
use crate::lease::Lease;
use crate::request::Request;
use crate::route::LanePiece;
use crate::sink::CompletionSink;

/// A completion that cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BogusCompletion {
    /// Names nothing that is in flight in this lane.
    Unknown(u64),
    /// OK, but with another number of bytes than were asked for.
    Short {
        /// Bytes asked for.
        asked: u32,
        /// Bytes said to be moved.
        moved: u32,
    },
}

/// What a completion came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// A notice: nothing has ended.
    Notice,
    /// A piece has ended.
    Piece,
    /// So has a get, after a pass over many bytes. Whoever waits gets it before the next is looked
    /// at: else its program could not ask for more while the device has nothing to do.
    Long,
}

/// Bytes of a block whose check takes longer than a request's way to its device.
const LONG_BYTES: u64 = 64 << 10;

/// What a request owns while it is in flight.
#[derive(Debug)]
pub(crate) struct Origin {
    pub(crate) ticket: Ticket,
    pub(crate) tag: u64,
    pub(crate) opcode: Opcode,
    pub(crate) lease: Option<Lease>,
    pub(crate) checksum: Checksum,
}

/// The answer for some keys of a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeysAnswer {
    lookup: u32,
    /// Which keys, as the lookup counts them.
    pub(crate) group: u32,
    pub(crate) status: Status,
    /// One for each key that is there, and what else a slot's answer says.
    pub(crate) bits: u32,
}

/// What is to be done about a request's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// Nothing.
    Off,
    /// It is this one.
    Known(u64),
    /// Compute it at the end.
    Compute,
    /// The same, and other bytes are CORRUPT.
    Verify(u64),
}

impl Origin {
    /// Status and checksum of a request that ended with this status.
    fn summed(&self, status: Status, bytes: u64) -> (Status, u64) {
        let crc = || {
            let lease = self.lease.as_ref().expect("checksums are of leases");
            crc_of(&lease[..usize::try_from(bytes).expect("no more than the lease has")])
        };
        match self.checksum {
            _ if status != Status::Ok => (status, 0),
            Checksum::Off => (status, 0),
            Checksum::Known(crc) => (status, crc),
            Checksum::Compute => (status, crc()),
            Checksum::Verify(expected) => {
                let crc = crc();
                (if crc == expected { status } else { Status::Corrupt }, crc)
            }
        }
    }
}

/// The lane of what is in no lane.
const NO_LANE: u16 = u16::MAX;

/// The head of the only piece of a request.
const SINGLE: u32 = u32::MAX;

/// The head of an operation on a block.
const BLOCK: u32 = u32::MAX - 1;

/// The head of a lookup or release of some keys.
const KEYS: u32 = u32::MAX - 2;

/// The entry behind the last free one.
const NONE: u32 = u32::MAX;

/// A piece in flight, or a free entry. The lease stays here from submission to completion: it is
/// moved in once and out once.
#[derive(Debug)]
pub(crate) struct Inflight {
    /// `user_data` of the piece, or of the next one while the entry is free: index and generation.
    name: u64,
    /// Of the only piece of a request; else meaningless, as are tag and lease.
    ticket: Ticket,
    tag: u64,
    length: u32,
    /// The index of the head, for one of several pieces; else `SINGLE`.
    head: u32,
    next_free: u32,
    /// `NO_LANE` while the entry is free.
    lane: u16,
    opcode: Opcode,
    lease: Option<Lease>,
}

impl Inflight {
    fn free(index: u32, depth: u32) -> Self {
        Self {
            name: u64::from(index),
            ticket: Ticket(0),
            tag: 0,
            length: 0,
            head: SINGLE,
            next_free: if index + 1 < depth { index + 1 } else { NONE },
            lane: NO_LANE,
            opcode: Opcode::Nop,
            lease: None,
        }
    }

    /// Takes a lookup or release; returns its `user_data`.
    pub(crate) fn occupy_keys(&mut self, lane: u16, opcode: Opcode, tag: u64) -> u64 {
        (self.tag, self.opcode) = (tag, opcode);
        (self.lane, self.length, self.head) = (lane, 0, KEYS);
        self.name
    }

    /// Takes the only piece of a request; returns its `user_data`.
    #[inline(always)]
    pub(crate) fn occupy(&mut self, piece: LanePiece, ticket: Ticket, request: Request) -> u64 {
        (self.ticket, self.tag, self.opcode) = (ticket, request.tag, request.opcode);
        (self.lane, self.length, self.head) = (piece.lane, piece.length, SINGLE);
        let free = std::mem::replace(&mut self.lease, request.lease);
        debug_assert!(free.is_none(), "a free entry owns nothing");
        std::mem::forget(free); // or every request would ask whether there is something to drop
        self.name
    }

    /// Whether OK promises `length` bytes.
    fn moves(&self) -> bool {
        matches!(self.opcode, Opcode::Read | Opcode::Write)
    }

    /// Makes the entry free; its name is another one from now on.
    #[inline(always)]
    fn vacate(&mut self) {
        self.lane = NO_LANE;
        self.name = self.name.wrapping_add(1 << 32);
    }
}

/// A request with several pieces in flight.
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
pub(crate) struct InflightTable {
    entries: Vec<Inflight>,
    first_free: u32,
    /// Free entries.
    room: u32,
    heads: Vec<Head>,
    free_heads: Vec<u32>,
    /// Memory that hardware may still write although its request has ended.
    quarantined: Vec<Lease>,
    /// Operations on blocks, by entry. None where the sidecar has no store.
    blocks: Vec<Option<BlockOp>>,
    /// Those of them whose next request is to be sent.
    again: Vec<u32>,
    /// Pages for tails that no operation has.
    tails: Vec<Lease>,
    verified: Verified,
    /// Lookups that wait for answers; those of others are passed over.
    lookups: Vec<u32>,
    last_lookup: u32,
    /// What their lookups have not taken yet.
    answers: Vec<KeysAnswer>,
}

impl InflightTable {
    /// A table for `depth` pieces. Every head in flight has at least one piece in flight, so as
    /// many heads are enough.
    ///
    /// `tails` are pages for the tails of blocks: one for each entry, or none where the sidecar has
    /// no store.
    pub(crate) fn new(depth: u32, tails: Vec<Lease>) -> Self {
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
            entries: (0..depth).map(|index| Inflight::free(index, depth)).collect(),
            first_free: if depth == 0 { NONE } else { 0 },
            room: depth,
            heads: (0..depth).map(head).collect(),
            free_heads: (0..depth).rev().collect(),
            quarantined: Vec::new(),
            blocks: tails.iter().map(|_| None).collect(),
            again: Vec::with_capacity(tails.len()),
            tails,
            verified: Verified::default(),
            lookups: Vec::new(),
            last_lookup: 0,
            answers: Vec::new(),
        }
    }

    /// Pieces the table holds.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Pieces that can be added.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    /// An entry for one more piece, if there is one. It is the piece's from now on.
    #[inline(always)]
    pub(crate) fn claim(&mut self) -> Option<&mut Inflight> {
        let entry = self.entries.get_mut(self.first_free as usize)?;
        self.first_free = entry.next_free;
        self.room -= 1;
        Some(entry)
    }

    /// Adds a request of several pieces, or with a checksum; `add_piece` adds the pieces.
    pub(crate) fn add_head(&mut self, pieces: u32, origin: Origin) -> u32 {
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

    /// Adds one piece of a request; returns its `user_data`. The caller has asked `room`.
    pub(crate) fn add_piece(&mut self, piece: LanePiece, head: u32) -> u64 {
        let origin = self.heads[head as usize].origin.as_ref().expect("added before its pieces");
        let opcode = origin.opcode;
        let entry = self.claim().expect("the caller has asked for room");
        (entry.lane, entry.length) = (piece.lane, piece.length);
        (entry.head, entry.opcode) = (head, opcode);
        entry.name
    }

    /// Believes a completion or notice of this lane, if it can be true. A completion that is
    /// short of bytes ends its request as INTERNAL.
    #[inline(always)]
    pub(crate) fn settle(
        &mut self,
        lane: u16,
        completion: &CompletionSnapshot,
        sink: &mut impl CompletionSink,
    ) -> Result<Settled, BogusCompletion> {
        let [_, index] = halves(completion.user_data());
        let entry = self.entries.get_mut(index as usize);
        let entry = entry.filter(|it| it.name == completion.user_data() && it.lane == lane);
        let Some(entry) = entry else {
            return Err(BogusCompletion::Unknown(completion.user_data()));
        };
        // What most are: a whole request that ended well.
        if entry.head == SINGLE && completion.is_whole(entry.length) {
            entry.vacate();
            entry.next_free = std::mem::replace(&mut self.first_free, index);
            self.room += 1;
            sink.push_with(|| Completed {
                ticket: entry.ticket,
                tag: entry.tag,
                status: Status::Ok,
                bytes: u64::from(entry.length),
                checksum: completion.checksum(),
                note: BlockNote::None,
                replaced_bytes: 0,
                device_ns: completion.device_ns(),
                queue_ns: completion.queue_ns(),
                lease: entry.lease.take(),
            });
            return Ok(Settled::Piece);
        }
        self.settle_other(index, *completion, sink)
    }

    /// The rest of `settle`: notices, pieces, failures.
    #[cold]
    #[inline(never)]
    fn settle_other(
        &mut self,
        index: u32,
        completion: CompletionSnapshot,
        sink: &mut impl CompletionSink,
    ) -> Result<Settled, BogusCompletion> {
        let entry = &self.entries[index as usize];
        if completion.flags() & FLAG_NOTICE != 0 {
            if entry.head == KEYS {
                return Err(BogusCompletion::Unknown(completion.user_data())); // never asked for
            }
            self.notice(index, sink);
            return Ok(Settled::Notice);
        }
        if entry.head == BLOCK {
            return self.block_ended(index, &completion, sink);
        }
        let (asked, moved) = (entry.length, completion.bytes());
        let mut end = End {
            status: completion.status(),
            bytes: moved,
            checksum: completion.checksum(),
            device_ns: completion.device_ns(),
            queue_ns: completion.queue_ns(),
        };
        // Invariant 3: OK means every byte asked for.
        let short = end.status == Status::Ok && entry.moves() && moved != asked;
        if short {
            end.status = Status::Internal;
        }
        self.finish(index, end, Hardware::Settled, sink);
        if short { Err(BogusCompletion::Short { asked, moved }) } else { Ok(Settled::Piece) }
    }

    /// Takes an operation on a block; there must be room and a page. The caller sends its first
    /// request, as `next_again` says.
    pub(crate) fn add_block(&mut self, lane: u16, make: impl FnOnce(Option<Lease>) -> BlockOp) {
        let index = self.first_free;
        let op = make(self.tails.pop());
        let entry = self.claim().expect("the caller has asked for room");
        (entry.ticket, entry.tag) = op.names();
        (entry.lane, entry.length, entry.head) = (lane, u32::MAX, BLOCK);
        self.blocks[index as usize] = Some(op);
        self.again.push(index);
    }

    /// Whether blocks can be asked for.
    pub(crate) fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Whether operations on blocks have requests to be sent.
    #[inline(always)]
    pub(crate) fn is_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// The next operation with a request to be sent: its lane and `user_data`.
    pub(crate) fn next_again(&mut self, at: usize) -> Option<(u16, u64, &mut BlockOp)> {
        let index = *self.again.get(at)? as usize;
        let (entry, op) = (&self.entries[index], self.blocks[index].as_mut());
        Some((entry.lane, entry.name, op.expect("it is in flight")))
    }

    /// The request of the operation at this place was sent.
    pub(crate) fn sent_again(&mut self, at: usize) {
        self.again.remove(at);
    }

    /// What gets of this queue's blocks came to.
    pub(crate) fn verified(&self) -> Verified {
        self.verified
    }

    /// Answers of earlier lookups are passed over from now on; returns the number of the new one.
    pub(crate) fn begin_lookup(&mut self) -> u32 {
        self.last_lookup = self.last_lookup.wrapping_add(1);
        self.lookups.push(self.last_lookup);
        self.last_lookup
    }

    /// What it still waits for is passed over.
    pub(crate) fn end_lookup(&mut self, lookup: u32) {
        self.lookups.retain(|other| *other != lookup);
        self.answers.retain(|answer| answer.lookup != lookup);
    }

    /// Answers that were not taken yet.
    pub(crate) fn answer_count(&self) -> usize {
        self.answers.len()
    }

    /// Takes an answer for this lookup.
    pub(crate) fn take_answer(&mut self, lookup: u32) -> Option<KeysAnswer> {
        let at = self.answers.iter().rposition(|answer| answer.lookup == lookup)?;
        Some(self.answers.swap_remove(at))
    }

    #[inline(always)]
    fn vacate(&mut self, index: u32) {
        self.entries[index as usize].vacate();
        self.entries[index as usize].next_free = std::mem::replace(&mut self.first_free, index);
        self.room += 1;
    }

    /// A request for a block has ended: the operation goes on, or ends.
    fn block_ended(
        &mut self,
        index: u32,
        completion: &CompletionSnapshot,
        sink: &mut impl CompletionSink,
    ) -> Result<Settled, BogusCompletion> {
        let op = self.blocks[index as usize].as_mut().expect("its entry says so");
        let (end, bogus) = match op.ended(completion, &mut self.verified) {
            Next::Again => {
                self.again.push(index);
                return Ok(Settled::Piece);
            }
            Next::End(status, note, bytes) => ((status, note, bytes), None),
            Next::Bogus { asked, moved } => {
                let end = (Status::Internal, BlockNote::None, 0);
                (end, Some(BogusCompletion::Short { asked, moved }))
            }
        };
        let long = op.reads() && end.2 >= LONG_BYTES;
        self.end_block(index, end, Hardware::Settled, sink);
        bogus.map_or(Ok(if long { Settled::Long } else { Settled::Piece }), Err)
    }

    fn end_block(
        &mut self,
        index: u32,
        end: (Status, BlockNote, u64),
        hardware: Hardware,
        sink: &mut impl CompletionSink,
    ) {
        let op = self.blocks[index as usize].take().expect("its entry says so");
        self.again.retain(|other| *other != index);
        self.vacate(index);
        let reads = op.reads();
        let (mut done, tail) = op.into_done(end);
        match hardware {
            Hardware::Settled => self.tails.extend(tail),
            Hardware::MayBeActive => {
                self.quarantined.extend(tail); // invariant 2
                if reads {
                    self.quarantined.extend(done.lease.take());
                }
            }
        }
        sink.push_with(|| done);
    }

    /// Ends a piece; hands out its request if it was the last.
    fn finish(&mut self, index: u32, end: End, hardware: Hardware, sink: &mut impl CompletionSink) {
        let entry = &mut self.entries[index as usize];
        if entry.head == BLOCK {
            let end = (end.status, BlockNote::None, 0);
            return self.end_block(index, end, hardware, sink);
        }
        entry.vacate();
        entry.next_free = std::mem::replace(&mut self.first_free, index);
        self.room += 1;
        if entry.head == KEYS {
            let [lookup, group] = [entry.tag >> 32, entry.tag & u64::from(u32::MAX)]
                .map(|half| u32::try_from(half).expect("half of 64 bits"));
            if self.lookups.contains(&lookup) {
                let (status, bits) = (end.status, end.bytes);
                self.answers.push(KeysAnswer { lookup, group, status, bits });
            }
            return;
        }
        if entry.head < KEYS {
            let head = entry.head;
            return self.join(head, end, hardware, sink);
        }
        let (ticket, tag, mut lease) = (entry.ticket, entry.tag, entry.lease.take());
        if entry.opcode == Opcode::Read && hardware == Hardware::MayBeActive {
            self.quarantined.extend(lease.take()); // invariant 2
        }
        let End { status, bytes, checksum, device_ns, queue_ns } = end;
        let bytes = u64::from(bytes);
        sink.push_with(|| Completed {
            ticket,
            tag,
            status,
            bytes,
            checksum,
            note: BlockNote::None,
            replaced_bytes: 0,
            device_ns,
            queue_ns,
            lease,
        });
    }

    #[inline(never)]
    fn join(&mut self, index: u32, end: End, hardware: Hardware, sink: &mut impl CompletionSink) {
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
        let status = head.status;
        let origin = head.origin.take().expect("a head lives until its last piece ends");
        self.free_heads.push(index);
        let (status, checksum) = origin.summed(status, bytes);
        let Origin { ticket, tag, opcode, mut lease, .. } = origin;
        if opcode == Opcode::Read && hardware == Hardware::MayBeActive {
            self.quarantined.extend(lease.take()); // invariant 2: may still be written
        }
        sink.push_with(|| Completed {
            ticket,
            tag,
            status,
            bytes,
            checksum,
            note: BlockNote::None,
            replaced_bytes: 0,
            device_ns,
            queue_ns,
            lease,
        });
    }

    /// Passes a notice on, once for each request.
    #[cold]
    fn notice(&mut self, index: u32, sink: &mut impl CompletionSink) {
        let entry = &self.entries[index as usize];
        let (ticket, tag) = if entry.head >= BLOCK {
            let block = self.blocks.get_mut(index as usize).and_then(Option::as_mut);
            if block.is_some_and(|op| !op.is_newly_late()) {
                return;
            }
            (entry.ticket, entry.tag)
        } else {
            let head = &mut self.heads[entry.head as usize];
            if std::mem::replace(&mut head.late, true) {
                return;
            }
            let origin = head.origin.as_ref().expect("a head lives until its last piece ends");
            (origin.ticket, origin.tag)
        };
        let (status, lease) = (Status::Late, None);
        let (bytes, checksum, device_ns, queue_ns) = (0, 0, 0, 0);
        sink.push_with(|| Completed {
            ticket,
            tag,
            status,
            bytes,
            checksum,
            note: BlockNote::None,
            replaced_bytes: 0,
            device_ns,
            queue_ns,
            lease,
        });
    }

    /// Ends everything in flight with this status.
    pub(crate) fn fail_all(
        &mut self,
        status: Status,
        hardware: Hardware,
        sink: &mut impl CompletionSink,
    ) {
        let end = End { status, bytes: 0, checksum: 0, device_ns: 0, queue_ns: 0 };
        for index in 0..self.entries.len() {
            if self.entries[index].lane != NO_LANE {
                let index = u32::try_from(index).expect("a lane has few slots");
                self.finish(index, end, hardware, sink);
            }
        }
    }

    /// Memory of abandoned reads.
    pub(crate) fn take_quarantined(&mut self) -> Vec<Lease> {
        std::mem::take(&mut self.quarantined)
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
        Status::TooSmall => 2,
        Status::Declined => 3,
        Status::Stale => 4,
        Status::Unsupported => 5,
        Status::Denied => 6,
        Status::Invalid => 7,
        Status::Quota => 8,
        Status::Draining => 9,
        Status::DeviceDegraded => 10,
        Status::Corrupt => 11,
        Status::NoSpace => 12,
        Status::DeviceGone => 13,
        Status::IoError => 14,
        Status::GpuError => 15,
        Status::Restarted => 16,
        Status::Internal => 17,
    }
}
