//! A put, get or drop in flight: what it asks next, and what its completions mean.
//!
//! A block longer than a request is moved part by part, one after the other, by the same entry of
//! the in-flight table. A get whose bytes are wrong is read once more; then the sidecar is told,
//! and the get ends as a MISS. A replacing put that finds other bytes drops them, and begins anew.

use kvrail_crc::crc64;
use kvrail_ring::limits::{self, REQUEST_LENGTH_MAX};
use kvrail_ring::slot::{
    FLAG_DURABLE, FLAG_MORE, FLAG_PART, FLAG_PENDING, FLAG_PRESENT, FLAG_WARMING,
};
use kvrail_ring::{
    BlockSize, CompletionSnapshot, KeyedRequest, Opcode, RegionId, Side, Status, TimedCall,
};
use kvrail_store::Hint;

use crate::block_request::{BlockRequest, Existing, Verifier};
use crate::done::{BlockNote, Completed, Decline, Ticket};
use crate::lease::Lease;
use crate::opened::OpenedNamespace;

/// Bytes of a page for tails.
pub(crate) const TAIL_BYTES: usize = limits::TAIL_BYTES as usize;

/// How many blocks a replacing put drops: others that replace the same key at the same time could
/// keep it busy for ever.
const REPLACED_MAX: u8 = 8;

/// Where an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockStep {
    /// All bytes by one request, or a put's next part.
    Moving,
    /// A get part by part of a block this long.
    Parts { block_bytes: u32 },
    /// The sidecar is told that the block is wrong.
    Telling { check: u64 },
    /// A put drops the block with this check, which has other bytes.
    Dropping { check: u64 },
}

/// An operation on a block.
#[derive(Debug)]
pub(crate) struct BlockOp {
    request: BlockRequest,
    opened: OpenedNamespace,
    ticket: Ticket,
    /// Takes the bytes behind the last whole logical block.
    tail: Option<Lease>,
    /// Of a put.
    check: u64,
    /// Of a get that the program verifies: the CRC of what was put.
    crc: u64,
    /// First byte of the part in flight.
    at: u32,
    step: BlockStep,
    /// Wrong bytes were seen once.
    reread: bool,
    /// Blocks with other bytes that a put has dropped, and how many bytes they had.
    replaced: u8,
    replaced_bytes: u64,
    /// Its notice was passed on.
    late: bool,
    device_ns: u32,
    queue_ns: u32,
}

/// What follows a completion.
#[derive(Debug)]
pub(crate) enum Next {
    /// Another request, by the same entry.
    Again,
    /// The end.
    End(Status, BlockNote, u64),
    /// What the sidecar said cannot be: the end as INTERNAL.
    Bogus {
        /// Bytes asked for.
        asked: u32,
        /// Bytes said to be moved.
        moved: u32,
    },
}

/// How many blocks of this client were not what they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Gets whose bytes were verified and right.
    pub right: u64,
    /// Gets that were read once more.
    pub reread: u64,
    /// Gets that ended as a MISS because their bytes were wrong, twice if they were read once more.
    pub wrong: u64,
    /// Second reads in vain, each for [`VAIN`], less the blocks since that were right.
    vain: u32,
}

/// Weight of a second read that was in vain, in blocks that are right. After four of them a wrong
/// block is a MISS at once: what is damaged on the drive stays damaged, and the engine that waits
/// for it can compute it.
const VAIN: u32 = 16;
const VAIN_MAX: u32 = 4 * VAIN;

impl Verified {
    pub(crate) fn count_right(&mut self) {
        self.right += 1;
        self.vain = self.vain.saturating_sub(1);
    }

    fn count_wrong(&mut self) {
        self.wrong += 1;
        self.vain = VAIN_MAX.min(self.vain + VAIN);
    }

    /// Whether a second read may find other bytes.
    fn rereads(&self) -> bool {
        self.vain < VAIN_MAX
    }
}

