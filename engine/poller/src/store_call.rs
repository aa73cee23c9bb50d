//! What the control thread asks a store, and what it is answered: calls that go to the poller and
//! come back, with all the memory that their answers need.

use kvrail_store::{Config, SpaceId, Start, Status};

use crate::limits::SessionSlot;

/// A member that is a shard of a store.
#[derive(Clone, Debug)]
pub struct StoreSetup {
    /// Its sizes.
    pub config: Config,
    /// How it begins.
    pub start: Start,
    /// Its pool: `Store::pool_buffers`, the larger ones first, each right behind the one before.
    pub pool: std::sync::Arc<dyn kvrail_memory::Pinned>,
    /// The pool's place in the device's buffer table.
    pub buffer: kvrail_device::BufferIndex,
}

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
    /// Requests of this session that name this handle mean this namespace from now on. Ends with
    /// the session.
    Grant {
        /// Whose.
        session: SessionSlot,
        /// Below `HANDLES_MAX`.
        handle: u16,
        /// Which.
        space: SpaceId,
    },
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
}

/// A call: sent with room for its answer, and sent back with it.
#[derive(Clone, Debug)]
pub struct StoreCall {
    /// The caller's.
    pub number: u64,
    /// What is asked.
    pub ask: StoreAsk,
    /// How it ended; `Ok` and nothing else is success.
    pub status: Status,
    /// Room for what a survey finds. The poller fills names and documents in place and does not
    /// allocate: see `StoreCall::with_room`.
    pub spaces: Vec<SpaceRecord>,
    /// Highest uid that the store ever had.
    pub uid_mark: u64,
}
