//! Holds in shared memory: a table for each client, and all of them as the sidecar has them.

use std::fmt;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};

use kvrail_memory::Pinned;

use crate::hold::{HOLDS_MAX, HoldWords, hold, is_held, let_go};
use crate::presence::Load;
use crate::shm::ShmWords;
use crate::tier::{Reader, TierFound};

/// Bytes of a client's table: a header, and the words.
pub const HOLDS_BYTES: usize = 4096;

/// Blocks that a client may hold of the smallest tier.
const HOLDS_MIN: u16 = 4;

/// Words of a table, the header counted in.
const WORDS: u32 = 256;
const _: () = assert!(HOLDS_MAX as u32 + 1 == WORDS && WORDS as usize * 8 <= HOLDS_BYTES);

/// Words of 64 bits: the first is the number of others that the client may use.
#[derive(Debug)]
struct HoldTable(ShmWords<1>);

impl HoldTable {
    fn at(memory: &Arc<dyn Pinned>) -> Self {
        Self(ShmWords::at(memory, 0, WORDS))
    }
}

impl HoldWords for HoldTable {
    fn load(&self, at: u16) -> u64 {
        self.0.word(u32::from(at) + 1, 0)
    }

    fn store(&self, at: u16, word: u64) {
        self.0.set_word(u32::from(at) + 1, 0, word);
    }
}

/// The tables of all clients that hold blocks, by session. The control thread adds and removes
/// them; pollers look, and never wait.
pub struct HoldTables {
    of: RwLock<Vec<(u64, HoldTable)>>,
    slots: u16,
}

impl HoldTables {
    /// No table yet. Of tiers for `blocks` blocks each at least, a client will hold the 128th part,
    /// and a few in any case.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let slots = u16::try_from(blocks / 128).unwrap_or(u16::MAX);
        Self { of: RwLock::default(), slots: slots.clamp(HOLDS_MIN, HOLDS_MAX) }
    }

    /// A table of a session, in memory that is zero and that its client does not have yet. False:
    /// it has one.
    ///
    /// # Panics
    /// If the memory is shorter than [`HOLDS_BYTES`].
    pub fn add(&self, session: u64, memory: &Arc<dyn Pinned>) -> bool {
        let mut tables = self.change();
        let is_new = tables.iter().all(|(other, _)| *other != session);
        if is_new {
            let table = HoldTable::at(memory);
            table.0.set_word(0, 0, self.slots.into());
            tables.push((session, table));
        }
        is_new
    }

    /// The session has ended: its client reads nothing more.
    pub fn end(&self, session: u64) {
        let mut tables = self.change();
        let at = tables.iter().position(|(other, _)| *other == session);
        let ended = at.map(|at| tables.swap_remove(at));
        drop(tables);
        drop(ended); // unmapped behind the lock
    }

    /// Clients that hold blocks, or may.
    pub(crate) fn clients(&self) -> usize {
        self.look().map_or(0, |tables| tables.len())
    }

    /// Whether a client holds the block of this entry. Also true while a table is being added.
    pub(crate) fn hold(&self, tier: u16, entry: usize, count: u32) -> bool {
        let Some(tables) = self.look() else { return true };
        is_held(tables.iter().map(|(_, table)| table), self.slots, (tier, entry, count))
    }

    fn look(&self) -> Option<RwLockReadGuard<'_, Vec<(u64, HoldTable)>>> {
        match self.of.try_read() {
            Ok(tables) => Some(tables),
            Err(TryLockError::Poisoned(tables)) => Some(tables.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The control thread tries again and again: a poller would have to wake one that waits.
    fn change(&self) -> RwLockWriteGuard<'_, Vec<(u64, HoldTable)>> {
        loop {
            match self.of.try_write() {
                Ok(tables) => return tables,
                Err(TryLockError::Poisoned(tables)) => return tables.into_inner(),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
    }
}

impl fmt::Debug for HoldTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tables of {} holds", self.slots)
    }
}

/// The client's table: its threads share it.
#[derive(Debug)]
pub struct Holds {
    table: HoldTable,
    free: Mutex<Vec<u16>>,
    /// The process it was given to: in a forked child all holds are the parent's.
    pid: u32,
}

impl Holds {
    /// A table that the sidecar has given. Nothing where it has no room for a hold.
    #[must_use]
    pub fn new(memory: &Arc<dyn Pinned>) -> Option<Self> {
        if memory.bytes() < HOLDS_BYTES {
            return None;
        }
        let table = HoldTable::at(memory);
        let slots = u16::try_from(table.0.word(0, 0)).unwrap_or(0).min(HOLDS_MAX);
        let free = Mutex::new((0..slots).rev().collect());
        (slots > 0).then(|| Self { table, free, pid: std::process::id() })
    }

    /// Holds a block. Nothing when it has left the tier, or all words are in use.
    pub(crate) fn hold<L: Load>(&self, tier: (&Reader<L>, u16), found: &TierFound) -> Option<u16> {
        if self.pid != std::process::id() {
            return None;
        }
        let at = self.free().pop()?;
        let is_held = hold(&self.table, at, tier, found);
        if !is_held {
            self.free().push(at);
        }
        is_held.then_some(at)
    }

    /// Ends a hold: nothing of its block is read any more.
    pub(crate) fn let_go(&self, at: u16) {
        if self.pid != std::process::id() {
            return;
        }
        let_go(&self.table, at);
        self.free().push(at);
    }

    /// Holds that may begin now.
    #[must_use]
    pub fn left(&self) -> usize {
        if self.pid == std::process::id() { self.free().len() } else { 0 }
    }

    fn free(&self) -> MutexGuard<'_, Vec<u16>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner) // a push or a pop
    }
}
