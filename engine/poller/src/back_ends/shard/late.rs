//! Late blocks of a shard: puts that are acknowledged once their bytes lie in the memory tier, and
//! written when the tier chooses.
//!
//! A copier copies them out of the client's memory. Until such a block is written, the presence
//! table has it on behalf of the tier; a client that finds it in the directory needs no request,
//! and a get that comes here all the same has it written first.

use std::sync::Arc;

use arrayvec::ArrayVec;
use kvrail_device::SlotId;
use kvrail_memory::{load, store};
use kvrail_ring::{METADATA_BYTES_MAX, Status as LaneStatus, TIER_PAGE_BYTES as PAGE, TierBlock};
use kvrail_store::{
    Answer, Begun, DeclineReason, Durability, Evicted, Fault, Gone, Hold, Key, LateWrite, Now,
    Phase, PlaceKind, Put, Reply, SpaceId, Status, Store,
};

use super::super::pending::{BlockCommand, Pending, StoreRequest};
use super::Shard;
use super::late_blocks::{GETS_MAX, LateBlock, LateCopy, LatePuts};
use super::tier::ShardTier;
use crate::copier::{CopyEnd, CopyJob, CopyPiece};
use crate::limits::SIDECAR;
use crate::regions::{Memory, Regions};
use crate::task::BufferRef;

/// Blocks of one session that are put within this time are one group: 4.3 s, as a power of two of
/// nanoseconds. All members see the same.
const GROUP_BITS: u32 = 32;

impl ShardTier {
    /// Whether puts into a namespace of this name are acknowledged from memory.
    pub(super) fn is_late(&self, name: &[u8]) -> bool {
        let late = self.late.as_ref();
        let named = |rule: &String| kvrail_store::is_named_by(rule, name);
        late.is_some_and(|late| late.namespaces.iter().any(named))
    }

    /// The late block of a key: its entry.
    fn late_of(&self, uid: u64, key: Key) -> Option<(usize, &LateBlock)> {
        self.late_low(uid, key.lo()).filter(|(_, block)| block.key == key)
    }

    /// The same by the lower half of a key, by which clients find it.
    pub(super) fn late_low(&self, uid: u64, lo: u64) -> Option<(usize, &LateBlock)> {
        if self.is_stopped || self.late.is_none() {
            return None;
        }
        let entry = self.tier.unwritten(uid, lo, &self.shown)?;
        Some((entry, self.shown.late.as_ref()?.get(entry)?))
    }

    /// The block of a key that is being copied.
    fn copied(&self, uid: u64, key: Key) -> Option<&LateBlock> {
        let (late, blocks) = (self.late.as_ref()?, self.shown.late.as_ref()?);
        let mut there = late.copies.iter().filter_map(|copy| blocks.get(copy.room.entry));
        there.find(|block| (block.uid, block.key) == (uid, key))
    }

    /// Whether a block with this lower half of its key is being copied.
    fn is_copied(&self, uid: u64, lo: u64) -> bool {
        let (Some(late), Some(blocks)) = (&self.late, &self.shown.late) else { return false };
        let mut there = late.copies.iter().filter_map(|copy| blocks.get(copy.room.entry));
        there.any(|block| (block.uid, block.key.lo()) == (uid, lo))
    }

    /// Whether a late block has the lower half of a key, and another key.
    pub(super) fn has_other(&self, uid: u64, key: Key) -> bool {
        let shown = self.late_low(uid, key.lo()).is_some_and(|(_, block)| block.key != key);
        shown || self.is_copied(uid, key.lo()) && self.copied(uid, key).is_none()
    }

    /// The key's block is not to be, if it is being copied.
    pub(super) fn forget_copied(&mut self, uid: u64, lo: u64) {
        let (Some(late), Some(blocks)) = (&self.late, &mut self.shown.late) else { return };
        for copy in &late.copies {
            let entry = copy.room.entry;
            let there = blocks.get(entry);
            if there.is_some_and(|block| (block.uid, block.key.lo()) == (uid, lo)) {
                blocks.take(entry);
            }
        }
    }

