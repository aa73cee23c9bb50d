//! Puts and drops: from the request to the record.
//!
//! A put's entry is in state `writing` until every part is on the medium and its record is
//! appended. Parts and drops that need space wait in their pool's queue, strictly in order: a put
//! that follows a drop of its key is never placed before the drop's record is appended.

use kvrail_units::METADATA_BYTES_MAX;

use crate::block::{Block, BlockPart, BlockStage};
use crate::config::StoreGeometry;
use crate::core::{Core, Image, Knowledge};
use crate::dropping::Dropping;
use crate::durables::{Durable, Durables};
use crate::entry::{Entry, Kind};
use crate::fates::Fate;
use crate::feed::{Evicted, Gone};
use crate::fifo::Fifo;
use crate::format::{PAGE_BYTES, Record, RecordKind};
use crate::lines::Lines;
use crate::log::{Log, SegmentStand, SpaceClaim};
use crate::placed::Placed;
use crate::request::{
    Answer, Begun, DeclineReason, DropKey, Durability, Fault, PlaceKind, Put, Status,
};
use crate::segments::bits;
use crate::shared::{SHARED_SLOT_BYTES, SHARED_USER_BYTES, SharedSlots};
use crate::stats::count_decline;
use crate::task::{Origin, Outcome, TaskId, Verb};

/// Puts looked at for their next part's delay in one step.
const CHECKED: u32 = 16;
/// Entries at the front of the queue whose owners count as waiting for space.
const WAITING: usize = 16;

/// A write that needs space, or a page.
#[derive(Clone, Copy, Debug)]
enum WaitingWrite {
    Part(u32),
    Drop(u32),
}

/// Puts and drops that are not answered.
#[derive(Debug)]
pub(crate) struct Writes {
    blocks: SharedSlots<Block>,
    metadata: Box<[u8]>,
    parts: SharedSlots<BlockPart>,
    drops: SharedSlots<Dropping>,
    /// Owner of the share of each user of slots.
    users: Box<[u16]>,
    /// Blocks of each owner with missing parts.
    incomplete: Box<[u32]>,
    waiting: Lines<WaitingWrite>,
    unrecorded: Fifo<u32>,
    durables: Durables,
    hand: u32,
}

/// Bytes of RAM of a block being put, and of a part or drop.
pub(crate) const BLOCK_RAM_BYTES: u64 =
    size_of::<Option<Block>>() as u64 + METADATA_BYTES_MAX as u64 + 40 + SHARED_SLOT_BYTES;
/// Bytes of RAM of a part or a drop.
pub(crate) const WRITE_RAM_BYTES: u64 = (size_of::<Option<BlockPart>>()
    + size_of::<Option<Dropping>>()) as u64
    + 56
    + 2 * SHARED_SLOT_BYTES;
/// Bytes of RAM for each owner.
pub(crate) const WRITER_RAM_BYTES: u64 =
    3 * SHARED_USER_BYTES + (size_of::<u16>() + size_of::<u32>()) as u64;

impl Writes {
    pub(crate) fn new(puts: u32, writes: u32, owners: u16) -> Self {
        let durable = (puts + writes) as usize;
        Self {
            blocks: SharedSlots::new(puts, owners),
            metadata: vec![0; puts as usize * METADATA_BYTES_MAX].into_boxed_slice(),
            parts: SharedSlots::new(writes, owners),
            drops: SharedSlots::new(writes, owners),
            users: (0..owners).collect(),
            incomplete: vec![0; usize::from(owners)].into_boxed_slice(),
            waiting: Lines::with_limit(2 * writes),
            unrecorded: Fifo::with_limit(puts as usize),
            durables: Durables::new(durable),
            hand: 0,
        }
    }

    /// Has an owner of which nothing is here take part in a user's share.
    pub(crate) fn seat(&mut self, owner: u16, user: u16) {
        debug_assert!(!self.is_incomplete(owner), "blocks of owner {owner} change their user");
        self.users[usize::from(owner)] = user;
    }

    fn user(&self, owner: u16) -> u16 {
        self.users[usize::from(owner)]
    }

