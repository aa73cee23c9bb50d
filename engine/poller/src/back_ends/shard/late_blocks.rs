//! What a shard keeps of its late blocks: those in the memory tier, and puts, gets and drops of
//! them on their way.

use std::sync::Arc;

use arrayvec::ArrayVec;
use kvrail_device::SlotId;
use kvrail_ring::TIER_PAGE_BYTES as PAGE;
use kvrail_store::{Answer, Chain, Durability, Hint, Key, Put, Reply, SpaceId, Status, TierRoom};

use super::super::own::late_user;
use crate::copier::{COPIES_MAX, CopyPort};
use crate::limits::SIDECAR;
use crate::store_call::LateSetup;

/// Writes out of a tier at once: as many as keep a drive busy, and no more.
pub(super) const WRITES_MAX: u32 = 16;
/// Gets that wait for a write at once; a further one is a MISS.
pub(super) const GETS_MAX: usize = 64;
/// Drops of late blocks on their way at once; a further one is answered as one that found nothing.
const DROPS_MAX: usize = 64;
/// No place.
const NONE: u32 = u32::MAX;
/// Late blocks that may leave between two looks: a search's, and a step's of a clear.
const GONE_MAX: usize = 1024 + 64;
/// A block that the device does not have.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateBlock {
    pub(super) uid: u64,
    pub(super) space: SpaceId,
    pub(super) key: Key,
    pub(super) length: u32,
    pub(super) check: u64,
    pub(super) chain: Chain,
    pub(super) depth: u16,
    pub(super) hint: Hint,
    /// Seconds since 1970 when it was put.
    pub(super) time: u32,
    /// Where it begins in the tier's memory; its metadata begins at the next page behind it.
    pub(super) offset: u64,
    pub(super) metadata: u16,
    /// Whether the presence table has it on behalf of the tier.
    pub(super) is_shown: bool,
    /// Whether a put waits for its write.
    pub(super) is_awaited: bool,
}

impl LateBlock {
    pub(super) fn metadata_at(&self) -> usize {
        let at = self.offset + u64::from(self.length.next_multiple_of(PAGE));
        usize::try_from(at).expect("memory that is mapped")
    }

    pub(super) fn answer(&self, status: Status) -> Answer {
        Answer { status, length: self.length, check: self.check }
    }

    pub(super) fn put<'a>(&self, entry: usize, metadata: &'a [u8]) -> Put<'a> {
        Put {
            user: late_user(entry),
            owner: SIDECAR.0.into(),
            space: self.space,
            key: self.key,
            length: self.length,
            at: 0,
            bytes: self.length,
            check: self.check,
            chain: self.chain,
            depth: self.depth,
            hint: self.hint,
            durability: Durability::Soon,
            metadata,
        }
    }
}

// There is a place for each entry of a directory: its size is memory of the sidecar.
const _: () = assert!(size_of::<LateBlock>() <= 80);

/// The late blocks of a tier by its entries, and those that have left since the last look.
#[derive(Debug)]
pub(super) struct LateBlocks {
    /// Of each entry of the directory, which has several for each block.
    pub(super) at: Box<[u32]>,
    pub(super) blocks: Vec<LateBlock>,
    /// Places in `blocks` of none.
    pub(super) free: Vec<u32>,
    /// With their entries.
    pub(super) gone: Vec<(usize, LateBlock)>,
    /// Blocks are of a store that is no more: what leaves was in its table.
    pub(super) is_void: bool,
}

impl LateBlocks {
    /// Each entry may have a late block: were there fewer places, puts of short blocks would find
    /// none, and nothing that moves the hand would make some. Memory is used by as many as there
    /// are at once.
    pub(super) fn new(entries: usize) -> Self {
        Self {
            at: vec![NONE; entries].into_boxed_slice(),
            blocks: Vec::with_capacity(entries),
            free: Vec::with_capacity(entries),
            gone: Vec::with_capacity(GONE_MAX),
            is_void: false,
        }
    }

    /// Entries of the directory.
    pub(super) fn entries(&self) -> usize {
        self.at.len()
    }

