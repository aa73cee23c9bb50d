//! Lookups without a request, as C has them.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `key` only, or checked there and filled as far
// as the caller says that they go, on the header's terms.

use kvrail_client::Presence;

use crate::boundary::{call, store};
use crate::key::{Key, keys};
use crate::namespace::{Namespace, opened};

/// The block is not there: a get would be a miss.
pub const KVRAIL_ABSENT: u8 = 0;
/// Only kvrail_lookup has the answer: the store still reads its drive, the namespace was cleared,
/// ...
pub const KVRAIL_MAYBE: u8 = 1;
/// The block is there, or was a moment ago: a get may be a miss.
pub const KVRAIL_PRESENT: u8 = 2;

fn number(presence: Presence) -> u8 {
    match presence {
        Presence::Absent => KVRAIL_ABSENT,
        Presence::Maybe => KVRAIL_MAYBE,
        Presence::Present => KVRAIL_PRESENT,
    }
}

/// Whether blocks are there, without a request to the sidecar: some tens of nanoseconds a key,
/// whether it sleeps or not. KVRAIL_ABSENT is never the answer for a block that was acknowledged to
/// any client before, and not dropped, cleared or evicted since. `presence` has a byte for each
/// key, which becomes KVRAIL_ABSENT, KVRAIL_MAYBE or KVRAIL_PRESENT; it may be NULL. So may
/// `prefix`, which becomes the number of keys from the first on that are KVRAIL_PRESENT. From any
/// thread; the first call for a store waits until the sidecar has shared its tables.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_probe(
    space: *const Namespace,
    first: *const Key,
    count: usize,
    presence: *mut u8,
    prefix: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let space = unsafe { opened(space) }?;
        // SAFETY: the caller's array.
        let keys = unsafe { keys(first, count) }?;
        let mut there = 0;
        for (at, probed) in space.probe_many(keys).enumerate() {
            there += usize::from(there == at && probed == Presence::Present);
            if !presence.is_null() {
                // SAFETY: the caller's array has a byte for each key.
                unsafe { store(presence.wrapping_add(at), number(probed), "presence") }?;
            }
        }
        if prefix.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's variable.
        unsafe { store(prefix, there, "prefix") }
    })
}
