//! Requests in flight: a fixed table, one entry for each slot of a lane that has not been answered.
//!
//! `user_data` on the wire is the entry's index (low half) and its generation (high half). Both
//! are checked, and so is the lane, before a completion is believed.

use kvrail_protocol::Hardware;
use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{CompletionSnapshot, Opcode, Status};

use crate::answers::{Answers, KeysAnswer, KeysName};
use crate::block_op::{BlockOp, Next, Verified};
use crate::block_ops::BlockOps;
use crate::done::{BlockNote, Completed, RangeEnd, Ticket};
use crate::joins::{Joins, Origin};
use crate::latencies::QueueLatencies;
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
pub(crate) enum CompletionEffect {
    /// A notice: nothing has ended.
    Notice,
    /// A slot was answered.
    Piece,
    /// The same, and a get has ended after a pass over many bytes. Its program gets it before the
    /// next one is verified: else the device would have nothing to do meanwhile.
    Long,
}

/// Bytes of a block whose check takes longer than a request's way to its device.
const LONG_BYTES: u64 = 64 << 10;

/// What an entry of the table is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryState {
    /// Nothing. The next free entry has this index; behind the last one it is the table's length.
    Free { next: u32 },
    /// The only piece of a request for a range.
    Whole,
    /// One of several pieces of a request for a range; the request is this join.
    Piece { join: u32 },
    /// The present request of the operation on a block that has the entry's index.
    Block,
    /// Some keys of a lookup or release.
    Keys(KeysName),
}

/// An entry. The lease of a whole request stays here from submission to completion: it is moved in
/// once and out once.
#[derive(Debug)]
pub(crate) struct InFlightEntry {
    /// `user_data` of its slot, or of the next one while the entry is free: index and generation.
    name: u64,
    /// Of a whole request or a block.
    ticket: Ticket,
    /// As `ticket`.
    tag: u64,
    /// Bytes that OK promises.
    length: u32,
    state: EntryState,
    lane: u16,
    opcode: Opcode,
    /// Of a whole request.
    lease: Option<Lease>,
}

impl InFlightEntry {
    fn free(index: u32) -> Self {
        Self {
            name: u64::from(index),
            ticket: Ticket(0),
            tag: 0,
            length: 0,
            state: EntryState::Free { next: index + 1 },
            lane: 0,
            opcode: Opcode::Nop,
            lease: None,
        }
    }

    /// Takes a lookup or release; returns its `user_data`.
    fn occupy_keys(&mut self, lane: u16, opcode: Opcode, keys: KeysName) -> u64 {
        (self.lane, self.opcode) = (lane, opcode);
        (self.length, self.state) = (0, EntryState::Keys(keys));
        self.name
    }

    /// Takes the only piece of a request; returns its `user_data`.
    #[inline(always)]
    pub(crate) fn occupy(&mut self, piece: LanePiece, ticket: Ticket, request: Request) -> u64 {
        (self.ticket, self.tag, self.opcode) = (ticket, request.tag, request.opcode);
        (self.lane, self.length, self.state) = (piece.lane, piece.length, EntryState::Whole);
        let free = std::mem::replace(&mut self.lease, request.lease);
        debug_assert!(free.is_none(), "a free entry owns nothing");
        std::mem::forget(free); // or every request would ask whether there is something to drop
        self.name
    }

    /// Whether OK promises `length` bytes.
    fn moves(&self) -> bool {
        matches!(self.opcode, Opcode::Read | Opcode::Write)
    }

    /// Makes the entry free.
    #[inline(always)]
    fn vacate(&mut self, next: u32) {
        debug_assert!(!matches!(self.state, EntryState::Free { .. }), "an entry is freed once");
        self.state = EntryState::Free { next };
        self.rename();
    }

