//! Where requests with a handle go: to the shard of a store, or to the members of one by the key.

use kvrail_store::Members;

use crate::limits::{HANDLES_MAX, SESSIONS_MAX, SessionSlot};

/// The members of one store that are this poller's.
#[derive(Debug)]
pub(crate) struct LocalMembers {
    /// All its members, those of other pollers included.
    members: Members,
    /// Shard of each member that is here.
    local: Vec<(u16, u8)>,
}

impl LocalMembers {
    /// # Panics
    /// If no member is here.
    pub(crate) fn new(members: Members, local: Vec<(u16, u8)>) -> Self {
        assert!(!local.is_empty(), "a group has a member of this poller's");
        Self { members, local }
    }

    /// Its members that are here.
    pub(crate) fn members_here(&self) -> u64 {
        self.local.len() as u64
    }

    /// The first of its shards that are here.
    pub(crate) fn first(&self) -> usize {
        usize::from(self.local[0].1)
    }

    /// The shard that has a key, if it is here.
    pub(crate) fn shard_of(&self, uid: u64, lo: u64) -> Option<usize> {
        let owner = self.members.owner(uid, lo);
        let here = self.local.iter().find(|(member, _)| *member == owner);
        here.map(|(_, shard)| usize::from(*shard))
    }

    fn has(&self, shard: usize) -> bool {
        self.local.iter().any(|(_, local)| usize::from(*local) == shard)
    }
}

/// Where requests with one handle go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Nowhere: nothing was granted.
    Nowhere,
    /// To the only shard of a store.
    Shard(u8),
    /// To one shard of a group, by the key.
    Group(u8),
}

/// The destinations of all handles of all sessions.
#[derive(Debug)]
pub(crate) struct HandleTable {
    destinations: Box<[Destination]>,
    groups: Vec<LocalMembers>,
}

impl HandleTable {
    /// Empty where there is no group.
    pub(crate) fn new(groups: Vec<LocalMembers>) -> Self {
        let handles = if groups.is_empty() { 0 } else { SESSIONS_MAX * HANDLES_MAX };
        Self { destinations: vec![Destination::Nowhere; handles].into_boxed_slice(), groups }
    }

    /// Index of a handle's destination; `None` for a handle that no session can have.
    #[inline(always)]
    fn index(session: SessionSlot, handle: u16) -> Option<usize> {
        let handle = usize::from(handle);
        (handle < HANDLES_MAX).then(|| usize::from(session.0) * HANDLES_MAX + handle)
    }

    /// Where requests with this handle go.
    #[inline(always)]
    pub(crate) fn destination(&self, session: SessionSlot, handle: u16) -> Destination {
        let Some(index) = Self::index(session, handle) else { return Destination::Nowhere };
        self.destinations.get(index).copied().unwrap_or(Destination::Nowhere)
    }

    /// The group of this number.
    pub(crate) fn group(&self, number: u8) -> &LocalMembers {
        &self.groups[usize::from(number)]
    }

    /// A shard has granted a handle.
    pub(crate) fn grant(&mut self, session: SessionSlot, handle: u16, shard: usize) {
        let Some(index) = Self::index(session, handle) else { return };
        let group = self.groups.iter().position(|group| group.has(shard));
        let group = group.expect("each shard is in a group");
        let number = |at: usize| u8::try_from(at).expect("fewer shards than 255");
        let destination = match self.groups[group].members.count() {
            0 | 1 => Destination::Shard(number(shard)),
            _ => Destination::Group(number(group)),
        };
        self.set(index, destination);
    }

    fn set(&mut self, index: usize, destination: Destination) {
        self.destinations[index] = destination;
    }

    /// Sends requests with a handle somewhere, whatever was granted.
    #[cfg(test)]
    pub(crate) fn set_unchecked(
        &mut self,
        session: SessionSlot,
        handle: u16,
        destination: Destination,
    ) {
        self.set(Self::index(session, handle).expect("a handle that can be"), destination);
    }

    /// A session is gone.
    pub(crate) fn forget(&mut self, session: SessionSlot) {
        let first = usize::from(session.0) * HANDLES_MAX;
        if let Some(handles) = self.destinations.get_mut(first..first + HANDLES_MAX) {
            handles.fill(Destination::Nowhere);
        }
    }
}
