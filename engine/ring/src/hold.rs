//! Holds: the blocks of memory tiers that a client reads in place.
//!
//! A hold is one word that the client stores: a tier, an entry of its directory, and the entry's
//! count. A client stores the word first, and then looks whether the entry is still the same; the
//! sidecar hides the entry first, and then looks for words that name it. So one of both sees the
//! other's store, and memory that a client reads is not written (hazard pointers: Michael, IEEE
//! TPDS 15(6), 2004). The words of a client go with its session, and their number bounds
//! what a client holds.

use crate::presence::Load;
use crate::sync::{Ordering, fence};
use crate::tier::{Reader, TierFound};

/// Words of a client at most: a page with its header.
pub const HOLDS_MAX: u16 = 255;

/// The word of a hold, never 0: the tier's number, the lower half of the entry's count, the entry.
fn word_of(tier: u16, entry: usize, count: u32) -> u64 {
    let entry = u64::try_from(entry).expect("64-bit machines");
    (u64::from(tier) + 1) << 48 | u64::from(count & 0xffff) << 32 | entry
}

/// The words of one client.
pub(crate) trait HoldWords {
    fn load(&self, at: u16) -> u64;
    fn store(&self, at: u16, word: u64);
}

/// The client: from now on the memory of a block that was found stays as it is, until `let_go`.
/// False: the block has left the tier, and nothing is held.
pub(crate) fn hold<W: HoldWords, L: Load>(
    words: &W,
    at: u16,
    (reader, tier): (&Reader<L>, u16),
    found: &TierFound,
) -> bool {
    let (entry, count) = found.of();
    // Another thread may have let go of this word: F, pairs with the fence at the end of `is_held`.
    fence(Ordering::Release);
    words.store(at, word_of(tier, entry, count));
    fence(Ordering::SeqCst); // S, pairs with the fence in `is_held`
    let holds = reader.holds(found);
    if !holds {
        let_go(words, at);
    }
    holds
}

/// The client: it reads the block no more.
pub(crate) fn let_go<W: HoldWords>(words: &W, at: u16) {
    // Behind all loads of the block: F, pairs with the fence at the end of `is_held`.
    fence(Ordering::Release);
    words.store(at, 0);
}

/// The sidecar: whether a client of these, each with the first `slots` words, holds the block of
/// an entry. Once that is hidden, false means that no client reads it, now or later.
pub(crate) fn is_held<'a, W: HoldWords + 'a>(
    mut clients: impl Iterator<Item = &'a W>,
    slots: u16,
    (tier, entry, count): (u16, usize, u32),
) -> bool {
    fence(Ordering::SeqCst); // S, pairs with the fence in `hold`
    let found_with = count & !1; // the count rises by one when an entry is hidden
    let wanted = word_of(tier, entry, found_with);
    let is_held = clients.any(|words| (0..slots).any(|at| words.load(at) == wanted));
    fence(Ordering::Acquire); // before all stores to the memory: F, pairs with that in `let_go`
    is_held
}
