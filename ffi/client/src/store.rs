//! Stores and namespaces, as requests name them.

use std::fmt;
use std::sync::Arc;

use kvrail_protocol::{ControlReply, ControlRequest, NamespaceInfo, StoreInfo, VolumeContent};
use kvrail_ring::Status;
use kvrail_store::Members;

use crate::error::ClientError;
use crate::identity::Identity;
use crate::key::BlockKey;
use crate::opened::{OpenedNamespace, SharedOpened};
use crate::session::Session;
use crate::tables::PresenceTables;
use crate::tag::ClientTag;
use crate::tier::MemoryTiers;
use crate::volume::Volume;

/// A store of the sidecar. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    session: Arc<Session>,
    volume: Volume,
    info: StoreInfo,
    members: Members,
    shown: Arc<PresenceTables>,
    tiers: MemoryTiers,
}

/// A set of programs that share blocks: a name, and an identity that is the same for all. Cheap to
/// clone.
#[derive(Clone)]
pub struct Namespace(Arc<SharedNamespace>);

struct SharedNamespace {
    store: Store,
    name: String,
    identity: Identity,
    opened: SharedOpened,
}

/// Whether a namespace may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// It is made.
    Create,
    /// That is an error.
    Fail,
}

impl Store {
    pub(crate) fn new(session: &Arc<Session>, volume: Volume) -> Result<Self, ClientError> {
        match volume.info.content {
            VolumeContent::Store(info) => {
                let (session, shown) = (Arc::clone(session), Arc::default());
                let without_gaps = Members::first(volume.geometry.members);
                let members = info.members.map_or(without_gaps, Members::of_bits);
                let tiers = MemoryTiers::default();
                Ok(Self { session, volume, info, members, shown, tiers })
            }
            VolumeContent::Raw => Err(ClientError::NoStore { name: volume.name().to_owned() }),
        }
    }

    /// The volume it is.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Most bytes of a block.
    #[must_use]
    pub fn block_bytes_max(&self) -> u32 {
        self.info.block_bytes_max
    }

    /// Opens a namespace, and makes it if it is not there.
    ///
    /// # Errors
    /// `Denied` names the field of the identity that differs, or the limit.
    pub fn namespace(&self, name: &str, identity: &Identity) -> Result<Namespace, ClientError> {
        self.open(name, identity, Absent::Create)
    }

    /// Opens a namespace.
    ///
    /// # Errors
    /// As `namespace`; `Denied` with MISS when it is not there and is not to be made.
    pub fn open(
        &self,
        name: &str,
        identity: &Identity,
        absent: Absent,
    ) -> Result<Namespace, ClientError> {
        let opened = self.ask_to_open(name, identity, absent)?;
        self.tiers.fetch(&self.session, self.volume.id().0, self.members);
        if self.reads_from_memory() {
            self.fetch_presence();
        }
        Ok(Namespace(Arc::new(SharedNamespace {
            store: self.clone(),
            name: name.to_owned(),
            identity: identity.clone(),
            opened,
        })))
    }

    /// The numbers of its members.
    pub(crate) fn members(&self) -> Members {
        self.members
    }

    /// Its presence tables.
    pub(crate) fn shown(&self) -> &PresenceTables {
        &self.shown
    }