impl BlockOp {
    /// An operation of a checked request. Computes the check of a put.
    pub(crate) fn new(
        request: BlockRequest,
        opened: OpenedNamespace,
        ticket: Ticket,
        tail: Option<Lease>,
    ) -> Self {
        let moves = matches!(request.opcode, Opcode::Put | Opcode::Get);
        debug_assert!(moves || request.opcode == Opcode::Drop, "what programs ask for");
        debug_assert_eq!(request.lease.is_some(), moves, "puts and gets have memory");
        let room = request.lease.as_ref().map_or(0, Lease::bytes);
        debug_assert!(request.bytes <= room, "checked against the lease");
        let mut op = Self {
            check: 0,
            crc: 0,
            request,
            opened,
            ticket,
            tail,
            at: 0,
            step: BlockStep::Moving,
            reread: false,
            replaced: 0,
            replaced_bytes: 0,
            late: false,
            device_ns: 0,
            queue_ns: 0,
        };
        if op.request.opcode == Opcode::Put {
            let bytes = op.put_bytes();
            let payload = &op.lease()[..bytes as usize];
            let crc = op.request.crc.unwrap_or_else(|| crc64(payload));
            op.check = op.request.key.check(crc, opened.uid, bytes);
        }
        op
    }

    fn put_bytes(&self) -> u32 {
        u32::try_from(self.request.bytes).expect("checked against the store's largest block")
    }

    fn lease(&self) -> &Lease {
        self.request.lease.as_ref().expect("puts and gets have memory")
    }

    /// Bytes that the next request of a put or get moves at most.
    fn part(&self) -> u32 {
        let whole = match self.step {
            BlockStep::Parts { block_bytes } => block_bytes,
            _ => u32::try_from(self.request.bytes).unwrap_or(u32::MAX),
        };
        debug_assert!(self.at < whole, "a part has bytes");
        (whole - self.at).min(REQUEST_LENGTH_MAX)
    }

    /// The slot of the next request, and what stands beside it.
    pub(crate) fn slot(&mut self) -> (kvrail_ring::Request, Option<Side<'_>>) {
        let (opcode, [lo, hi]) = (self.request.opcode, self.request.key.halves());
        let moves = matches!(opcode, Opcode::Put | Opcode::Get);
        let aside = matches!(self.step, BlockStep::Telling { .. } | BlockStep::Dropping { .. });
        let bytes = if moves && !aside { self.part() } else { 0 };
        if opcode == Opcode::Put && !aside {
            self.fill_tail(bytes);
        }
        let place = if bytes > 0 {
            let (lease, end) = (self.lease(), u64::from(self.at) + u64::from(bytes));
            debug_assert!(end <= lease.bytes(), "no request reaches beyond its memory");
            (lease.region(), lease.offset() as u64 + u64::from(self.at))
        } else {
            (RegionId(0), 0)
        };
        let (opcode, check, flags) = match self.step {
            BlockStep::Telling { check } => (Opcode::Suspect, check, 0),
            // Durable, or what was replaced could come back after a crash.
            BlockStep::Dropping { check } => (Opcode::Drop, check, FLAG_DURABLE),
            BlockStep::Parts { .. } => (opcode, self.at.into(), self.request.flags | FLAG_PART),
            BlockStep::Moving => (opcode, self.check, self.request.flags),
        };
        let page = self.tail.as_ref().map_or(0, |tail| tail.offset() / TAIL_BYTES);
        let keyed = KeyedRequest {
            handle: self.opened.handle,
            chain: if aside { 0 } else { self.request.chain },
            bytes,
            key: [lo, hi],
            region: place.0,
            region_offset: place.1,
            check,
            tail: if bytes > 0 { u32::try_from(page).expect("a page for each entry") } else { 0 },
            deadline_us: if aside { 0 } else { self.request.deadline_us },
        };
        let slot =
            kvrail_ring::Request { flags, class: self.request.class as u8, ..keyed.slot(opcode) };
        let block_bytes = u32::try_from(self.request.bytes).unwrap_or(u32::MAX);
        let metadata = if self.at == 0 { &self.request.metadata[..] } else { &[] };
        // A block has one hint, in however many parts it goes.
        let is_hinted = self.request.hint != Hint::default() && opcode == Opcode::Put;
        let control = self.request.namespace.store().session().control();
        let is_taken = match (is_hinted, self.at) {
            (true, 0) => control.takes_hint(),
            (true, _) => control.protocol().takes_hints(),
            (false, _) => false,
        };
        let hint = if is_taken { self.request.hint } else { Hint::default() };
        let is_more = bytes < block_bytes || !metadata.is_empty() || hint != Hint::default();
        let sided = opcode == Opcode::Put && is_more;
        let (worth, until) = (hint.priority.number(), hint.until);
        let side = sided.then_some(Side { block_bytes, at: self.at, worth, until, metadata });
        (slot, side)
    }