    /// Begins to copy a block of a client's; false: there is no room for it.
    fn put(
        &mut self,
        put: &Put<'_>,
        (uid, group, time): (u64, u64, u32),
        from: ArrayVec<CopyPiece, 2>,
        of: &mut Store,
    ) -> bool {
        if self.is_stopped {
            return false;
        }
        if !self.late.as_ref().is_some_and(LatePuts::has_room) {
            self.tier.refuse();
            return false;
        }
        let pages = put.length.div_ceil(PAGE) + u32::from(!put.metadata.is_empty());
        let room = self.tier.put((uid, put.key.lo()), (pages, group), &mut self.shown);
        // Before the memory of others is written.
        self.see_gone(of, Some(Gone::Evicted));
        let (Some(room), Some(late)) = (room, &mut self.late) else { return false };
        let offset = self.data_at + u64::from(room.page) * u64::from(PAGE);
        let block = LateBlock {
            uid,
            space: put.space,
            key: put.key,
            length: put.length,
            check: put.check,
            chain: put.chain,
            depth: put.depth,
            hint: put.hint,
            time,
            offset,
            metadata: u16::try_from(put.metadata.len()).expect("it fits the store"),
            is_shown: false,
            is_awaited: false,
        };
        store(&*self.memory, block.metadata_at().min(self.memory.bytes()), put.metadata);
        self.shown.late.as_mut().expect("it has late puts").set(room.entry, block);
        let taken = |number: &u8| late.copies.iter().all(|copy| copy.number != *number);
        let number = (0..=u8::MAX).find(taken).expect("there are fewer copies");
        late.copies.push(LateCopy { number, room, user: put.user, owner: put.owner });
        late.port.push(CopyJob { number, from, offset });
        true
    }

    /// The next copy that has ended: what it was for, and whether the bytes are there.
    fn next_copy(&mut self) -> Option<(LateCopy, bool)> {
        let late = self.late.as_mut()?;
        let CopyEnd { job, outcome } = late.port.next_end()?;
        let at = late.copies.iter().position(|copy| copy.number == job.number);
        Some((late.copies.remove(at.expect("it was begun")), outcome.is_ok()))
    }

    /// Copies that are under way: they read clients' memory.
    pub(super) fn copies(&self) -> usize {
        self.late.as_ref().map_or(0, |late| late.copies.len())
    }

    /// Whether a copy has ended: the second look before sleeping.
    pub(super) fn has_copied(&self) -> bool {
        self.late.as_ref().is_some_and(|late| late.port.is_ready())
    }

    /// The next answer to a late put.
    pub(super) fn next_reply(&mut self) -> Option<Reply> {
        let late = self.late.as_mut()?;
        (!late.replies.is_empty()).then(|| late.replies.remove(0))
    }

    /// The next get whose block is written, or gone.
    pub(super) fn next_woken(&mut self) -> Option<SlotId> {
        self.late.as_mut()?.woken.pop()
    }

    /// All requests are ended by others, and nothing is copied any more.
    pub(super) fn sweep(&mut self) {
        if let Some(late) = &mut self.late {
            late.sweep();
        }
    }

    /// Another store is behind the tier: what was not written is lost.
    pub(super) fn forget_late(&mut self) {
        if let Some(blocks) = &mut self.shown.late {
            blocks.begin_void();
        }
        self.sweep();
        assert_eq!(self.copies(), 0, "nothing of the life before is in flight");
        self.end_writes();
    }

    /// Bytes of a late block, padded to whole pages, as the device sees them.
    pub(super) fn late_memory(&self, entry: usize) -> BufferRef {
        let late = self.late.as_ref().expect("it has late puts");
        let at = late.writing.iter().find(|(of, _)| *of == entry);
        let (_, offset) = at.expect("its memory stays until the write ends");
        BufferRef { buffer: self.buffer, offset: *offset }
    }

