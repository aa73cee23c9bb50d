//! Numbers that distinguish the clients of one process.

use std::sync::atomic::{AtomicU32, Ordering};

/// One client's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientTag(u32);

static NEXT: AtomicU32 = AtomicU32::new(0);

impl ClientTag {
    /// One that no other client of this process has.
    pub(crate) fn new() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed)) // a name only; it orders nothing
    }
}
