//! Blocks of a memory tier that a client holds, as bytes.
#![expect(unsafe_code, reason = "lends memory that the sidecar writes")]
// UNSAFETY: the bytes lie in a mapping that the value keeps, and the sidecar does not write them
// while the value holds them.

use std::ops::Deref;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use crate::hold_table::Holds;
use crate::tier::TierFound;
use crate::tier_table::TierReader;

/// The bytes of a block, where they lie: they stay as they are until the value is dropped, as long
/// as the client's session lasts.
#[derive(Debug)]
pub struct HeldBlock {
    bytes: NonNull<u8>,
    length: usize,
    hold: u16,
    holds: Arc<Holds>,
    _mapped: Arc<TierReader>,
}

impl HeldBlock {
    /// Holds a block that was found in this tier. Nothing when it has left the tier, or the client
    /// holds as many as it may.
    #[must_use]
    pub fn new(tier: &Arc<TierReader>, found: &TierFound, holds: &Arc<Holds>) -> Option<Self> {
        let (hold, bytes) = tier.hold(found, holds)?;
        let length = found.block.length as usize;
        let (holds, _mapped) = (Arc::clone(holds), Arc::clone(tier));
        Some(Self { bytes, length, hold, holds, _mapped })
    }
}

impl Deref for HeldBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies in the mapping that `_mapped` keeps, and is not written while
        // `hold` lasts.
        unsafe { slice::from_raw_parts(self.bytes.as_ptr(), self.length) }
    }
}

impl Drop for HeldBlock {
    fn drop(&mut self) {
        self.holds.let_go(self.hold);
    }
}

// SAFETY: the bytes are only read, and stay mapped and unchanged wherever the value is.
unsafe impl Send for HeldBlock {}
// SAFETY: as for Send.
unsafe impl Sync for HeldBlock {}