    pub(super) fn metadata<'a>(
        &self,
        block: &LateBlock,
        out: &'a mut [u8; METADATA_BYTES_MAX],
    ) -> &'a [u8] {
        let out = &mut out[..block.metadata.into()];
        load(&*self.memory, block.metadata_at().min(self.memory.bytes()), out);
        out
    }

    /// Takes late blocks that have left out of what the store shows. With the reason where they are
    /// nowhere now.
    pub(super) fn see_gone(&mut self, shard_store: &mut Store, why: Option<Gone>) {
        while let Some((entry, block)) = self.shown.late.as_mut().and_then(|late| late.gone.pop()) {
            if let Some(late) = &mut self.late {
                late.wake(entry);
            }
            shard_store.go_from_memory(block.uid, block.key.lo());
            // Readers know already that all of a cleared namespace is gone.
            let is_there = shard_store.uid_of(block.space) == Some(block.uid);
            let Some(why) = why.filter(|_| is_there) else { continue };
            let mut out = [0; METADATA_BYTES_MAX];
            let metadata = match why {
                Gone::Evicted => self.metadata(&block, &mut out),
                _ => &[],
            };
            let LateBlock { uid, key, length, space, .. } = block;
            shard_store.note_gone(space, &Evicted { uid, key, length, why, metadata });
        }
    }
}

impl Shard {
    /// Puts a block into the memory tier, to be written later. Nothing: it is written first.
    pub(super) fn put_late(
        &mut self,
        pending: &Pending,
        metadata: &[u8],
        regions: &Regions,
        now: Now,
    ) -> Option<Begun> {
        let asked = *pending.asked();
        let put = pending.put(metadata).filter(|put| put.at == 0)?;
        let Put { space, key, bytes, .. } = put;
        let uid = self.store.uid_of(space)?;
        let tier = self.tier.as_mut()?;
        // Also while it is being written: for the store that is a put of another's.
        if let Some((_, block)) = tier.late_of(uid, key) {
            return Some(Begun::Done(block.answer(Status::Present)));
        }
        if tier.copied(uid, key).is_some() {
            return Some(Begun::Done(Status::Pending.into()));
        }
        let may = asked.is_late && bytes == put.length && self.phase() == Phase::Serving;
        let is_odd = self.suspects.check_of(space, key).is_some() || self.store.knows(space, key);
        if !may || is_odd || self.is_gone() || self.store.refusal().is_some() {
            return None;
        }
        if !self.store.fits(&put) {
            return None;
        }
        let from = pieces(pending, self.site.tail_of(bytes), regions)?;
        let group = u64::from(asked.client.session.0) << GROUP_BITS | now.ns >> GROUP_BITS;
        let tier = self.tier.as_mut()?;
        let is_taken = tier.put(&put, (uid, group, now.unix), from, &mut self.store);
        // One that finds no room is put into the store now: that is its first sight there.
        is_taken.then(|| self.store.note_offered(space, key));
        is_taken.then_some(Begun::Taken)
    }

    /// Whether this is a put that is to be durable of a key with a late block: the block that is
    /// there is written first, and the put finds it once it is. A put must not take it away, and
    /// PENDING, while it is being written, would leave its client without what it asked for. Later
    /// parts wait behind the first one.
    pub(crate) fn waits_for_late(&mut self, asked: &StoreRequest) -> bool {
        let StoreRequest { space, key, durability, ask, .. } = *asked;
        if !matches!(ask, BlockCommand::Put { at: 0, .. }) || durability != Durability::Durable {
            return false;
        }
        let (Some(tier), Some(uid)) = (&mut self.tier, self.store.uid_of(space)) else {
            return false;
        };
        let Some((entry, _)) = tier.late_of(uid, key) else { return false };
        tier.shown.late.as_mut().expect("it has a late block").note_awaited(entry);
        // While too many are queued it is asked again, as the put is.
        let _queued = tier.tier.write_soon(entry);
        true
    }