    /// Copies the bytes behind the last whole logical block of a put's part to their page.
    fn fill_tail(&mut self, bytes: u32) {
        let end = (self.at + bytes) as usize;
        let begin = end - self.tail_bytes(end);
        debug_assert!(end - begin < TAIL_BYTES, "a tail fits into its page");
        if let (Some(tail), Some(lease)) = (&mut self.tail, &self.request.lease) {
            tail[..end - begin].copy_from_slice(&lease[begin..end]);
        }
    }

    fn tail_bytes(&self, end: usize) -> usize {
        end % self.request.namespace.logical_block() as usize
    }

    /// What a completion of it means.
    pub(crate) fn ended(&mut self, end: &CompletionSnapshot, verified: &mut Verified) -> Next {
        self.device_ns = self.device_ns.max(end.device_ns());
        self.queue_ns = self.queue_ns.max(end.queue_ns());
        if matches!(self.step, BlockStep::Telling { .. }) {
            return Next::End(Status::Miss, BlockNote::Wrong, 0);
        }
        let stale = end.status() == Status::Stale;
        match self.request.opcode {
            Opcode::Put if matches!(self.step, BlockStep::Dropping { .. }) && !stale => {
                self.dropped(end)
            }
            Opcode::Put if stale => Next::End(Status::Declined, BlockNote::Stale, 0),
            _ if stale => Next::End(Status::Miss, BlockNote::Stale, 0),
            Opcode::Put => self.put_ended(end),
            Opcode::Get => self.get_ended(end, verified),
            _ => Next::End(end.status(), BlockNote::of(end), dropped_bytes(end)),
        }
    }

    fn put_ended(&mut self, end: &CompletionSnapshot) -> Next {
        let (part, note) = (self.part(), BlockNote::of(end));
        if end.status() != Status::Ok {
            return Next::End(end.status(), note, 0);
        }
        let wrote = end.flags() & (FLAG_PRESENT | FLAG_PENDING) == 0;
        let replaces = self.request.existing == Existing::Replaced;
        if note == BlockNote::Present && replaces && end.checksum() != self.check {
            return self.replace(end.checksum());
        }
        if wrote && end.bytes() != part {
            return Next::Bogus { asked: part, moved: end.bytes() };
        }
        if wrote {
            // MORE says that parts are missing, and nothing else does.
            let missing = self.at + part < self.put_bytes();
            if missing != (end.flags() & FLAG_MORE != 0) {
                return Next::Bogus { asked: part, moved: end.bytes() };
            }
            if missing {
                self.at += part;
                return Next::Again;
            }
        }
        Next::End(Status::Ok, note, self.request.bytes)
    }

    /// Another block has the put's key: it is dropped first. A get between the two is a MISS.
    fn replace(&mut self, check: u64) -> Next {
        if self.replaced == REPLACED_MAX {
            let note = BlockNote::Declined(Decline::GivenUp);
            return Next::End(Status::Declined, note, 0);
        }
        self.replaced += 1;
        self.step = BlockStep::Dropping { check };
        Next::Again
    }

    /// The other block is gone, whoever dropped it: the put begins anew.
    fn dropped(&mut self, end: &CompletionSnapshot) -> Next {
        match end.status() {
            Status::Ok | Status::Miss => {
                self.replaced_bytes += dropped_bytes(end);
                (self.at, self.step) = (0, BlockStep::Moving);
                Next::Again
            }
            status => Next::End(status, BlockNote::of(end), 0),
        }
    }

    fn get_ended(&mut self, end: &CompletionSnapshot, verified: &mut Verified) -> Next {
        let (asked, moved) = (self.part(), end.bytes());
        match (end.status(), self.step) {
            (Status::TooSmall, BlockStep::Moving) if u64::from(moved) <= self.request.bytes => {
                if moved <= asked {
                    return Next::Bogus { asked, moved };
                }
                self.step = BlockStep::Parts { block_bytes: moved };
                Next::Again
            }
            // Another block is there since: it is too long, or its parts do not fit together.
            (Status::TooSmall | Status::Invalid, BlockStep::Parts { .. }) => self.begin_anew(),
            (Status::TooSmall, _) => Next::End(Status::TooSmall, BlockNote::None, u64::from(moved)),
            (Status::Ok, BlockStep::Moving) if moved > 0 && moved <= asked => {
                self.verify(moved, end.checksum(), verified)
            }
            (Status::Ok, BlockStep::Parts { block_bytes }) if moved == asked => {
                self.at += asked;
                if self.at < block_bytes {
                    return Next::Again;
                }
                self.verify(block_bytes, end.checksum(), verified)
            }
            (Status::Ok, _) => Next::Bogus { asked, moved },
            (status, _) => Next::End(status, BlockNote::of(end), 0),
        }
    }