    /// Its memory tiers.
    pub(crate) fn tiers(&self) -> &MemoryTiers {
        &self.tiers
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn shared_session(&self) -> &Arc<Session> {
        &self.session
    }

    fn ask_to_open(
        &self,
        name: &str,
        identity: &Identity,
        absent: Absent,
    ) -> Result<SharedOpened, ClientError> {
        let ask = ControlRequest::OpenNamespace {
            volume: self.volume.id().0,
            name: name.to_owned(),
            identity: identity.as_str().to_owned(),
            create: absent == Absent::Create,
        };
        match self.session.control().call("opening a namespace", ask, &[])?.message {
            ControlReply::Namespace { handle, uid, .. } => {
                Ok(self.session.opened().note(OpenedNamespace { handle, uid }))
            }
            other => Err(ClientError::protocol(format!("answer to a namespace: {other:?}"))),
        }
    }

    /// All namespaces, with what they hold.
    ///
    /// # Errors
    /// `SidecarGone`, `Timeout`.
    pub fn namespaces(&self) -> Result<Vec<NamespaceInfo>, ClientError> {
        let ask = ControlRequest::ListNamespaces { volume: self.volume.id().0 };
        match self.session.control().call("listing namespaces", ask, &[])?.message {
            ControlReply::Namespaces(all) => Ok(all),
            other => Err(ClientError::protocol(format!("answer to namespaces: {other:?}"))),
        }
    }

    /// Makes all blocks of a namespace unreachable, for everybody. Returns its next uid.
    ///
    /// # Errors
    /// `Denied` when there is none of that name.
    pub fn clear(&self, name: &str) -> Result<u64, ClientError> {
        let ask =
            ControlRequest::ClearNamespace { volume: self.volume.id().0, name: name.to_owned() };
        match self.session.control().call("clearing a namespace", ask, &[])?.message {
            ControlReply::Namespace { uid, .. } => Ok(uid),
            other => Err(ClientError::protocol(format!("answer to a clear: {other:?}"))),
        }
    }

    /// Forgets a namespace and its blocks.
    ///
    /// # Errors
    /// `Denied` when there is none of that name.
    pub fn remove(&self, name: &str) -> Result<(), ClientError> {
        let ask =
            ControlRequest::RemoveNamespace { volume: self.volume.id().0, name: name.to_owned() };
        match self.session.control().call("removing a namespace", ask, &[])?.message {
            ControlReply::NamespaceRemoved => Ok(()),
            other => Err(ClientError::protocol(format!("answer to a removal: {other:?}"))),
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store {:?}", self.volume.name())
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {:?} of {:?}", self.0.name, self.0.store)
    }
}

impl Namespace {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its number: never that of another namespace of its store, and another one once it was
    /// cleared. Events name it.
    #[must_use]
    pub fn uid(&self) -> u64 {
        self.opened().uid
    }

    /// Its identity.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// The store it is of.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// Opens it again after another client cleared it: requests end MISS or DECLINED until then.
    /// This holds for all handles of this session.
    ///
    /// # Errors
    /// As [`Store::namespace`].
    pub fn refresh(&self) -> Result<(), ClientError> {
        let SharedNamespace { store, name, identity, .. } = &*self.0;
        store.ask_to_open(name, identity, Absent::Create).map(drop)
    }

    /// Makes all its blocks unreachable, for all clients, and opens it again.
    ///
    /// # Errors
    /// As [`Store::clear`].
    pub fn clear(&self) -> Result<(), ClientError> {
        self.0.store.clear(&self.0.name)?;
        self.refresh()
    }

    /// What it holds, on all members.
    ///
    /// # Errors
    /// `SidecarGone`, `Timeout`; `Denied` with STALE when it was removed.
    pub fn usage(&self) -> Result<NamespaceInfo, ClientError> {
        let all = self.0.store.namespaces()?;
        let own = all.into_iter().find(|space| space.name == self.0.name);
        own.ok_or_else(|| ClientError::Denied {
            what: "asking for a namespace's usage",
            status: Status::Stale,
            message: format!("namespace {:?} was removed; refresh it to make it anew", self.0.name),
        })
    }

    /// A namespace without a sidecar.
    #[cfg(test)]
    pub(crate) fn assumed(store: Store, opened: OpenedNamespace) -> Self {
        let identity = Identity::new([("model", "test")]).expect("it has a field");
        let name = "assumed".into();
        Self(Arc::new(SharedNamespace { store, name, identity, opened: SharedOpened::new(opened) }))
    }

    pub(crate) fn opened(&self) -> OpenedNamespace {
        self.0.opened.get()
    }

    pub(crate) fn client(&self) -> ClientTag {
        self.0.store.volume.tag
    }

    /// The member of a key, and its lane.
    pub(crate) fn shard(&self, uid: u64, key: BlockKey) -> (u16, u16) {
        let pollers = &self.0.store.volume.info.pollers;
        let member = self.0.store.members.place_of(uid, key.lo());
        (member, pollers[usize::from(member)])
    }

    /// The lane of a key's member.
    pub(crate) fn lane_of(&self, uid: u64, key: BlockKey) -> u16 {
        self.shard(uid, key).1
    }

    /// The unit of its members' transfers.
    pub(crate) fn logical_block(&self) -> u32 {
        self.0.store.volume.geometry.logical_block
    }

    /// The unit of places in memory.
    pub(crate) fn memory_alignment(&self) -> u32 {
        self.0.store.volume.geometry.memory_alignment
    }
}