    /// Goes on with late blocks: shows those that are copied, and has others written.
    pub(super) fn step_late(&mut self, now: Now) {
        if self.tier.as_ref().is_none_or(|tier| tier.late.is_none()) {
            return;
        }
        self.end_copies();
        self.hurry_awaited();
        self.begin_late_writes(now);
        self.see_gone(Some(Gone::Evicted));
    }

    /// Blocks that the tier gave up meanwhile are nowhere now.
    pub(super) fn see_gone(&mut self, why: Option<Gone>) {
        if let Some(tier) = &mut self.tier {
            tier.see_gone(&mut self.store, why);
        }
    }

    pub(super) fn end_copies(&mut self) {
        while let Some(tier) = &mut self.tier
            && let Some((copy, is_copied)) = tier.next_copy()
        {
            self.pulse.mark();
            let status = self.end_copy(&copy, is_copied);
            let tier = self.tier.as_mut().expect("it has a copier");
            let (user, owner) = (copy.user, copy.owner);
            let late = tier.late.as_mut().expect("it has late puts");
            late.replies.push(Reply { user, owner, answer: status.into() });
        }
    }

    /// The bytes of a block are in the tier, or not: how its put ends.
    fn end_copy(&mut self, copy: &LateCopy, is_copied: bool) -> Status {
        let is_gone = self.is_gone();
        let Self { tier, store, .. } = self;
        let tier = tier.as_mut().expect("it has a copier");
        let entry = copy.room.entry;
        let blocks = tier.shown.late.as_mut().expect("it has late puts");
        // It has no entry any more: it was dropped, or replaced.
        let there = blocks.get(entry).copied();
        let there = there.filter(|block| store.uid_of(block.space) == Some(block.uid));
        let ended = match there {
            _ if is_gone => Err(Status::Failed(LaneStatus::DeviceGone.number())),
            _ if !is_copied => Err(Status::Invalid(Fault::Limit)),
            Some(block) => Ok(block),
            None => Err(Status::Dropped),
        };
        let LateBlock { uid, key, length, check, offset, .. } = match ended {
            Ok(block) => block,
            Err(status) => {
                blocks.take(entry);
                tier.tier.give_up(&copy.room);
                return status;
            }
        };
        let shown = TierBlock { uid, lo: key.lo(), check, offset, length };
        tier.tier.fill(&copy.room, &mut tier.shown, |view| view.writer.show(entry, &shown));
        if tier.tier.unwritten(uid, key.lo(), &tier.shown) != Some(entry) {
            // It was forgotten on its way.
            tier.shown.late.as_mut().expect("it has late puts").take(entry);
            return Status::Dropped;
        }
        store.come_to_memory(uid, key.lo());
        let blocks = tier.shown.late.as_mut().expect("as above");
        blocks.note_shown(entry);
        Status::Ok
    }

    /// Blocks that gets wait for are written before others.
    fn hurry_awaited(&mut self) {
        let Some(tier) = &mut self.tier else { return };
        let Some(late) = &tier.late else { return };
        // The first one that waits is the first in the queue in the end.
        for (entry, _) in late.waiting.iter().rev() {
            let _queued = tier.tier.write_soon(*entry);
        }
    }

    fn begin_late_writes(&mut self, now: Now) {
        while let Some(tier) = &mut self.tier
            && !tier.is_stopped
            && tier.late.as_ref().is_some_and(|late| !late.writing.is_full())
            && self.store.has_place(SIDECAR.0.into(), PlaceKind::Block)
            && let Some(entry) = tier.tier.next_write()
        {
            let blocks = tier.shown.late.as_ref().expect("it has late puts");
            let block = *blocks.get(entry).expect("a block that is to be written is there");
            let mut out = [0; METADATA_BYTES_MAX];
            let metadata = tier.metadata(&block, &mut out);
            match self.store.put(&block.put(entry, metadata), now) {
                Begun::Taken | Begun::Confirms => {
                    let late = tier.late.as_mut().expect("as above");
                    late.writing.push((entry, block.offset));
                }
                Begun::Done(Answer { status: Status::Declined(DeclineReason::Busy), .. }) => {
                    tier.tier.write_again(entry);
                    return;
                }
                Begun::Done(answer) => self.late_write_ended(entry, answer.status),
            }
            self.pulse.mark();
        }
    }

