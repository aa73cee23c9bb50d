//! The keyed block store of one member: a state machine that does nothing by itself.
//!
//! Owns the index, the ring of segments, records with their metadata, reclaim, holds, namespaces
//! and recovery. The store issues tasks (read, write, flush, discard) and gets their results and
//! the time from its caller. It makes no system call, reads no clock, takes no lock, writes no log
//! line, and allocates nothing after `Store::new`. It never sees a byte of a block.
//!
//! `docs/store-format.md` has the format on the medium, `docs/decisions/store.md` the reasons.
#![forbid(unsafe_code)]

mod admission;
mod block;
mod carriers;
mod config;
mod core;
mod dropping;
mod drops;
mod durables;
mod entry;
mod explain;
mod fates;
mod feed;
mod fifo;
mod flush;
mod format;
mod hint;
mod holds;
mod index;
mod kept;
mod key;
mod ledger;
mod lines;
mod list;
mod log;
mod map;
mod members;
mod memory_tier;
mod moves;
mod payers;
mod placed;
mod pools;
mod prepare;
mod quota;
mod reads;
mod reclaim;
mod recover;
mod refusal;
mod request;
mod retained;
mod segments;
mod shared;
mod sizing;
mod slab;
mod spaces;
mod standing;
mod start;
mod stats;
mod store;
mod sweep;
mod task;
mod victims;
mod witness;
mod worth;
mod writes;

pub use config::{
    BLOCK_BYTES_MAX, Budget, Discard, HOLD_MS_MAX, SEGMENTS_MAX, SEGMENTS_MIN, SPACES_MAX,
    StoreConfig, StoreConfigError, Times, UNIT_BYTES,
};
pub use core::Now;
pub use explain::{Explained, ExplainedBlock};
pub use feed::{Evicted, Gone};
#[cfg(fuzzing)]
pub use format::fuzzing;
pub use format::{
    DOCUMENT_BYTES_MAX, FORMAT_VERSION, NAME_BYTES_MAX, PAGE_BYTES, POOL_NAME_BYTES_MAX, POOLS_MAX,
    PoolNames, RECORDS_MAX, SUPER_AT, Super, SuperError,
};
pub use hint::{Hint, Priority, WorthClass};
pub use key::{Key, check, fold};
pub use kvrail_units::METADATA_BYTES_MAX;
pub use list::{Cursor, Listed, ListingPage};
pub use map::SegmentRun;
pub use members::{MEMBERS_MAX, Members};
pub use memory_tier::{
    BlockFate, LateWrite, MemoryTier, TierCounts, TierRoom, TierShare, TierView, WAYS as TIER_WAYS,
    WriteShare,
};
pub use pools::{
    DEFAULT_POOL, POOL_SEGMENTS_MIN, PoolLimits, PoolRule, PoolView, is_named_by, pools_max,
};
pub use refusal::RETRY_NS_MAX;
pub use request::{
    Answer, Begun, Chain, DeclineReason, DropKey, Durability, Extent, Fault, FoundKeys, Get, Got,
    PlaceKind, Put, ReadId, Reading, Reply, SpaceId, Status,
};
pub use sizing::Sizing;
pub use spaces::{SpaceGets, SpaceView};
pub use start::{Expect, Start, StartError, StoreIdentity};
pub use stats::{PoolStats, Stats};
pub use store::{Hold, LOOKUP_KEYS_MAX, Phase, Store};
pub use task::{MemberTask, Outcome, Pool, TaskId, TaskMemory, Urgency, Verb};
pub use witness::Witness;
