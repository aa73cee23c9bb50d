//! The memory tier of a shard: blocks that clients read from shared memory, without a request.
//!
//! The device reads a block into its room as one of the sidecar's own tasks; no byte passes through
//! the poller. Readers verify what they copy, as they verify what comes from the device.

use std::sync::Arc;

use arrayvec::ArrayVec;
use kvrail_device::BufferIndex;
use kvrail_memory::Pinned;
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::{TIER_PAGE_BYTES as PAGE, TierBlock, TierWriter};
use kvrail_store::{
    Answer, Extent, Get, MemoryTier, Outcome, POOLS_MAX, Phase, Reading, SpaceId, Store,
    TierCounts, TierRoom, TierShare, TierView,
};

use super::late_blocks::{LateBlocks, LatePuts};
use crate::late_loss::LateLosses;
use crate::stats::PoolTier;
use crate::store_call::TierSetup;
use crate::task::BufferRef;

/// Reads into a tier at once.
pub(crate) const READS_MAX: u8 = 8;
/// The same while clients' gets are being read: each block that comes in is read twice, and a
/// prompt that is loaded waits for the drive.
const READS_BESIDE_GETS: u8 = 1;
/// These, and those that are next: a further block waits for its next get.
const FILLS_MAX: u8 = 64;
/// What pools have is added up this often.
const POOLS_NS: u64 = 1_000_000_000;

const _: () = assert!(kvrail_store::TIER_WAYS == kvrail_ring::TIER_WAYS);

/// How far a block on its way into the tier is.
#[derive(Clone, Copy, Debug)]
enum FillStage {
    /// It is to be read.
    Next,
    Reading(Reading),
}

/// A block on its way into the tier.
#[derive(Clone, Copy, Debug)]
struct Fill {
    number: u8,
    room: TierRoom,
    space: SpaceId,
    block: TierBlock,
    stage: FillStage,
}

/// A read that is to be given to the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct FillRead {
    pub(super) number: u8,
    pub(super) offset: u64,
    pub(super) length: u32,
    pub(super) memory: BufferRef,
}

/// Fill of a tier, and what it counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TierUsage {
    pub(super) blocks: u64,
    pub(super) bytes: u64,
    pub(super) bytes_max: u64,
    /// Late blocks that are not written, and their bytes.
    pub(super) unwritten: (u64, u64),
    pub(super) late_dropped_bytes: u64,
    pub(super) counts: TierCounts,
}

/// The tier of one shard.
#[derive(Debug)]
pub(crate) struct ShardTier {
    pub(super) tier: MemoryTier,
    pub(super) shown: Shown,
    pub(super) memory: Arc<dyn Pinned>,
    pub(super) buffer: BufferIndex,
    /// First byte of the blocks, behind the directory.
    pub(super) data_at: u64,
    fills: ArrayVec<Fill, { FILLS_MAX as usize }>,
    /// Another store begins: blocks of the one before are being hidden.
    pub(super) is_stopped: bool,
    pub(super) late: Option<LatePuts>,
    pools: [PoolTier; POOLS_MAX],
    /// When `pools` was added up.
    pools_ns: u64,
    /// Blocks that a stop could not write.
    pub(super) losses: LateLosses,
}

/// The directory that clients read, and late blocks by its entries.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) writer: TierWriter,
    pub(super) late: Option<LateBlocks>,
}

impl TierView for Shown {
    fn first_of(&self, uid: u64, lo: u64) -> usize {
        self.writer.first_of(uid, lo)
    }

    fn hide(&mut self, entry: usize) {
        self.writer.hide(entry);
    }

    fn set_used(&mut self, entry: usize) {
        self.writer.set_used(entry);
    }

    fn clear_used(&mut self, entry: usize) {
        self.writer.clear_used(entry);
    }

    fn is_held(&self, entry: usize) -> bool {
        self.writer.is_held(entry)
    }

    fn holders(&self) -> usize {
        self.writer.holders()
    }

    fn gone(&mut self, entry: usize, _: (u64, u64)) {
        if let Some(late) = &mut self.late {
            late.leave(entry);
        }
    }
}