    /// A completion of the slot that was answered is believed no more.
    #[inline(always)]
    fn rename(&mut self) {
        self.name = self.name.wrapping_add(1 << 32);
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct InflightTable {
    entries: Vec<InFlightEntry>,
    /// The table's length when no entry is free.
    first_free: u32,
    /// Free entries.
    room: u32,
    /// Entries of keys whose answer is passed over: reports to the sidecar.
    unasked: usize,
    joins: Joins,
    blocks: BlockOps,
    answers: Answers,
    latencies: QueueLatencies,
    /// Memory that hardware may still write although its request has ended.
    quarantined: Vec<Lease>,
}

impl InflightTable {
    /// A table for `depth` slots.
    ///
    /// `tails` are pages for the tails of blocks: one for each entry, or none where the sidecar has
    /// no store.
    pub(crate) fn new(depth: u32, tails: Vec<Lease>, latencies: QueueLatencies) -> Self {
        debug_assert!(tails.is_empty() || tails.len() == depth as usize, "a page for each entry");
        Self {
            entries: (0..depth).map(InFlightEntry::free).collect(),
            first_free: 0,
            room: depth,
            unasked: 0,
            joins: Joins::new(depth),
            blocks: BlockOps::new(tails),
            answers: Answers::default(),
            latencies,
            quarantined: Vec::new(),
        }
    }

    /// Slots the table holds.
    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.entries.len()
    }

    /// Slots that can be added.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.room as usize
    }

    /// Slots of reports, whose answers are passed over.
    #[inline]
    pub(crate) fn unasked(&self) -> usize {
        self.unasked
    }

    /// Takes a lookup, a release or a report; returns its `user_data`. The caller has asked `room`.
    pub(crate) fn add_keys(&mut self, lane: u16, opcode: Opcode, keys: KeysName) -> u64 {
        self.unasked += usize::from(keys == KeysName::UNASKED);
        let entry = self.claim().expect("the caller has asked for room");
        entry.occupy_keys(lane, opcode, keys)
    }

    /// An entry for one more slot, if there is one. It is the slot's from now on.
    #[inline(always)]
    pub(crate) fn claim(&mut self) -> Option<&mut InFlightEntry> {
        let entry = self.entries.get_mut(self.first_free as usize)?;
        let EntryState::Free { next } = entry.state else {
            debug_assert!(false, "the free list has free entries only");
            return None;
        };
        self.first_free = next;
        self.room -= 1;
        Some(entry)
    }

    /// Adds a request of several pieces, or with a checksum; `add_piece` adds the pieces.
    pub(crate) fn add_join(&mut self, pieces: u32, origin: Origin) -> u32 {
        debug_assert!(pieces <= self.room, "the caller has asked for room");
        self.joins.add(pieces, origin)
    }

    /// Adds one piece of a request; returns its `user_data`. The caller has asked `room`.
    pub(crate) fn add_piece(&mut self, piece: LanePiece, join: u32) -> u64 {
        let opcode = self.joins.origin(join).opcode;
        let entry = self.claim().expect("the caller has asked for room");
        (entry.lane, entry.length) = (piece.lane, piece.length);
        (entry.state, entry.opcode) = (EntryState::Piece { join }, opcode);
        entry.name
    }

    /// Takes an operation on a block; returns the `user_data` of its first request, and the
    /// operation. The caller has asked `room`.
    pub(crate) fn add_block(
        &mut self,
        lane: u16,
        begun_ns: u64,
        make: impl FnOnce(Option<Lease>) -> BlockOp,
    ) -> (u64, &mut BlockOp) {
        let index = self.first_free;
        let entry = self.claim().expect("the caller has asked for room");
        (entry.lane, entry.length, entry.state) = (lane, u32::MAX, EntryState::Block);
        let name = entry.name;
        let op = self.blocks.add(index, begun_ns, make);
        let entry = &mut self.entries[index as usize];
        (entry.ticket, entry.tag) = op.names();
        (name, op)
    }

    /// Whether blocks can be asked for.
    pub(crate) fn has_blocks(&self) -> bool {
        self.blocks.are_possible()
    }

    /// Whether operations on blocks have requests to be sent.
    #[inline(always)]
    pub(crate) fn has_unsent(&self) -> bool {
        self.blocks.are_unsent()
    }

    /// The operation at this place among those with a request to be sent: its lane, the
    /// `user_data`, and the operation.
    pub(crate) fn next_unsent(&mut self, at: usize) -> Option<(u16, u64, &mut BlockOp)> {
        let index = self.blocks.unsent(at)?;
        let entry = &self.entries[index as usize];
        debug_assert_eq!(entry.state, EntryState::Block, "only blocks send more than one request");
        Some((entry.lane, entry.name, self.blocks.get(index).0))
    }

    /// The request of the operation at this place was sent.
    pub(crate) fn sent(&mut self, at: usize) {
        self.blocks.sent(at);
    }

