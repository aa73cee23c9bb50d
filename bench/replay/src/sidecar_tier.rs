//! The memory tier as the sidecar has it, above the store: the real code of both, without bytes.
//!
//! The tier has copies of what the store has, so a block that the store lost is no hit. A client
//! that finds a block in memory reports uses of it, once a second; a reported use counts in the
//! store too.

use kvrail_store::{Chain, LateWrite, MemoryTier, TIER_WAYS, TierRoom, TierView};

use crate::player::Keyed;
use crate::report::StoreCounts;
use crate::rings::{ChainPlace, Rings, UID};
use crate::store::lower_half;

/// Bytes of the tier's pages.
const PAGE_BYTES: u32 = 4096;

/// Entries for each block that the tier has room for.
const ENTRIES: u64 = 8;

/// When a block comes into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierEntry {
    /// At its second get, as the sidecar does by itself.
    SecondGet,
    /// At its put too, as a lookup that fetches has it.
    AtPut,
    /// At its put, which the tier may have written to the store later.
    Late,
}

/// Which uses in memory count in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TierUses {
    /// The first one since the hand came by.
    Once,
    /// All of them: clients report one in a second.
    Each,
}

/// The directory as clients see it: entries that are shown, by block, and whether a use of each is
/// known.
#[derive(Debug)]
struct Directory {
    sets: u64,
    shown: Vec<Option<Shown>>,
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    lo: u64,
    is_used: bool,
}

impl Directory {
    fn find(&self, lo: u64) -> Option<Shown> {
        let first = self.first_of(UID, lo);
        let set = &self.shown[first..first + TIER_WAYS];
        set.iter().flatten().find(|shown| shown.lo == lo).copied()
    }

    fn set(&mut self, entry: usize, is_used: bool) {
        if let Some(shown) = &mut self.shown[entry] {
            shown.is_used = is_used;
        }
    }
}

impl TierView for Directory {
    /// Keys are uniform, other bits choose their fingerprints.
    fn first_of(&self, _: u64, lo: u64) -> usize {
        let set = ((lo >> 32) * self.sets) >> 32;
        usize::try_from(set).expect("sets are few") * TIER_WAYS
    }

    fn hide(&mut self, entry: usize) {
        self.shown[entry] = None;
    }

    fn set_used(&mut self, entry: usize) {
        self.set(entry, true);
    }

    fn clear_used(&mut self, entry: usize) {
        self.set(entry, false);
    }

    /// Copies hold nothing.
    fn is_held(&self, _: usize) -> bool {
        false
    }

    fn holders(&self) -> usize {
        0
    }

    /// Whether the tier alone has a block is asked of the tier.
    fn gone(&mut self, _: usize, _: (u64, u64)) {}
}

/// A tier of the sidecar above its store.
pub(crate) struct SidecarTier {
    tier: MemoryTier,
    directory: Directory,
    entry: TierEntry,
    uses: TierUses,
    pages: u32,
    store: Rings,
    /// What each entry's late block is.
    late: Vec<Option<LatePut>>,
    /// Requests so far: blocks that one puts are a group.
    requests: u64,
    hits: u64,
    now_ns: u64,
}

/// A put that is written later.
#[derive(Clone, Copy, Debug)]
struct LatePut {
    block: u32,
    chain: Chain,
    place: ChainPlace,
}

impl SidecarTier {
    /// A tier of `capacity` blocks above an empty store of `store_blocks`, with as many entries as
    /// the sidecar gives it where blocks are as long as its store expects.
    pub(crate) fn new(
        (entry, uses): (TierEntry, TierUses),
        (capacity, block_bytes): (u64, u32),
        (store, store_blocks): (Rings, u64),
    ) -> Self {
        let pages = block_bytes.div_ceil(PAGE_BYTES);
        let sets = capacity.saturating_mul(ENTRIES).div_ceil(TIER_WAYS as u64).max(1);
        let entries = usize::try_from(sets).expect("a trace fits into memory") * TIER_WAYS;
        let all = u32::try_from(capacity.max(1) * u64::from(pages)).unwrap_or(u32::MAX);
        let directory = Directory { sets, shown: vec![None; entries] };
        let tier = match entry {
            TierEntry::Late => MemoryTier::with_late(all, entries, store_blocks),
            TierEntry::SecondGet | TierEntry::AtPut => MemoryTier::new(all, entries),
        };
        let (late, requests, hits, now_ns) = (vec![None; entries], 0, 0, 0);
        Self { tier, directory, entry, uses, pages, store, late, requests, hits, now_ns }
    }