impl ShardTier {
    /// # Panics
    /// If the memory has no room for a block behind the directory.
    pub(crate) fn new(setup: &TierSetup, store_blocks: u64) -> Self {
        let memory: &Arc<dyn Pinned> = &setup.memory;
        let held = (setup.number, Arc::clone(&setup.holds));
        let writer = TierWriter::new(memory, setup.directory_bytes, held);
        let pages = (memory.bytes() - setup.directory_bytes) / PAGE as usize;
        let pages = u32::try_from(pages).expect("a tier of a member has less than 16 TiB");
        let entries = writer.entries();
        let (tier, late) = match &setup.late {
            None => (MemoryTier::new(pages, entries), None),
            Some(_) => {
                let tier = MemoryTier::with_late(pages, entries, store_blocks);
                (tier, Some(LateBlocks::new(entries)))
            }
        };
        Self {
            tier,
            shown: Shown { writer, late },
            memory: Arc::clone(memory),
            late: setup.late.as_ref().map(LatePuts::new),
            buffer: setup.buffer,
            data_at: setup.directory_bytes as u64,
            fills: ArrayVec::new(),
            is_stopped: false,
            pools: [PoolTier::default(); POOLS_MAX],
            pools_ns: 0,
            losses: LateLosses::default(),
        }
    }

    /// The device serves a get of this block, of a namespace with this uid. True: the block is to
    /// come into the tier.
    pub(super) fn meet(&mut self, get: &Get, uid: u64, reading: &Reading) -> bool {
        let is_whole = matches!(get.extent, Extent::Whole { .. });
        if !is_whole || !self.has_room_for(&reading.answer) {
            return false;
        }
        let (lo, pages) = (get.key.lo(), reading.answer.length.div_ceil(PAGE));
        let room = self.tier.meet((uid, lo), pages, &mut self.shown);
        room.map(|room| self.begin(room, (get.space, uid, lo), &reading.answer)).is_some()
    }

    /// A client expects to use a block with this length and check.
    pub(super) fn fetch(&mut self, of: (SpaceId, u64, u64), answer: &Answer) {
        let (key, pages) = ((of.1, of.2), answer.length.div_ceil(PAGE));
        if !self.has_room_for(answer) {
            return self.tier.fetch_refused(key, &mut self.shown);
        }
        if let Some(room) = self.tier.fetch(key, pages, &mut self.shown) {
            self.begin(room, of, answer);
        }
    }

    /// Whether one read can bring the block, and there is a place among those on their way.
    fn has_room_for(&self, answer: &Answer) -> bool {
        answer.length <= REQUEST_LENGTH_MAX && !self.fills.is_full()
    }

    fn begin(&mut self, room: TierRoom, (space, uid, lo): (SpaceId, u64, u64), answer: &Answer) {
        let offset = self.data_at + u64::from(room.page) * u64::from(PAGE);
        let block = TierBlock { uid, lo, check: answer.check, offset, length: answer.length };
        let free = |number: &u8| self.fills.iter().all(|fill| fill.number != *number);
        let number = (0..FILLS_MAX).find(free).expect("there are fewer fills");
        self.fills.push(Fill { number, room, space, block, stage: FillStage::Next });
    }

    /// The next read, if there is one: the store's segment is held until it ends.
    pub(super) fn next_read(
        &mut self,
        store: &mut Store,
        logical_block: u32,
        gets: u32,
    ) -> Option<FillRead> {
        let reads = self.fills.iter().filter(|fill| matches!(fill.stage, FillStage::Reading(_)));
        let most = if gets > 0 { READS_BESIDE_GETS } else { READS_MAX };
        if reads.count() >= usize::from(most) {
            return None;
        }
        loop {
            let next = |fill: &Fill| matches!(fill.stage, FillStage::Next);
            let at = self.fills.iter().position(next)?;
            let Fill { number, room, space, block, .. } = self.fills[at];
            let found = store.inspect_low(space, block.lo);
            let Some(reading) = found else {
                self.fills.remove(at);
                self.tier.give_up(&room);
                continue;
            };
            self.fills[at].stage = FillStage::Reading(reading);
            if reading.exact == block.length {
                let length = reading.exact.next_multiple_of(logical_block);
                let memory = BufferRef { buffer: self.buffer, offset: block.offset };
                return Some(FillRead { number, offset: reading.offset, length, memory });
            }
            // Another block has the key since.
            self.read_ended(number, store, Outcome::Done);
        }
    }

