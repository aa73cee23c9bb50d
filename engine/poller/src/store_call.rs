//! What the control thread asks a store, and what it is answered: calls that go to the poller and
//! come back, with all the memory that their answers need.

use kvrail_store::{
    Budget, Cursor, DOCUMENT_BYTES_MAX, Key, NAME_BYTES_MAX, PoolLimits, PoolRule, SpaceGets,
    SpaceId, Start, StartError, Status, Store, StoreConfig, TierShare,
};

use crate::limits::{SESSIONS_MAX, SIDECAR, SessionSlot};
use crate::store_page::StoreFound;

/// Owners of a store's requests: all sessions by their slots, and the sidecar itself.
#[expect(clippy::cast_possible_truncation, reason = "64 sessions")]
pub const STORE_OWNERS: u16 = SESSIONS_MAX as u16 + 1;

/// Bytes of a block that the sidecar looks at in one tick when a reader has reported it.
pub(crate) const SUSPECT_BYTES: u32 = 64 << 10;

/// A member that is a shard of a store. Which member it is, `start` says; how many there are and
/// where their area begins, the geometry of the device's route (`members`, missing ones included,
/// and `data_offset`).
#[derive(Clone, Debug)]
pub struct StoreSetup {
    /// Its sizes. `owners` is `STORE_OWNERS`.
    pub config: StoreConfig,
    /// Its pools.
    pub pools: Vec<PoolRule>,
    /// How it begins.
    pub start: Start,
    /// Its pool: `Store::pool_buffers`, the larger ones first, each right behind the one before;
    /// then what `pool_bytes` says beyond. The sidecar's own memory: no other process writes it.
    pub pool: std::sync::Arc<dyn kvrail_memory::Pinned>,
    /// The pool's place in the device's buffer table.
    pub buffer: kvrail_device::BufferIndex,
    /// Its memory tier, if it has one.
    pub tier: Option<TierSetup>,
    /// Memory of its presence table, which is zero; none: clients ask through their lanes.
    pub presence: Option<std::sync::Arc<dyn kvrail_memory::Pinned>>,
}

/// The memory tier of a member.
#[derive(Clone, Debug)]
pub struct TierSetup {
    /// Zero: first the directory, then the bytes. Only the sidecar writes it; clients read it.
    pub memory: std::sync::Arc<dyn kvrail_memory::Pinned>,
    /// Bytes of the directory.
    pub directory_bytes: usize,
    /// The memory's place in the device's buffer table.
    pub buffer: kvrail_device::BufferIndex,
    /// Its number among the tiers of the sidecar.
    pub number: u16,
    /// What clients read in place.
    pub holds: std::sync::Arc<kvrail_ring::HoldTables>,
    /// Puts that are acknowledged from here; none: all are written first.
    pub late: Option<LateSetup>,
}

/// Namespaces whose puts are acknowledged once they lie in the memory tier.
#[derive(Clone, Debug)]
pub struct LateSetup {
    /// Their names, or with `*` at its end all names that begin so.
    pub namespaces: std::sync::Arc<[String]>,
    /// Where the copier of this tier gets its jobs.
    pub queues: std::sync::Arc<crate::copier::CopyQueues>,
}

impl StoreSetup {
    /// Bytes that the pool of a store of these sizes must have.
    #[must_use]
    pub fn pool_bytes(config: &StoreConfig) -> usize {
        let own = usize::from(config.buffers) * config.buffer_bytes as usize;
        own + usize::from(config.images) * IMAGE_BYTES + SUSPECT_BYTES as usize
    }
}