    pub(crate) fn store(&mut self) -> &mut Rings {
        &mut self.store
    }

    /// Hits in memory, and what the store counted.
    pub(crate) fn counted(&self) -> (u64, (StoreCounts, u64)) {
        (self.hits, self.store.counted())
    }

    /// Fetches are as far apart as in life: no limit of theirs is met.
    fn renew(&mut self) {
        self.now_ns += 1_000_000_000;
        self.tier.renew(self.now_ns, &mut self.directory);
    }

    /// The bytes of a block come at once.
    fn fill(&mut self, lo: u64, room: Option<TierRoom>) {
        let Some(room) = room else { return };
        self.tier.fill(&room, &mut self.directory, |directory| {
            directory.shown[room.entry] = Some(Shown { lo, is_used: false });
        });
    }

    fn is_unwritten(&self, lo: u64) -> bool {
        self.tier.unwritten(UID, lo, &self.directory).is_some()
    }

    /// A put of a block that is written later if there is room in memory, else now.
    fn put_late(&mut self, put: LatePut) -> Result<(), String> {
        let LatePut { block, chain, place } = put;
        let lo = lower_half(block);
        self.renew();
        self.write_late()?;
        if self.is_unwritten(lo) {
            self.tier.use_block(UID, lo, &mut self.directory);
            return Ok(());
        }
        if self.store.has_block(block, place) {
            return self.store.put_block(block, (chain, place));
        }
        // Neither has it. Its request is its group.
        let about = (self.pages, self.requests);
        let Some(room) = self.tier.put((UID, lo), about, &mut self.directory) else {
            self.tier.forget(UID, lo, &mut self.directory);
            return self.store.put_block(block, (chain, place));
        };
        self.late[room.entry] = Some(put);
        self.fill(lo, Some(room));
        Ok(())
    }

    /// What the tier has chosen is written.
    fn write_late(&mut self) -> Result<(), String> {
        while let Some(entry) = self.tier.next_write() {
            let LatePut { block, chain, place } = self.late[entry].expect("it was put");
            self.store.put_block(block, (chain, place))?;
            let how = match self.store.has_block(block, place) {
                true => LateWrite::Written,
                false => LateWrite::Declined,
            };
            self.tier.write_ended(entry, how, &mut self.directory);
        }
        Ok(())
    }

    /// A get of one block: from memory if it lies there, and the store still has it.
    fn get_block(&mut self, block: u32, place: ChainPlace) -> Result<bool, String> {
        let lo = lower_half(block);
        self.renew();
        let is_stored = self.store.has_block(block, place);
        if let Some(shown) = self.directory.find(lo)
            && (is_stored || self.is_unwritten(lo))
        {
            self.hits += 1;
            if self.uses == TierUses::Each || !shown.is_used {
                self.tier.use_block(UID, lo, &mut self.directory);
                if is_stored {
                    self.store.touch_block(block, place)?;
                }
            }
            return Ok(true);
        }
        if !self.store.get_block(block, place)? {
            return Ok(false);
        }
        let room = self.tier.meet((UID, lo), self.pages, &mut self.directory);
        self.fill(lo, room);
        Ok(true)
    }
}

impl Keyed for SidecarTier {
    type Error = String;

    fn get(&mut self, blocks: &[u32]) -> Result<usize, String> {
        for (depth, block) in blocks.iter().enumerate() {
            if !self.get_block(*block, ChainPlace::of(blocks, depth))? {
                return Ok(depth);
            }
        }
        Ok(blocks.len())
    }

    fn put(&mut self, blocks: &[u32], there: usize, chain: Chain) -> Result<(), String> {
        self.requests += 1;
        if self.entry == TierEntry::Late {
            let puts = blocks.iter().enumerate().skip(there);
            let mut puts = puts.map(|(depth, block)| {
                let place = ChainPlace::of(blocks, depth);
                LatePut { block: *block, chain, place }
            });
            return puts.try_for_each(|put| self.put_late(put));
        }
        for (depth, block) in blocks.iter().enumerate().skip(there) {
            let (lo, place) = (lower_half(*block), ChainPlace::of(blocks, depth));
            if !self.store.has_block(*block, place) {
                self.tier.forget(UID, lo, &mut self.directory);
            }
            self.store.put_block(*block, (chain, place))?;
            if self.entry == TierEntry::AtPut && self.store.has_block(*block, place) {
                self.renew();
                let room = self.tier.fetch((UID, lo), self.pages, &mut self.directory);
                self.fill(lo, room);
            }
        }
        Ok(())
    }
}