    /// What gets of this queue's blocks came to.
    pub(crate) fn verified(&self) -> Verified {
        self.blocks.verified()
    }

    /// The same, for gets that need no request.
    pub(crate) fn verified_mut(&mut self) -> &mut Verified {
        self.blocks.verified_mut()
    }

    /// Where latencies of calls are counted.
    pub(crate) fn latencies(&mut self) -> &mut QueueLatencies {
        &mut self.latencies
    }

    /// The lookups that wait for answers.
    pub(crate) fn answers(&self) -> &Answers {
        &self.answers
    }

    /// As `answers`.
    pub(crate) fn answers_mut(&mut self) -> &mut Answers {
        &mut self.answers
    }

    /// Believes a completion or notice of this lane, if it can be true. A completion that is
    /// short of bytes ends its request as INTERNAL.
    #[inline(always)]
    pub(crate) fn settle(
        &mut self,
        lane: u16,
        completion: &CompletionSnapshot,
        sink: &mut impl CompletionSink,
    ) -> Result<CompletionEffect, BogusCompletion> {
        let name = completion.user_data();
        let index = u32::try_from(name & u64::from(u32::MAX)).expect("the low half");
        let entry = self.entries.get_mut(index as usize);
        let Some(entry) = entry.filter(|entry| entry.name == name && entry.lane == lane) else {
            return Err(BogusCompletion::Unknown(name));
        };
        // What most are: a whole request that ended well.
        if entry.state == EntryState::Whole && completion.is_whole(entry.length) {
            entry.vacate(std::mem::replace(&mut self.first_free, index));
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
            return Ok(CompletionEffect::Piece);
        }
        self.settle_other(index, *completion, sink)
    }

    /// The rest of `settle`: notices, pieces, blocks, keys, failures.
    #[cold]
    #[inline(never)]
    fn settle_other(
        &mut self,
        index: u32,
        completion: CompletionSnapshot,
        sink: &mut impl CompletionSink,
    ) -> Result<CompletionEffect, BogusCompletion> {
        let entry = &self.entries[index as usize];
        let is_notice = completion.flags() & FLAG_NOTICE != 0;
        match entry.state {
            // The name is that of the entry's next slot, which no request has yet.
            EntryState::Free { .. } => Err(BogusCompletion::Unknown(completion.user_data())),
            // A notice is never asked for.
            EntryState::Keys(_) if is_notice => {
                Err(BogusCompletion::Unknown(completion.user_data()))
            }
            // Its present request is not in the lane yet.
            EntryState::Block if self.blocks.is_unsent(index) => {
                Err(BogusCompletion::Unknown(completion.user_data()))
            }
            _ if is_notice => {
                self.notice(index, sink);
                Ok(CompletionEffect::Notice)
            }
            EntryState::Block => self.block_answered(index, &completion, sink),
            EntryState::Whole | EntryState::Piece { .. } | EntryState::Keys(_) => {
                let (asked, moved) = (entry.length, completion.bytes());
                let mut end = RangeEnd::of(&completion);
                // Invariant 3: OK means every byte asked for.
                let short = end.status == Status::Ok && entry.moves() && moved != asked;
                if short {
                    end.status = Status::Internal;
                }
                self.finish(index, end, Hardware::Settled, sink);
                if short {
                    return Err(BogusCompletion::Short { asked, moved });
                }
                Ok(CompletionEffect::Piece)
            }
        }
    }

    fn vacate(&mut self, index: u32) {
        self.entries[index as usize].vacate(std::mem::replace(&mut self.first_free, index));
        self.room += 1;
        debug_assert!(self.room as usize <= self.entries.len(), "no entry is free twice");
    }

    /// A request for a block was answered: the operation goes on, or ends.
    fn block_answered(
        &mut self,
        index: u32,
        completion: &CompletionSnapshot,
        sink: &mut impl CompletionSink,
    ) -> Result<CompletionEffect, BogusCompletion> {
        let (op, verified) = self.blocks.get(index);
        let (end, bogus) = match op.ended(completion, verified) {
            Next::Again => {
                self.entries[index as usize].rename();
                self.blocks.send_again(index);
                return Ok(CompletionEffect::Piece);
            }
            Next::End(status, note, bytes) => ((status, note, bytes), None),
            Next::Bogus { asked, moved } => {
                let end = (Status::Internal, BlockNote::None, 0);
                (end, Some(BogusCompletion::Short { asked, moved }))
            }
        };
        let long = op.reads() && end.2 >= LONG_BYTES;
        self.end_block(index, end, Hardware::Settled, sink);
        bogus.map_or(Ok(if long { CompletionEffect::Long } else { CompletionEffect::Piece }), Err)
    }