    /// Whether an owner may take such a place. An incomplete block waits for its client, maybe for
    /// ever: a user has fewer of those than there are free slots.
    pub(crate) fn has_place(&self, owner: u16, place: PlaceKind) -> bool {
        let user = self.user(owner);
        match place {
            PlaceKind::Drop => self.drops.has_room(user),
            PlaceKind::Part => self.parts.has_room(user),
            PlaceKind::Block => self.blocks.has_room(user) && self.parts.has_room(user),
            PlaceKind::Incomplete => {
                self.has_place(owner, PlaceKind::Block)
                    && self.incomplete_of(user) < self.blocks.room()
            }
        }
    }

    fn incomplete_of(&self, user: u16) -> usize {
        let counted = self.users.iter().zip(&self.incomplete);
        counted.filter(|(whose, _)| **whose == user).map(|(_, count)| *count as usize).sum()
    }

    /// Whether blocks of an owner wait for parts that were not given yet.
    pub(crate) fn is_incomplete(&self, owner: u16) -> bool {
        self.incomplete[usize::from(owner)] > 0
    }

    /// Begins a put. The block that `wrong` drops does not count as present: it goes once nothing
    /// declines the put.
    pub(crate) fn put(
        &mut self,
        core: &mut Core,
        log: &mut Log,
        put: &Put<'_>,
        wrong: Option<&DropKey>,
    ) -> Begun {
        if Self::may_find_a_drop(core, put) {
            // The caller asks again, and none of its tries counts.
            return Begun::Done(Status::Declined(DeclineReason::Busy).into());
        }
        match self.begin_put(core, log, put, wrong) {
            Ok(part) => {
                self.begin_part(core, log, part);
                Begun::Taken
            }
            Err(answer) => {
                match answer.status {
                    Status::Present if put.durability == Durability::Durable => {
                        return self.confirm(core, log, put, answer);
                    }
                    Status::Present => core.stats.present += 1,
                    Status::Pending => core.stats.pending += 1,
                    Status::Declined(why) => Self::declined(core, put, why),
                    _ => {}
                }
                Begun::Done(answer)
            }
        }
    }

    /// Whether recovery has found the key's block, and may yet find its drop behind it.
    fn may_find_a_drop(core: &Core, put: &Put<'_>) -> bool {
        if core.recovery.knowledge == Knowledge::Whole {
            return false;
        }
        let number = core.spaces.resolve(put.space);
        let found = number.ok().and_then(|number| core.find(number, put.key).1);
        found.is_some_and(|(_, entry)| entry.is_there() && core.is_unsettled(&entry))
    }

    /// A durable put of a key that is there: its answer waits until what is there is durable. It
    /// counts when it is answered. BUSY counts nothing: the caller asks again.
    fn confirm(&mut self, core: &mut Core, log: &mut Log, put: &Put<'_>, there: Answer) -> Begun {
        let number = core.spaces.resolve(put.space).expect("its key is there");
        let (position, entry) = core.find(number, put.key).1.expect("its key is there");
        let segment = core.geometry().segment_of(entry.place());
        let stand = log.stand_of(core, segment);
        let is_done = match stand {
            SegmentStand::Page(_) => false,
            SegmentStand::Flush(ticket) => core.flush.is_durable(ticket),
        };
        let declined = core.declines().filter(|_| !is_done);
        if !is_done && declined.is_none() && !self.has_place(put.owner, PlaceKind::Block) {
            return Begun::Done(Status::Declined(DeclineReason::Busy).into());
        }
        core.offered_again(position, &entry, put.chain);
        if let Some(why) = declined {
            Self::count_declined(core, number, why);
            return Begun::Done(Status::Declined(why).into());
        }
        if is_done {
            core.stats.present += 1;
            return Begun::Done(there);
        }
        let Answer { length, check, .. } = there;
        let stage = BlockStage::Confirming;
        let block = Block { length, check, stage, ..Block::new(core, number, put) };
        let slot = self.blocks.insert(self.user(put.owner), block);
        match stand {
            SegmentStand::Page(serial) => {
                log.hurry_segment(segment);
                self.durables.push(serial, Durable::Block(slot));
            }
            SegmentStand::Flush(ticket) => {
                self.durables.push_written(core, ticket, Durable::Block(slot));
            }
        }
        Begun::Confirms
    }