    pub(super) fn get(&self, entry: usize) -> Option<&LateBlock> {
        let at = self.at[entry];
        (at != NONE).then(|| &self.blocks[at as usize])
    }

    pub(super) fn set(&mut self, entry: usize, block: LateBlock) {
        debug_assert_eq!(self.at[entry], NONE, "an entry has one block");
        self.at[entry] = match self.free.pop() {
            Some(at) => {
                self.blocks[at as usize] = block;
                at
            }
            None => {
                self.blocks.push(block);
                u32::try_from(self.blocks.len() - 1).expect("fewer than entries, of 32 bits")
            }
        };
    }

    pub(super) fn take(&mut self, entry: usize) -> Option<LateBlock> {
        let block = *self.get(entry)?;
        self.free.push(std::mem::replace(&mut self.at[entry], NONE));
        Some(block)
    }

    /// A put waits for the write of the entry's block.
    pub(super) fn note_awaited(&mut self, entry: usize) {
        self.blocks[self.at[entry] as usize].is_awaited = true;
    }

    pub(super) fn note_shown(&mut self, entry: usize) {
        self.blocks[self.at[entry] as usize].is_shown = true;
    }

    /// The tier alone has the entry's block no more.
    pub(super) fn leave(&mut self, entry: usize) {
        if let Some(block) = self.take(entry)
            && block.is_shown
            && !self.is_void
        {
            debug_assert!(self.gone.len() < self.gone.capacity(), "a poller allocates nothing");
            self.gone.push((entry, block));
        }
    }

    /// What is here goes with the store that is no more, step by step.
    pub(super) fn begin_void(&mut self) {
        self.gone.clear();
        self.is_void = true;
    }

    /// What comes from now on is of another store.
    pub(super) fn end_void(&mut self) {
        self.is_void = false;
    }
}

/// A block on its way from a client's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateCopy {
    pub(super) number: u8,
    pub(super) room: TierRoom,
    /// The put, and its session.
    pub(super) user: u64,
    pub(super) owner: u16,
}

/// Late puts of a tier.
#[derive(Debug)]
pub(super) struct LatePuts {
    pub(super) port: CopyPort,
    pub(super) namespaces: Arc<[String]>,
    pub(super) copies: ArrayVec<LateCopy, COPIES_MAX>,
    pub(super) replies: ArrayVec<Reply, COPIES_MAX>,
    /// Gets that wait for the write of an entry, and those that need not wait any more.
    pub(super) waiting: ArrayVec<(usize, SlotId), GETS_MAX>,
    pub(super) woken: ArrayVec<SlotId, GETS_MAX>,
    /// Entries whose puts the store has, and where their bytes begin.
    pub(super) writing: ArrayVec<(usize, u64), { WRITES_MAX as usize }>,
    /// Drops of late blocks that the store records: their names, and the blocks' bytes.
    pub(super) drops: ArrayVec<(u64, u32), DROPS_MAX>,
}

impl LatePuts {
    pub(super) fn new(setup: &LateSetup) -> Self {
        Self {
            port: CopyPort::new(Arc::clone(&setup.queues)),
            namespaces: Arc::clone(&setup.namespaces),
            copies: ArrayVec::new(),
            replies: ArrayVec::new(),
            waiting: ArrayVec::new(),
            woken: ArrayVec::new(),
            writing: ArrayVec::new(),
            drops: ArrayVec::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.port.has_room() && self.copies.len() + self.replies.len() < COPIES_MAX
    }

    /// Gets that waited for this entry need not wait any more.
    pub(super) fn wake(&mut self, entry: usize) {
        let woken = &mut self.woken;
        self.waiting.retain(|(of, id)| {
            let stays = *of != entry;
            if !stays {
                woken.push(*id);
            }
            stays
        });
    }

    /// All requests are ended by others.
    pub(super) fn sweep(&mut self) {
        self.waiting.clear();
        self.woken.clear();
        self.drops.clear();
        self.replies.clear();
    }
}
