//! Blocks that the caller has in memory and not on the medium: what the store has to know of them.

use super::Store;
use crate::fates::Fate;
use crate::feed::{Evicted, Gone};
use crate::key::Key;
use crate::request::{Put, SpaceId};

impl Store {
    /// Whether the store has anything of a key: a block, one that is being put, or a drop whose
    /// record is to come. A put of any other key may wait in the caller's memory.
    #[must_use]
    pub fn knows(&self, space: SpaceId, key: Key) -> bool {
        let number = self.core.spaces.resolve(space);
        number.is_ok_and(|number| {
            let hash = self.core.index.hash(number, key.lo());
            self.core.index.place_of(hash, |entry| entry.is_low(key.lo(), number)).is_some()
        })
    }

    /// A key is put that waits in the caller's memory: for the write budget its later put is not
    /// the first one.
    pub fn note_offered(&mut self, space: SpaceId, key: Key) {
        if let Ok(number) = self.core.spaces.resolve(space) {
            let hash = self.core.index.hash(number, key.lo());
            self.core.admission.note(hash);
        }
    }

    /// A block is there that is not on the medium: the witness is notified before its put is
    /// answered. Followed by one `go_from_memory`, also once the store has the block.
    pub fn come_to_memory(&mut self, uid: u64, lo: u64) {
        self.core.witness_mut().come(uid, lo);
    }

    /// The caller has that block no more, or the store has it now.
    pub fn go_from_memory(&mut self, uid: u64, lo: u64) {
        self.core.witness_mut().go(uid, lo);
    }

    /// Such a block is nowhere now: readers of the feed see it go, and a miss knows why.
    pub fn note_gone(&mut self, space: SpaceId, gone: &Evicted<'_>) {
        let Ok(number) = self.core.spaces.resolve(space) else { return };
        let fate = if gone.why == Gone::Evicted { Fate::Evicted } else { Fate::Dropped };
        self.core.enter_fate(number, gone.key.lo(), fate);
        self.core.feed_mut().push(gone);
    }

    /// Whether a put is one that the store could take: of a length that it has, with metadata that
    /// fits.
    #[must_use]
    pub fn fits(&self, put: &Put<'_>) -> bool {
        put.check_against(self.core.geometry(), self.core.config().owners).is_ok()
    }
}