    /// The store has answered the put of a late block.
    pub(super) fn late_answered(&mut self, entry: usize, status: Status) {
        let late = self.tier.as_mut().and_then(|tier| tier.late.as_mut());
        let writing = &mut late.expect("it was begun").writing;
        let at = writing.iter().position(|(of, _)| *of == entry);
        writing.remove(at.expect("it was begun"));
        self.late_write_ended(entry, status);
        self.pulse.mark();
    }

    fn late_write_ended(&mut self, entry: usize, status: Status) {
        let is_written = matches!(status, Status::Ok | Status::Present);
        if !is_written {
            self.note_loss(entry, status);
        }
        let Self { tier, store, .. } = self;
        let tier = tier.as_mut().expect("it has late puts");
        let how = if is_written { LateWrite::Written } else { LateWrite::Declined };
        tier.tier.write_ended(entry, how, &mut tier.shown);
        tier.see_gone(store, (!is_written).then_some(Gone::Evicted));
    }

    /// Takes a late block away that is to be dropped: the answer, unless the store knows better. It
    /// is asked in any case: an older block of the key may be on the device still, and come back.
    pub(super) fn drop_late(
        &mut self,
        space: SpaceId,
        key: Key,
        only: Option<u64>,
    ) -> Option<Answer> {
        let uid = self.store.uid_of(space)?;
        let tier = self.tier.as_mut()?;
        let block = match tier.late_of(uid, key) {
            Some((_, block)) => block,
            None => tier.copied(uid, key)?,
        };
        let answer = block.answer(Status::Ok);
        if only.is_some_and(|only| only != answer.check) {
            return None;
        }
        tier.forget(uid, key.lo());
        tier.see_gone(&mut self.store, Some(Gone::Dropped));
        Some(answer)
    }

    /// A drop of a late block was taken by the store, which may not have the block.
    pub(super) fn note_drop(&mut self, user: u64, bytes: u32) {
        let late = self.tier.as_mut().and_then(|tier| tier.late.as_mut());
        if let Some(late) = late.filter(|late| !late.drops.is_full()) {
            late.drops.push((user, bytes));
        }
    }

    /// The store's answer: it may be to the drop of a block that was in memory alone.
    pub(super) fn corrected(&mut self, reply: Reply) -> Reply {
        let late = self.tier.as_mut().and_then(|tier| tier.late.as_mut());
        let Some(late) = late.filter(|late| !late.drops.is_empty()) else { return reply };
        let Some(at) = late.drops.iter().position(|(user, _)| *user == reply.user) else {
            return reply;
        };
        let (_, length) = late.drops.remove(at);
        match reply.answer.status {
            Status::Miss => {
                let answer = Answer { status: Status::Ok, length, check: 0 };
                Reply { answer, ..reply }
            }
            _ => reply,
        }
    }

    /// Which of these keys the memory tier alone has, and the bytes of their blocks.
    pub(crate) fn find_late(&mut self, space: SpaceId, lows: &[u64], hold: Hold) -> (u64, u64) {
        let (mut found, mut bytes) = (0, 0);
        let Some(tier) = self.tier.as_mut().filter(|tier| tier.tier.late_blocks() > 0) else {
            return (found, bytes);
        };
        let Some(uid) = self.store.uid_of(space) else { return (found, bytes) };
        for (bit, lo) in lows.iter().enumerate() {
            let Some((_, block)) = tier.late_low(uid, *lo) else { continue };
            found |= 1 << bit;
            bytes += u64::from(block.length);
            // Nothing of memory is held: as used, it stays for a while.
            if matches!(hold, Hold::For(_)) {
                tier.use_block(uid, *lo);
            }
        }
        (found, bytes)
    }

