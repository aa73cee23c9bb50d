//! Handles: what sessions name namespaces by.

use kvrail_store::SpaceId;

use crate::limits::{HANDLES_MAX, SESSIONS_MAX, SessionSlot};
use crate::store_call::Permit;

/// What a handle means to one shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grant {
    pub(crate) space: SpaceId,
    pub(crate) uid: u64,
    /// Which life of the store `space` is of; 0 where nothing was granted.
    pub(crate) life: u32,
    pub(crate) permit: Permit,
    /// Whether puts are acknowledged from memory.
    pub(crate) is_late: bool,
}

impl Grant {
    /// Nothing.
    const NONE: Self =
        Self { space: SpaceId::NONE, uid: 0, life: 0, permit: Permit::Read, is_late: false };
}

/// All handles of one shard's sessions.
#[derive(Debug)]
pub(crate) struct Grants(Box<[Grant]>);

impl Grants {
    pub(crate) fn new() -> Self {
        Self(vec![Grant::NONE; SESSIONS_MAX * HANDLES_MAX].into_boxed_slice())
    }

    /// The place of a handle; nothing where none can be.
    #[inline(always)]
    pub(crate) fn at(&mut self, session: SessionSlot, handle: u16) -> Option<&mut Grant> {
        let handle = usize::from(handle);
        let first = usize::from(session.0) * HANDLES_MAX;
        if handle < HANDLES_MAX { self.0.get_mut(first + handle) } else { None }
    }

    /// A session is gone.
    pub(crate) fn forget(&mut self, session: SessionSlot) {
        let first = usize::from(session.0) * HANDLES_MAX;
        self.0[first..first + HANDLES_MAX].fill(Grant::NONE);
    }
}