    /// A read has ended.
    pub(super) fn read_ended(&mut self, number: u8, store: &mut Store, outcome: Outcome) {
        let at = self.fills.iter().position(|fill| fill.number == number);
        let Fill { room, block, stage, .. } = self.fills.remove(at.expect("it was begun"));
        let FillStage::Reading(reading) = stage else { unreachable!("it was given to the device") };
        store.read_ended(reading.id, outcome);
        let is_same = reading.answer.check == block.check && reading.exact == block.length;
        if outcome != Outcome::Done || !is_same {
            return self.tier.give_up(&room);
        }
        self.tier.fill(&room, &mut self.shown, |shown| shown.writer.show(room.entry, &block));
    }

    /// For how long clients have found a block, in seconds.
    pub(super) fn age_s(&self, uid: u64, lo: u64) -> Option<u32> {
        if self.is_stopped { None } else { self.tier.age_s(uid, lo, &self.shown) }
    }

    /// A namespace may be gone soon: its blocks that are here count in its pool until they go.
    pub(super) fn set_pool(&mut self, uid: u64, pool: u8) {
        self.tier.set_pool(uid, pool);
    }

    /// What the namespace with this uid has here.
    pub(super) fn share(&self, uid: u64) -> TierShare {
        self.tier.share(uid)
    }

    /// A client used a block that it got from here.
    pub(super) fn use_block(&mut self, uid: u64, lo: u64) {
        self.tier.use_block(uid, lo, &mut self.shown);
    }

    /// The key's block is another one from now on, or none.
    pub(super) fn forget(&mut self, uid: u64, lo: u64) {
        self.forget_copied(uid, lo);
        self.tier.forget(uid, lo, &mut self.shown);
    }

    /// A reader found a block wrong. True: it may have been this copy, which is gone now.
    pub(super) fn report(&mut self, uid: u64, lo: u64) -> bool {
        self.tier.report(uid, lo, &mut self.shown)
    }

    /// The device is gone: no block is found until another store serves.
    pub(super) fn stop(&mut self) {
        self.shown.writer.stop();
    }

    /// Another store is behind it from now on; nothing is being read.
    pub(super) fn begin_anew(&mut self) {
        self.shown.writer.stop();
        while let Some(Fill { room, stage, .. }) = self.fills.pop() {
            assert!(matches!(stage, FillStage::Next), "nothing of the life before is in flight");
            self.tier.give_up(&room);
        }
        self.forget_late();
        self.tier.clear();
        self.pools = [PoolTier::default(); POOLS_MAX];
        self.is_stopped = true;
    }

    /// A step of the shard: searches may go on, and a clear does. True: that has more to do.
    pub(super) fn step(&mut self, now_ns: u64) -> bool {
        let goes_on = self.tier.renew(now_ns, &mut self.shown);
        if self.is_stopped && !goes_on {
            self.is_stopped = false;
            if let Some(late) = &mut self.shown.late {
                late.end_void();
            }
            self.shown.writer.serve();
        }
        goes_on
    }

    /// What the namespaces of each pool have, those that were cleared too: added up once a second.
    pub(super) fn by_pool(&mut self, store: &Store, now_ns: u64) -> &[PoolTier; POOLS_MAX] {
        if now_ns < self.pools_ns + POOLS_NS {
            return &self.pools;
        }
        self.pools_ns = now_ns;
        if matches!(store.phase(), Phase::Warming | Phase::Serving) {
            self.tier.keep_only(store.spaces().map(|space| (space.uid, space.pool)));
        }
        let bytes = |pages: u64| pages * u64::from(PAGE);
        for pool in &mut self.pools {
            let late_dropped_bytes = pool.late_dropped_bytes;
            *pool = PoolTier { late_dropped_bytes, ..PoolTier::default() };
        }
        for (pool, share) in self.tier.by_pool() {
            let pool = &mut self.pools[usize::from(pool)];
            pool.blocks += share.blocks;
            pool.bytes += bytes(share.pages);
            pool.ages_s += share.ages_s;
            pool.late_blocks += share.late_blocks;
            pool.late_dropped_bytes += bytes(share.late_dropped_pages);
        }
        &self.pools
    }

    pub(super) fn usage(&self) -> TierUsage {
        let (blocks, pages) = self.tier.usage();
        let bytes = |pages: u64| pages * u64::from(PAGE);
        let (bytes_max, counts) = (bytes(self.tier.pages().into()), self.tier.counts());
        TierUsage {
            blocks,
            bytes: bytes(pages),
            bytes_max,
            unwritten: (self.tier.late_blocks(), bytes(self.tier.late_pages())),
            late_dropped_bytes: bytes(counts.late_dropped_pages),
            counts,
        }
    }
}