    fn count_declined(core: &mut Core, number: u16, why: DeclineReason) {
        count_decline(&mut core.stats, why);
        core.pool_stats(core.spaces.pool(number)).declined += 1;
    }

    fn declined(core: &mut Core, put: &Put<'_>, why: DeclineReason) {
        count_decline(&mut core.stats, why);
        if let Ok(number) = core.spaces.resolve(put.space) {
            core.pool_stats(core.spaces.pool(number)).declined += 1;
            core.enter_fate(number, put.key.lo(), why.into());
        }
    }

    fn begin_put(
        &mut self,
        core: &mut Core,
        log: &mut Log,
        put: &Put<'_>,
        wrong: Option<&DropKey>,
    ) -> Result<u32, Answer> {
        let number = core.spaces.resolve(put.space).map_err(Status::Invalid)?;
        put.check_against(core.geometry(), core.config().owners).map_err(Status::Invalid)?;
        let (hash, mut found) = core.find(number, put.key);
        if let Some((position, entry)) = found.filter(|(_, entry)| core.is_lost(entry)) {
            core.remove_lost(position, &entry);
            found = None;
        }
        let is_wrong = |entry: &Entry| {
            entry.is_there() && wrong.is_some_and(|drop| drop.only == Some(entry.check()))
        };
        if let Some((position, entry)) = found.filter(|(_, entry)| !is_wrong(entry)) {
            match entry.kind() {
                Kind::Live | Kind::Suspect => {
                    // Of one that is to be durable when it is known to be answered.
                    if put.durability != Durability::Durable {
                        core.offered_again(position, &entry, put.chain);
                    }
                    let (length, check) = (entry.length(), entry.check());
                    return Err(Answer { status: Status::Present, length, check });
                }
                Kind::Writing if put.at > 0 => return self.next_part(entry.put(), put),
                Kind::Writing => return Err(Status::Pending.into()),
                Kind::Dropped => {}
            }
        }
        if put.at > 0 {
            return Err(Status::Dropped.into());
        }
        if let Some(why) = core.declines() {
            return Err(Status::Declined(why).into());
        }
        if !self.has_place(put.owner, put.place()) {
            return Err(Status::Declined(DeclineReason::Busy).into());
        }
        let pool = core.spaces.pool(number);
        core.admit(pool, hash, put).map_err(Status::Declined)?;
        if let Some(drop) = wrong.filter(|_| found.is_some_and(|(_, entry)| is_wrong(&entry))) {
            if let Begun::Done(answer) = self.drop_key(core, log, drop) {
                return Err(answer);
            }
            found = core.find(number, put.key).1;
        }
        let slot = self.blocks.insert(self.user(put.owner), Block::new(core, number, put));
        let entry = Entry::new(put.key, number, Kind::Writing)
            .with_place(slot.into())
            .with_length(put.length)
            .with_stamp(core.worth.stamp_of_put(pool))
            .with_check(put.check);
        match found {
            Some((position, old)) => core.replace(position, &old, entry),
            None if core.index.insert(hash, put.key, entry) => {}
            None => {
                self.blocks.remove(slot);
                return Err(Status::Declined(DeclineReason::IndexFull).into());
            }
        }
        core.admission.spend(pool, core.geometry().padded(put.length).into());
        let at = slot as usize * METADATA_BYTES_MAX;
        self.metadata[at..at + put.metadata.len()].copy_from_slice(put.metadata);
        Ok(self.add_part(slot, put))
    }

    /// A later part of a block that is being put.
    fn next_part(&mut self, slot: u32, put: &Put<'_>) -> Result<u32, Answer> {
        let block = self.blocks.get(slot);
        if block.owner != put.owner {
            return Err(Status::Pending.into());
        }
        if (block.length, block.check) != (put.length, put.check) {
            return Err(Status::Invalid(Fault::Length).into());
        }
        if block.begun != put.at {
            return Err(Status::Invalid(Fault::Part).into());
        }
        if !self.has_place(put.owner, PlaceKind::Part) {
            return Err(Status::Declined(DeclineReason::Busy).into());
        }
        Ok(self.add_part(slot, put))
    }