    /// Reads the block from its begin once more, if that was not done before.
    fn begin_anew(&mut self) -> Next {
        if std::mem::replace(&mut self.reread, true) {
            return Next::End(Status::Miss, BlockNote::None, 0);
        }
        (self.at, self.step) = (0, BlockStep::Moving);
        Next::Again
    }

    /// All bytes are there: they are what was put, or the block is read once more, or is a MISS.
    fn verify(&mut self, bytes: u32, check: u64, verified: &mut Verified) -> Next {
        let length = bytes as usize;
        debug_assert!(u64::from(bytes) <= self.request.bytes, "a longer block is TOO_SMALL");
        let begin = length - self.tail_bytes(length);
        if let (Some(tail), Some(lease)) = (&self.tail, &mut self.request.lease) {
            lease[begin..length].copy_from_slice(&tail[..length - begin]);
        }
        if self.request.verifier == Verifier::Program {
            // A check is the CRC xor a fold: folded twice it is the CRC again.
            self.crc = self.request.key.check(check, self.opened.uid, bytes);
            return Next::End(Status::Ok, BlockNote::None, bytes.into());
        }
        let crc = crc64(&self.lease()[..length]);
        if self.request.key.check(crc, self.opened.uid, bytes) == check {
            verified.count_right();
            return Next::End(Status::Ok, BlockNote::None, bytes.into());
        }
        if self.reread || !verified.rereads() {
            verified.count_wrong();
            self.step = BlockStep::Telling { check };
            return Next::Again;
        }
        verified.reread += 1;
        self.begin_anew()
    }

    /// Takes note of a notice; whether it is the first one. Each part may have one.
    pub(crate) fn is_newly_late(&mut self) -> bool {
        !std::mem::replace(&mut self.late, true)
    }

    /// The tag and ticket, for a notice.
    pub(crate) fn names(&self) -> (Ticket, u64) {
        (self.ticket, self.request.tag)
    }

    /// Whether hardware may write its memory.
    pub(crate) fn reads(&self) -> bool {
        self.request.opcode == Opcode::Get
    }

    /// Its end, and its page.
    /// What an end with this status and length is counted as.
    pub(crate) fn timed(&self, status: Status, bytes: u64) -> Option<TimedCall> {
        let call = match self.request.opcode {
            Opcode::Get => TimedCall::Get(BlockSize::of(bytes)),
            Opcode::Put => TimedCall::Put(BlockSize::of(self.request.bytes)),
            _ => return None,
        };
        (status == Status::Ok).then_some(call)
    }

    pub(crate) fn into_done(
        self,
        (status, note, bytes): (Status, BlockNote, u64),
    ) -> (Completed, Option<Lease>) {
        debug_assert!(status != Status::Late, "a notice ends nothing");
        debug_assert!(self.replaced <= REPLACED_MAX, "a put does not replace for ever");
        let done = Completed {
            ticket: self.ticket,
            tag: self.request.tag,
            status,
            bytes,
            checksum: if status == Status::Ok { self.crc } else { 0 },
            note,
            replaced_bytes: self.replaced_bytes,
            device_ns: self.device_ns,
            queue_ns: self.queue_ns,
            lease: self.request.lease,
        };
        (done, self.tail)
    }
}

/// Bytes of the block that a drop has dropped.
fn dropped_bytes(end: &CompletionSnapshot) -> u64 {
    if end.status() == Status::Ok { end.bytes().into() } else { 0 }
}

impl BlockNote {
    /// What a completion says beside its status.
    fn of(end: &CompletionSnapshot) -> Self {
        let flags = end.flags();
        match end.status() {
            Status::Declined => Self::Declined(Decline::from_number(end.bytes())),
            Status::Ok if flags & FLAG_PRESENT != 0 => Self::Present,
            Status::Ok if flags & FLAG_PENDING != 0 => Self::Pending,
            Status::Miss if flags & FLAG_WARMING != 0 => Self::Warming,
            _ => Self::None,
        }
    }
}
