//! Late blocks in listings: they come before all others, so that one that is written meanwhile is
//! listed twice and not left out.
//!
//! Segments have epochs from 1 on. A cursor of epoch 0 is the begin of the store's part if a record
//! was seen, else an entry of the tier's directory.

use kvrail_ring::METADATA_BYTES_MAX;
use kvrail_store::{Cursor, Listed, SpaceId};

use super::Shard;

/// Entries that a page looks at: some microseconds.
const LOOKED_AT: usize = 8192;

/// The begin of the store's part.
const OF_STORE: Cursor = Cursor { epoch: 0, page: 0, record: 1 };

impl Shard {
    /// Whether a page that begins here is one of blocks in memory. Of a namespace that is no more
    /// the store knows how a listing ends.
    pub(super) fn lists_memory(&self, space: SpaceId, from: Cursor) -> bool {
        let late = self.tier.as_ref().map_or(0, |tier| tier.tier.late_blocks());
        (from.epoch, from.record) == (0, 0) && late > 0 && self.store.uid_of(space).is_some()
    }

    /// Fills the page of the first listing with a namespace's blocks that no device has.
    pub(super) fn list_memory(&mut self, space: SpaceId, from: Cursor) {
        let Self { tier, store, listings, .. } = self;
        let (Some(tier), Some(uid), Some(rows)) = (tier, store.uid_of(space), listings.rows())
        else {
            return;
        };
        rows.next = Some(OF_STORE);
        let Some(blocks) = tier.shown.late.as_ref().filter(|_| !tier.is_stopped) else { return };
        let first = from.page as usize;
        for entry in first..blocks.entries() {
            if entry == first + LOOKED_AT || !rows.has_room() {
                let page = u32::try_from(entry).expect("entries have 32 bits");
                rows.next = Some(Cursor { epoch: 0, page, record: 0 });
                return;
            }
            let block = blocks.get(entry).filter(|block| block.is_shown && block.uid == uid);
            let Some(block) = block else { continue };
            let mut out = [0; METADATA_BYTES_MAX];
            rows.push_in_memory(&Listed {
                key: block.key,
                uid,
                length: block.length,
                depth: block.depth,
                time: block.time,
                check: block.check,
                offset: 0,
                metadata: tier.metadata(block, &mut out),
            });
        }
    }
}
