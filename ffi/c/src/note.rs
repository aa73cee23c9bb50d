//! Details of a block's end beyond its status.
#![expect(unsafe_code, reason = "exports symbols")]
// UNSAFETY: `no_mangle` only; no pointer is followed.

use std::ffi::{CString, c_char};
use std::sync::LazyLock;

use kvrail_client::{BlockNote, Decline};

/// Nothing.
pub const KVRAIL_NOTE_NONE: u32 = 0;
/// KVRAIL_OK of a put: the block was there already; nothing was written.
pub const KVRAIL_NOTE_PRESENT: u32 = 1;
/// KVRAIL_OK of a put: another put of that key is in flight; nothing was written or is promised.
pub const KVRAIL_NOTE_PENDING: u32 = 2;
/// KVRAIL_MISS: recovery has not seen everything yet; the block may still turn up.
pub const KVRAIL_NOTE_WARMING: u32 = 3;
/// KVRAIL_MISS: the bytes were not those of the put, twice. The sidecar has a report.
pub const KVRAIL_NOTE_WRONG: u32 = 4;
/// KVRAIL_MISS or KVRAIL_DECLINED: the namespace was cleared or removed; refresh it.
pub const KVRAIL_NOTE_STALE: u32 = 5;
/// KVRAIL_DECLINED: all places for puts were taken.
pub const KVRAIL_NOTE_BUSY: u32 = 65;
/// KVRAIL_DECLINED: the index was full; space was being made.
pub const KVRAIL_NOTE_INDEX_FULL: u32 = 66;
/// KVRAIL_DECLINED: the store had not read its heads yet.
pub const KVRAIL_NOTE_STARTING: u32 = 67;
/// KVRAIL_DECLINED: the store only reads for good.
pub const KVRAIL_NOTE_READ_ONLY: u32 = 68;
/// KVRAIL_DECLINED: given up before it was complete; a drop, a clear or a failed part came between.
pub const KVRAIL_NOTE_GIVEN_UP: u32 = 69;
/// KVRAIL_DECLINED: little is left of the write budget, and the block was not put before.
pub const KVRAIL_NOTE_FIRST_SIGHT: u32 = 70;
/// KVRAIL_DECLINED: nothing is left of the write budget.
pub const KVRAIL_NOTE_BUDGET: u32 = 71;
/// KVRAIL_DECLINED: the drive refuses writes; blocks are taken again when the drive takes writes.
pub const KVRAIL_NOTE_REFUSED: u32 = 72;
/// KVRAIL_DECLINED of a put with KVRAIL_BEGINS: what is there is used too often to make room for a
/// new chain. Chains that keep coming are taken.
pub const KVRAIL_NOTE_COLDER: u32 = 73;

/// Reasons of a decline stand behind this number. Those that are newer than the header, too.
const DECLINED: u32 = 64;

/// A note's number.
#[inline]
pub(crate) fn number(note: BlockNote) -> u32 {
    match note {
        BlockNote::None => KVRAIL_NOTE_NONE,
        BlockNote::Present => KVRAIL_NOTE_PRESENT,
        BlockNote::Pending => KVRAIL_NOTE_PENDING,
        BlockNote::Warming => KVRAIL_NOTE_WARMING,
        BlockNote::Wrong => KVRAIL_NOTE_WRONG,
        BlockNote::Stale => KVRAIL_NOTE_STALE,
        BlockNote::Declined(why) => DECLINED.saturating_add(why.number()),
    }
}

/// The texts with the zero at the end that C requires, by number; the last one is of any other
/// number.
static TEXTS: LazyLock<Vec<(u32, CString)>> = LazyLock::new(|| {
    let declines = Decline::ALL.into_iter().map(BlockNote::Declined);
    let all = BlockNote::ALL.into_iter().chain(declines);
    let c = |text| CString::new(text).expect("no zero in the table");
    let named = all.map(|note| (number(note), c(note.words())));
    named.chain([(u32::MAX, c(Decline::Other(0).words()))]).collect()
});

/// What a completion's note means, in a few words. Never null; lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn kvrail_note_meaning(note: u32) -> *const c_char {
    let known = TEXTS.iter().find(|(known, _)| *known == note);
    known.or(TEXTS.last()).expect("the table is not empty").1.as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use kvrail_client::{BlockNote, Decline};

    use super::{
        KVRAIL_NOTE_BUDGET, KVRAIL_NOTE_BUSY, KVRAIL_NOTE_COLDER, KVRAIL_NOTE_FIRST_SIGHT,
        KVRAIL_NOTE_GIVEN_UP, KVRAIL_NOTE_INDEX_FULL, KVRAIL_NOTE_READ_ONLY, KVRAIL_NOTE_REFUSED,
        KVRAIL_NOTE_STARTING, TEXTS, kvrail_note_meaning, number,
    };

    #[test]
    fn every_note_has_a_number_of_its_own_and_words() {
        let mut numbers: Vec<u32> = TEXTS.iter().map(|(number, _)| *number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), TEXTS.len());
        assert!(numbers.is_sorted());
        for (note, text) in &*TEXTS {
            // SAFETY: the table's texts end in zero and live for ever.
            assert_eq!(unsafe { CStr::from_ptr(kvrail_note_meaning(*note)) }, &**text);
        }
        // SAFETY: as above.
        let unknown = unsafe { CStr::from_ptr(kvrail_note_meaning(4711)) };
        assert!(unknown.to_str().unwrap().contains("does not know"));
    }

    #[test]
    fn declines_have_the_numbers_of_the_lane() {
        let numbers = Decline::ALL.map(|why| number(BlockNote::Declined(why)));
        let names = [
            KVRAIL_NOTE_BUSY,
            KVRAIL_NOTE_INDEX_FULL,
            KVRAIL_NOTE_STARTING,
            KVRAIL_NOTE_READ_ONLY,
            KVRAIL_NOTE_GIVEN_UP,
            KVRAIL_NOTE_FIRST_SIGHT,
            KVRAIL_NOTE_BUDGET,
            KVRAIL_NOTE_REFUSED,
            KVRAIL_NOTE_COLDER,
        ];
        assert_eq!(numbers, names, "a new reason has a name in C, too");
    }
}