    fn end_block(
        &mut self,
        index: u32,
        end: (Status, BlockNote, u64),
        hardware: Hardware,
        sink: &mut impl CompletionSink,
    ) {
        let op = self.blocks.take(index);
        self.vacate(index);
        if let Some(call) = op.timed(end.0, end.2) {
            self.latencies.end(call, self.blocks.begun_ns(index), end.2);
        }
        let reads = op.reads();
        let (mut done, tail) = op.into_done(end);
        match hardware {
            Hardware::Settled => self.blocks.give_back(tail),
            Hardware::MayBeActive => {
                self.quarantined.extend(tail); // invariant 2
                if reads {
                    self.quarantined.extend(done.lease.take());
                }
            }
        }
        sink.push_with(|| done);
    }

    /// Ends what an entry has in flight; hands out its request if nothing else of it is.
    fn finish(
        &mut self,
        index: u32,
        end: RangeEnd,
        hardware: Hardware,
        sink: &mut impl CompletionSink,
    ) {
        match self.entries[index as usize].state {
            EntryState::Free { .. } => {}
            EntryState::Block => {
                self.end_block(index, (end.status, BlockNote::None, 0), hardware, sink);
            }
            EntryState::Keys(keys) => {
                self.vacate(index);
                self.unasked -= usize::from(keys == KeysName::UNASKED);
                let bits = u32::try_from(end.bytes).expect("bits of one slot");
                let RangeEnd { status, device_ns: reads_ns, queue_ns: ahead_ns, .. } = end;
                self.answers.add(KeysAnswer { keys, status, bits, reads_ns, ahead_ns });
            }
            EntryState::Piece { join } => {
                self.vacate(index);
                if let Some((origin, end)) = self.joins.ended(join, end) {
                    let Origin { ticket, tag, opcode, lease, .. } = origin;
                    let lease = self.released(opcode, lease, hardware);
                    sink.push_with(|| end.completed(ticket, tag, lease));
                }
            }
            EntryState::Whole => {
                self.vacate(index);
                let entry = &mut self.entries[index as usize];
                let (ticket, tag, opcode) = (entry.ticket, entry.tag, entry.opcode);
                let lease = entry.lease.take();
                let lease = self.released(opcode, lease, hardware);
                sink.push_with(|| end.completed(ticket, tag, lease));
            }
        }
    }

    /// The memory of a request that has ended, unless hardware may still write it (invariant 2).
    fn released(
        &mut self,
        opcode: Opcode,
        lease: Option<Lease>,
        hardware: Hardware,
    ) -> Option<Lease> {
        if opcode == Opcode::Read && hardware == Hardware::MayBeActive {
            self.quarantined.extend(lease);
            return None;
        }
        lease
    }

    /// Passes a notice on, once for each request.
    #[cold]
    fn notice(&mut self, index: u32, sink: &mut impl CompletionSink) {
        let entry = &self.entries[index as usize];
        let (ticket, tag) = match entry.state {
            EntryState::Piece { join } => {
                let Some(origin) = self.joins.newly_late(join) else { return };
                (origin.ticket, origin.tag)
            }
            EntryState::Block if !self.blocks.get(index).0.is_newly_late() => return,
            _ => (entry.ticket, entry.tag),
        };
        sink.push_with(|| RangeEnd::bare(Status::Late).completed(ticket, tag, None));
    }

    /// Ends everything in flight with this status.
    pub(crate) fn fail_all(
        &mut self,
        status: Status,
        hardware: Hardware,
        sink: &mut impl CompletionSink,
    ) {
        for index in 0..self.entries.len() {
            let index = u32::try_from(index).expect("a lane has few slots");
            self.finish(index, RangeEnd::bare(status), hardware, sink);
        }
        debug_assert_eq!(self.room(), self.capacity(), "nothing is in flight any more");
    }

    /// Memory of abandoned reads.
    pub(crate) fn take_quarantined(&mut self) -> Vec<Lease> {
        std::mem::take(&mut self.quarantined)
    }
}
