//! Handles: what sessions name namespaces by.

use kvrail_store::SpaceId;

use crate::limits::{HANDLES_MAX, SESSIONS_MAX, SessionSlot};
use crate::store_call::Permit;

/// What a handle means to one shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) space: SpaceId,
    pub(crate) uid: u64,
    /// Which life of the store `space` is of.
    pub(crate) life: u32,
    pub(crate) permit: Permit,
}

/// All handles of one shard's sessions.
#[derive(Debug)]
pub(crate) struct Grants(Box<[Option<Grant>]>);

impl Grants {
    pub(crate) fn new() -> Self {
        Self(vec![None; SESSIONS_MAX * HANDLES_MAX].into_boxed_slice())
    }

    /// The place of a handle; nothing where none can be.
    #[inline(always)]
    pub(crate) fn at(&mut self, session: SessionSlot, handle: u16) -> Option<&mut Option<Grant>> {
        let handle = usize::from(handle);
        let first = usize::from(session.0) * HANDLES_MAX;
        if handle < HANDLES_MAX { self.0.get_mut(first + handle) } else { None }
    }

    /// A session is gone.
    pub(crate) fn forget(&mut self, session: SessionSlot) {
        let first = usize::from(session.0) * HANDLES_MAX;
        self.0[first..first + HANDLES_MAX].fill(None);
    }
}