/// Bytes of each of the pool's last `Config::images` buffers.
pub(crate) const IMAGE_BYTES: usize = 8 << 10;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAsk {
    /// All namespaces, into `StoreCall::spaces`.
    Survey,
    /// Make a namespace.
    Create {
        /// Its name.
        name: String,
        /// Its identity document.
        document: Vec<u8>,
        /// Higher than any that the store ever had.
        uid: u64,
    },
    /// Give a namespace another uid.
    Clear {
        /// Which.
        space: SpaceId,
        /// Higher than any that the store ever had.
        uid: u64,
    },
    /// Forget a namespace.
    Remove {
        /// Which.
        space: SpaceId,
    },
    /// The next blocks of a namespace, into `StoreCall::found`. Waits while another listing is at
    /// work, and until all that is gone before is reported (`Mailbox::next_gone`).
    List {
        /// Which.
        space: SpaceId,
        /// Where it goes on.
        from: Cursor,
    },
    /// What is known of a key, into `StoreCall::found`.
    Explain {
        /// The namespace.
        space: SpaceId,
        /// The key.
        key: Key,
    },
    /// Begin anew with `StoreCall::store`, from what is on the medium: the device was gone and is
    /// replaced. What the store had in flight ends as DEVICE_GONE. Handles stay, by their uids.
    Restart(Start),
    /// From now on this may be written. After `Restart` it is what the new store was made with.
    Budget(Budget),
    /// From now on the pools may have this, in the order of `StoreSetup::pools`. After `Restart` it
    /// is what the new store was given.
    Pools(Vec<PoolLimits>),
    /// Requests of this session that name this handle mean this namespace from now on. Ends with
    /// the session. A handle is one store's: those of a session's other stores differ.
    Grant {
        /// Whose.
        session: SessionSlot,
        /// Below `HANDLES_MAX`.
        handle: u16,
        /// Which.
        space: SpaceId,
        /// What the requests may do.
        permit: Permit,
    },
}

/// What requests that name a handle may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// Get and look up.
    Read,
    /// Put and drop, too.
    Write,
}

/// A namespace as the control thread sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceRecord {
    /// What calls name it by.
    pub id: SpaceId,
    /// What its checks are folded with.
    pub uid: u64,
    /// Its name.
    pub name: String,
    /// Its identity document.
    pub document: Vec<u8>,
    /// Blocks of it that are there.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// The number of its pool.
    pub pool: u8,
    /// Its gets that reached the store.
    pub gets: SpaceGets,
    /// What it has in the memory tier.
    pub tier: TierShare,
}

impl SpaceRecord {
    /// One with room for any namespace.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            id: SpaceId::NONE,
            uid: 0,
            name: String::with_capacity(NAME_BYTES_MAX),
            document: Vec::with_capacity(DOCUMENT_BYTES_MAX),
            blocks: 0,
            bytes: 0,
            pool: 0,
            gets: SpaceGets::default(),
            tier: TierShare::default(),
        }
    }
}

/// A call: sent with room for its answer, and sent back with it. Calls to one store are answered
/// in the order in which they were sent, and wait until the store has started.
#[derive(Debug)]
pub struct StoreCall {
    /// The caller's.
    pub number: u64,
    /// What is asked.
    pub ask: StoreAsk,
    /// How it ended; `Ok` and nothing else is success.
    pub status: Status,
    /// Why the store did not start, if it did not; the status is then that it is starting.
    pub start_error: Option<StartError>,
    /// What a survey found.
    pub spaces: Vec<SpaceRecord>,
    /// Room for what it finds, taken from the end; more namespaces than that are left out.
    pub spare: Vec<SpaceRecord>,
    /// What a listing or an explanation found.
    pub found: StoreFound,
    /// Highest uid that the store ever had.
    pub uid_mark: u64,
    /// What `Restart` begins with, of the sizes of the setup; afterwards what was there before.
    pub store: Option<Box<Store>>,
}

impl StoreCall {
    /// A call without room for namespaces.
    #[must_use]
    pub fn new(number: u64, ask: StoreAsk) -> Box<Self> {
        Self::with_room(number, ask, 0)
    }

    /// What this session was to be granted is granted to nobody: the call ends as INVALID. Its slot
    /// is another session's by then.
    pub fn revoke(&mut self, from: SessionSlot) {
        if let StoreAsk::Grant { session, .. } = &mut self.ask
            && *session == from
        {
            *session = SIDECAR;
        }
    }

    /// A call with room for this many namespaces: a survey's, of as many as the store can have.
    #[must_use]
    pub fn with_room(number: u64, ask: StoreAsk, spaces: usize) -> Box<Self> {
        Box::new(Self {
            number,
            found: room_for(&ask),
            ask,
            status: Status::Ok,
            start_error: None,
            spaces: Vec::with_capacity(spaces),
            spare: (0..spaces).map(|_| SpaceRecord::empty()).collect(),
            uid_mark: 0,
            store: None,
        })
    }
}

/// Room for what such a call finds.
fn room_for(ask: &StoreAsk) -> StoreFound {
    match ask {
        StoreAsk::List { .. } => StoreFound::Blocks(Box::default()),
        StoreAsk::Explain { .. } => StoreFound::Key { known: None, memory_age_s: None, now_ns: 0 },
        _ => StoreFound::Nothing,
    }
}
