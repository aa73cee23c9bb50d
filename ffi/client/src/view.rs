//! Views: blocks of a memory tier that a program reads where they lie.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use kvrail_ring::HeldBlock;

use crate::session::Session;

/// The bytes of a block, in the sidecar's memory: they stay as they are until the view is dropped,
/// whatever becomes of the block. A view keeps its session. A client has 4 to 255 of them at once,
/// one for each 128 blocks of the smallest tier.
///
/// A session that the sidecar ends while it lives on ends its views too: the memory stays mapped,
/// and may change then. So it is for a forked child once the parent's view is dropped.
pub struct View {
    block: HeldBlock,
    _session: Arc<Session>,
}

impl View {
    pub(crate) fn new(block: HeldBlock, session: &Arc<Session>) -> Self {
        Self { block, _session: Arc::clone(session) }
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "view of {} bytes", self.block.len())
    }
}