    /// A reader found a late block wrong. Some: the report is answered; false: it is of no such
    /// block. The block is written, and the device's bytes are looked at when they are reported.
    pub(super) fn suspect_late(&mut self, uid: u64, key: Key, check: u64) -> Option<bool> {
        let tier = self.tier.as_mut()?;
        if tier.is_copied(uid, key.lo()) {
            return Some(false);
        }
        let (entry, block) = tier.late_low(uid, key.lo())?;
        let is_it = (block.key, block.check) == (key, check);
        if is_it {
            // One that finds no room is written when the tier chooses it.
            let _queued = tier.tier.write_soon(entry);
            self.pulse.mark();
        }
        Some(is_it)
    }

    /// Whether a get or a put waits for the write of an entry.
    pub(super) fn is_awaited(&self, entry: usize) -> bool {
        let Some(ShardTier { late: Some(late), shown, .. }) = self.tier.as_deref() else {
            return false;
        };
        let block = shown.late.as_ref().and_then(|blocks| blocks.get(entry));
        block.is_some_and(|block| block.is_awaited)
            || late.waiting.iter().any(|(of, _)| *of == entry)
    }

    /// Bytes of a late block that clients find.
    pub(crate) fn late_length(&self, space: SpaceId, key: Key) -> Option<u32> {
        let (tier, uid) = (self.tier.as_ref()?, self.store.uid_of(space)?);
        let (_, block) = tier.late_of(uid, key).filter(|(_, block)| block.is_shown)?;
        Some(block.length)
    }

    /// The same, if a get can wait for its write.
    pub(crate) fn awaited_length(&self, space: SpaceId, key: Key) -> Option<u32> {
        let late = self.tier.as_ref()?.late.as_ref()?;
        let waiting = late.waiting.len() + late.woken.len();
        if waiting < GETS_MAX { self.late_length(space, key) } else { None }
    }

    /// A get waits for the write of its block.
    pub(crate) fn wait_for_write(&mut self, space: SpaceId, key: Key, get: SlotId) {
        let uid = self.store.uid_of(space).expect("its block is there");
        let tier = self.tier.as_mut().expect("its block is there");
        let (entry, _) = tier.late_of(uid, key).expect("its block is there");
        // One that finds no room is asked for again in the next step.
        let _queued = tier.tier.write_soon(entry);
        tier.late.as_mut().expect("its block is there").waiting.push((entry, get));
        self.count_request();
        self.pulse.mark();
    }

    /// The next get that has waited.
    pub(crate) fn next_woken(&mut self) -> Option<SlotId> {
        self.tier.as_mut()?.next_woken()
    }

    /// Whether a copy has ended.
    pub(crate) fn has_copied(&self) -> bool {
        self.tier.as_ref().is_some_and(|tier| tier.has_copied())
    }
}

/// Where a put's bytes lie, in memory that a thread can read. Nothing for memory of GPUs.
fn pieces(pending: &Pending, tail_bytes: u32, regions: &Regions) -> Option<ArrayVec<CopyPiece, 2>> {
    let body_bytes = pending.asked().bytes - tail_bytes;
    let mut pieces = ArrayVec::new();
    for (entered, bytes) in [(pending.body, body_bytes), (pending.tail, tail_bytes)] {
        if bytes == 0 {
            continue;
        }
        let entered = entered?;
        let (_, Memory::Host(memory)) = regions.memory(entered.region) else { return None };
        let memory = Arc::clone(memory);
        pieces.push(CopyPiece { memory, offset: entered.place.offset, bytes });
    }
    Some(pieces)
}