    fn add_part(&mut self, slot: u32, put: &Put<'_>) -> u32 {
        let block = self.blocks.get_mut(slot);
        let was_incomplete = block.is_incomplete();
        block.begun += put.bytes;
        block.parts += 1;
        debug_assert!(block.begun <= block.length, "parts beyond the block's end");
        let count = &mut self.incomplete[usize::from(block.owner)];
        *count += u32::from(block.is_incomplete());
        *count -= u32::from(was_incomplete);
        let part = BlockPart {
            block: slot,
            user: put.user,
            owner: put.owner,
            at: put.at,
            bytes: put.bytes,
        };
        self.parts.insert(self.users[usize::from(put.owner)], part)
    }

    /// The pool that something needs space in.
    fn pool_of(&self, core: &Core, waiter: WaitingWrite) -> u8 {
        match waiter {
            WaitingWrite::Part(slot) => {
                let block = self.blocks.get(self.parts.get(slot).block);
                core.spaces.pool(block.number)
            }
            WaitingWrite::Drop(slot) => self.drops.get(slot).pool(),
        }
    }

    /// Owners at the front of the queue for space.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = u16> {
        let waiters = bits(self.waiting.used()).flat_map(|pool| self.waiting.of(pool));
        waiters.take(WAITING).map(|waiter| match waiter {
            WaitingWrite::Part(slot) => self.parts.get(slot).owner,
            WaitingWrite::Drop(slot) => self.drops.get(slot).owner(),
        })
    }

    fn begin_part(&mut self, core: &mut Core, log: &mut Log, part: u32) {
        let pool = self.pool_of(core, WaitingWrite::Part(part));
        if !self.waiting.is_empty(pool) || !self.issue(core, log, part) {
            self.waiting.push(pool, WaitingWrite::Part(part));
        }
    }

    /// Hands a part to the medium. `false`: there is no space now.
    fn issue(&mut self, core: &mut Core, log: &mut Log, slot: u32) -> bool {
        let part = *self.parts.get(slot);
        let block = self.blocks.get_mut(part.block);
        if let BlockStage::Cancelled(why) = block.stage {
            self.parts.remove(slot);
            block.parts -= 1;
            core.reply(part.user, part.owner, why);
            self.settle(log, part.block);
            return true;
        }
        if let Some(why) = core.declines().filter(|_| block.placed.is_none()) {
            self.cancel(core, part.block, Status::Declined(why));
            return self.issue(core, log, slot);
        }
        let padded = core.geometry().padded(block.length);
        let pool = core.spaces.pool(block.number);
        let placed = match block.placed {
            Some(placed) => placed,
            None => {
                let Some(placed) = log.place(core, pool, padded, SpaceClaim::Put) else {
                    return false;
                };
                core.payers().given(part.owner, padded);
                placed
            }
        };
        block.placed = Some(placed);
        let offset = StoreGeometry::place_at(placed.place) + u64::from(part.at);
        core.part_task(TaskId::new(Origin::Part, slot), offset, (part.user, part.bytes));
        true
    }

    pub(crate) fn part_ended(
        &mut self,
        core: &mut Core,
        log: &mut Log,
        slot: u32,
        outcome: Outcome,
    ) {
        core.flush.wrote(core.now().ns);
        let part = self.parts.remove(slot);
        let block = self.blocks.get_mut(part.block);
        block.parts -= 1;
        block.touched = core.now().ns;
        if let Outcome::Failed(code) = outcome {
            core.stats.failures += 1;
            let placed = block.placed.expect("written parts are placed");
            if block.stage == BlockStage::Writing {
                self.cancel(core, part.block, Status::Failed(code));
            }
            Self::probe(core, log, placed, &part);
        }
        let block = self.blocks.get_mut(part.block);
        block.done += part.bytes;
        if let BlockStage::Cancelled(why) = block.stage {
            core.reply(part.user, part.owner, why);
            return self.settle(log, part.block);
        }
        if block.done < block.length {
            core.reply(part.user, part.owner, Status::Part);
            return;
        }
        block.user = part.user;
        block.stage = BlockStage::Unrecorded;
        if !self.record(core, log, part.block) {
            self.unrecorded.push(part.block);
        }
    }

    /// Issues a write of the store's own at the place of a client's failed write: its result shows
    /// whether the drive or the client's memory is the cause.
    fn probe(core: &mut Core, log: &mut Log, placed: Placed, part: &BlockPart) {
        let probing = core.images().any(|image| matches!(image, Image::Probe { .. }));
        if probing || core.refusal().is_open() || !core.has_image() {
            return;
        }
        log.keep(placed);
        let offset = StoreGeometry::place_at(placed.place) + u64::from(part.at);
        let length = PAGE_BYTES.min(core.geometry().padded(part.bytes) as usize);
        let image = Image::Probe { placed };
        core.write_image(image, Verb::Write, offset, length, |_, bytes| bytes.fill(0));
    }

    /// Appends the record of a block that is written. `false`: no page can be closed now.
    fn record(&mut self, core: &mut Core, log: &mut Log, slot: u32) -> bool {
        let block = *self.blocks.get(slot);
        if let BlockStage::Cancelled(why) = block.stage {
            core.reply(block.user, block.owner, why);
            self.settle(log, slot);
            return true;
        }
        let placed = block.placed.expect("written blocks are placed");
        let record = Record {
            key: block.key,
            uid: core.spaces.uid(block.number),
            check: block.check,
            offset: 0,
            length: block.length,
            time: core.now().unix,
            depth: block.depth.into(),
            kind: RecordKind::Put,
            hint: block.hint,
        };
        let at = slot as usize * METADATA_BYTES_MAX;
        let metadata = &self.metadata[at..at + usize::from(block.metadata)];
        let urgent = block.durability == Durability::Durable;
        let Some(serial) = log.append(core, placed, &record, metadata, urgent) else {
            return false;
        };
        let (_, found) = core.find(block.number, block.key);
        let (position, old) = found.expect("a put that is not cancelled has its entry");
        let place = (placed.pool(), block.length);
        let class = core.class_of((block.number, block.key), place, block.hint);
        let live = old.with_kind(Kind::Live).with_class(class).with_place(placed.place);
        core.replace(position, &old, live);
        core.stats.puts += 1;
        core.stats.put_bytes += u64::from(block.length);
        let stats = core.pool_stats(placed.pool());
        (stats.puts, stats.put_bytes) = (stats.puts + 1, stats.put_bytes + u64::from(block.length));
        if urgent {
            self.blocks.get_mut(slot).stage = BlockStage::Waiting;
            self.durables.push(serial, Durable::Block(slot));
        } else {
            self.blocks.remove(slot);
            Self::answer_block(core, &block, Status::Ok);
        }
        true
    }

    fn answer_block(core: &mut Core, block: &Block, status: Status) {
        let answer = Answer { status, length: block.length, check: block.check };
        core.reply(block.user, block.owner, answer);
    }

    /// Gives a put up: its entry goes at once, its space when nothing is written there any more.
    fn cancel(&mut self, core: &mut Core, slot: u32, why: Status) {
        let block = self.blocks.get_mut(slot);
        assert!(
            matches!(block.stage, BlockStage::Writing | BlockStage::Unrecorded),
            "cancelled once"
        );
        block.stage = BlockStage::Cancelled(why);
        self.incomplete[usize::from(block.owner)] -= u32::from(block.is_incomplete());
        core.stats.abandoned += 1;
        core.give_up_writing(block.number, block.key, slot);
    }

    /// Removes a cancelled put whose parts have all ended.
    fn settle(&mut self, log: &mut Log, slot: u32) {
        let block = self.blocks.get(slot);
        if block.parts > 0 {
            return;
        }
        if let Some(placed) = block.placed {
            log.forgo(placed);
        }
        self.blocks.remove(slot);
    }

    pub(crate) fn drop_key(&mut self, core: &mut Core, log: &mut Log, drop: &DropKey) -> Begun {
        match self.begin_drop(core, log, drop) {
            Ok(slot) => {
                let pool = self.pool_of(core, WaitingWrite::Drop(slot));
                if !self.waiting.is_empty(pool) || !self.record_drop(core, log, slot) {
                    self.waiting.push(pool, WaitingWrite::Drop(slot));
                }
                Begun::Taken
            }
            Err(answer) => Begun::Done(answer),
        }
    }

    /// Takes the key out of the index. The record is written whether it was there or not: it may be
    /// on the medium still, and come back with a restart.
    fn begin_drop(
        &mut self,
        core: &mut Core,
        log: &mut Log,
        drop: &DropKey,
    ) -> Result<u32, Answer> {
        let number = core.spaces.resolve(drop.space).map_err(Status::Invalid)?;
        if drop.owner >= core.config().owners {
            return Err(Status::Invalid(Fault::Limit).into());
        }
        if let Some(why) = core.declines() {
            return Err(Status::Declined(why).into());
        }
        let (hash, found) = core.find(number, drop.key);
        if let Some(only) = drop.only {
            let same = found.filter(|(_, entry)| entry.is_there() && entry.check() == only);
            same.ok_or(Status::Miss)?;
        }
        if !self.has_place(drop.owner, PlaceKind::Drop) {
            return Err(Status::Declined(DeclineReason::Busy).into());
        }
        // While recovery goes on, an entry stands for the drop: nothing older must come back.
        let partial = core.recovery.knowledge == Knowledge::Partial;
        match found {
            Some((_, entry)) if entry.kind() == Kind::Writing => {
                self.cancel(core, entry.put(), Status::Dropped);
                self.settle_if_idle(log, entry.put());
            }
            Some((position, entry)) if partial => {
                core.replace(position, &entry, Entry::dropped(drop.key, number, u64::MAX, 0));
            }
            Some((position, _)) => core.remove(position),
            None if partial => {
                let entry = Entry::dropped(drop.key, number, u64::MAX, 0);
                core.insert_dropped(hash, drop.key, entry);
            }
            None => {}
        }
        let uid = core.spaces.uid(number);
        let there = found.filter(|(_, entry)| entry.is_there());
        let length = there.map(|(_, entry)| entry.length());
        if let Some(length) = length {
            core.stats.drops += 1;
            let suspect = there.is_some_and(|(_, entry)| entry.kind() == Kind::Suspect);
            // A block that proved right is no suspect any more.
            let damaged = suspect && drop.only.is_some();
            let fate = if damaged { Fate::Damaged } else { Fate::Dropped };
            core.enter_fate(number, drop.key.lo(), fate);
            let (key, why) = (drop.key, Gone::Dropped);
            core.feed_mut().push(&Evicted { uid, key, length, why, metadata: &[] });
        }
        let dropping = Dropping::new(drop, (uid, core.spaces.pool(number)), length);
        Ok(self.drops.insert(self.user(drop.owner), dropping))
    }

    /// Settles a cancelled put that waits for nothing but its next part.
    fn settle_if_idle(&mut self, log: &mut Log, slot: u32) {
        let block = self.blocks.get(slot);
        if block.parts == 0 && block.done < block.length {
            self.settle(log, slot);
        }
    }

    /// Appends the record of a drop. `false`: there is no space or page now.
    fn record_drop(&mut self, core: &mut Core, log: &mut Log, slot: u32) -> bool {
        let drop = *self.drops.get(slot);
        if core.declines().is_some() {
            self.drops.remove(slot);
            drop.answer(core);
            return true;
        }
        let Some(serial) = drop.append(core, log) else { return false };
        if drop.is_durable() {
            self.durables.push(serial, Durable::Drop(slot));
        } else {
            self.drops.remove(slot);
            drop.answer(core);
        }
        true
    }

    /// Goes on with what waits for space, pages and flushes.
    pub(crate) fn step(&mut self, core: &mut Core, log: &mut Log) {
        while let Some(&slot) = self.unrecorded.front() {
            if !self.record(core, log, slot) {
                let Some(why) = core.declines() else { break };
                self.cancel(core, slot, Status::Declined(why));
                continue;
            }
            self.unrecorded.pop();
        }
        for pool in bits(self.waiting.used()) {
            while let Some(waiter) = self.waiting.front(pool) {
                let went = match waiter {
                    WaitingWrite::Part(slot) => self.issue(core, log, slot),
                    WaitingWrite::Drop(slot) => self.record_drop(core, log, slot),
                };
                if !went {
                    break;
                }
                self.waiting.pop(pool);
            }
        }
        self.answer_durable(core, log);
        self.expire(core, log);
    }

    fn answer_durable(&mut self, core: &mut Core, log: &Log) {
        while let Some(durable) = self.durables.next(core, log) {
            match durable {
                Durable::Block(slot) => {
                    let block = self.blocks.remove(slot);
                    let confirms = block.stage == BlockStage::Confirming;
                    let status = match core.declines() {
                        Some(why) => {
                            if confirms {
                                Self::count_declined(core, block.number, why);
                            }
                            Status::Declined(why)
                        }
                        None if confirms => {
                            core.stats.present += 1;
                            Status::Present
                        }
                        None => Status::Ok,
                    };
                    Self::answer_block(core, &block, status);
                }
                Durable::Drop(slot) => self.drops.remove(slot).answer(core),
            }
        }
    }

    /// Gives up puts whose next part is overdue.
    fn expire(&mut self, core: &mut Core, log: &mut Log) {
        if self.blocks.used() == 0 {
            return;
        }
        for _ in 0..CHECKED.min(self.blocks.slots()) {
            self.hand = if self.hand + 1 < self.blocks.slots() { self.hand + 1 } else { 0 };
            let late = self.blocks.peek(self.hand).is_some_and(|block| {
                let waited = core.now().ns.saturating_sub(block.touched);
                block.stage == BlockStage::Writing
                    && block.parts == 0
                    && (waited >= core.config().times.part || !core.spaces.is_open(block.number))
            });
            if late {
                self.cancel(core, self.hand, Status::Dropped);
                self.settle(log, self.hand);
            }
        }
    }

    /// Gives up the puts of an owner that are not recorded.
    pub(crate) fn owner_gone(&mut self, core: &mut Core, log: &mut Log, owner: u16) {
        self.give_up(core, log, |block| block.owner == owner);
    }

    /// Gives up the puts into a namespace that was cleared.
    pub(crate) fn space_gone(&mut self, core: &mut Core, log: &mut Log) {
        for slot in 0..self.blocks.slots() {
            let gone = |block: &Block| !core.spaces.is_open(block.number);
            if self.blocks.peek(slot).is_some_and(gone) {
                self.give_up_one(core, log, slot);
            }
        }
    }

    fn give_up(&mut self, core: &mut Core, log: &mut Log, is_it: impl Fn(&Block) -> bool) {
        for slot in 0..self.blocks.slots() {
            if self.blocks.peek(slot).is_some_and(&is_it) {
                self.give_up_one(core, log, slot);
            }
        }
    }

    fn give_up_one(&mut self, core: &mut Core, log: &mut Log, slot: u32) {
        if matches!(self.blocks.get(slot).stage, BlockStage::Writing | BlockStage::Unrecorded) {
            self.cancel(core, slot, Status::Dropped);
            self.settle_if_idle(log, slot);
        }
    }

    /// Bytes that a put has written so far.
    pub(crate) fn written(&self, slot: u32) -> u32 {
        self.blocks.peek(slot).map_or(0, |block| block.done)
    }

    /// Whether a put still uses a namespace's number.
    pub(crate) fn uses(&self, number: u16) -> bool {
        let blocks = (0..self.blocks.slots()).filter_map(|slot| self.blocks.peek(slot));
        blocks.into_iter().any(|block| block.number == number)
    }

    /// Most replies of the puts and drops in flight.
    pub(crate) fn owed(&self) -> usize {
        self.blocks.used() + self.parts.used() + self.drops.used()
    }
}
