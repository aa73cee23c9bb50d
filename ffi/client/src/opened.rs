//! What this session calls the namespaces that it opened.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// What requests name a namespace by, until it is cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpenedNamespace {
    pub(crate) handle: u16,
    pub(crate) uid: u64,
}

/// One namespace's, for all who opened it in this session: the sidecar has one handle for them,
/// and it means what the last opening found.
#[derive(Clone, Debug)]
pub(crate) struct SharedOpened(Arc<RwLock<OpenedNamespace>>);

impl SharedOpened {
    pub(crate) fn new(opened: OpenedNamespace) -> Self {
        Self(Arc::new(RwLock::new(opened)))
    }

    pub(crate) fn get(&self) -> OpenedNamespace {
        *self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uids grow: an older answer that comes later says nothing.
    fn update(&self, anew: OpenedNamespace) {
        let mut opened = self.0.write().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(anew.handle, opened.handle, "a namespace keeps its handle");
        if anew.uid > opened.uid {
            *opened = anew;
        }
    }
}

/// All namespaces of a session, by handle.
#[derive(Debug, Default)]
pub(crate) struct OpenedTable(Mutex<BTreeMap<u16, SharedOpened>>);

impl OpenedTable {
    /// Takes note of an opening.
    pub(crate) fn note(&self, opened: OpenedNamespace) -> SharedOpened {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = all.entry(opened.handle).or_insert_with(|| SharedOpened::new(opened));
        shared.update(opened);
        shared.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::{OpenedNamespace, OpenedTable};

    #[test]
    fn all_who_opened_a_namespace_see_its_newest_uid() {
        let table = OpenedTable::default();
        let opened = |handle, uid| OpenedNamespace { handle, uid };
        let (one, other) = (table.note(opened(1, 10)), table.note(opened(2, 11)));
        let again = table.note(opened(1, 30));
        assert_eq!((one.get(), again.get(), other.get().uid), (opened(1, 30), opened(1, 30), 11));
        table.note(opened(1, 20)); // an answer that was overtaken
        assert_eq!(one.get().uid, 30);
    }
}
