//! Stores as clients see them.

use kvrail_counters::{MemberCounters, PoolCounters};
use serde::{Deserialize, Serialize};

/// The content of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeContent {
    /// Requests name places in it.
    Raw,
    /// Requests name keys; each member is a shard.
    Store(StoreInfo),
}

/// Facts of a store for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreInfo {
    /// Most bytes of a block.
    pub block_bytes_max: u32,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The members' numbers, a bit for each, where they are not those from 0 on without a gap:
    /// which member has a key follows from them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<u64>,
}

impl StoreInfo {
    /// The first minor of the protocol whose clients know which member has a key. Earlier ones
    /// would look in the wrong place.
    #[must_use]
    pub const fn minor(&self) -> u16 {
        if self.members.is_some() { 1 } else { 0 }
    }
}

/// A namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceInfo {
    /// Its name.
    pub name: String,
    /// Its identity document.
    pub identity: String,
    /// The uid in the checks of its blocks.
    pub uid: u64,
    /// Blocks of it, on all members.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Gets that found their block on a drive, since the start of the sidecar or the last clear.
    /// These and the next ones are missing where the sidecar is of an earlier release.
    #[serde(default)]
    pub hits: Option<u64>,
    /// Gets that memory tiers have served since then, as clients have counted them.
    #[serde(default)]
    pub memory_hits: Option<u64>,
    /// Gets since then that reached the store and found no block.
    #[serde(default)]
    pub misses: Option<u64>,
    /// What it has in memory tiers.
    #[serde(default)]
    pub memory: Option<NamespaceMemory>,
}

/// What a namespace has in the memory tiers of its store. What it had before it was cleared is not
/// in these numbers, and leaves memory within seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceMemory {
    /// Its blocks there.
    pub blocks: u64,
    /// Bytes that they take, in whole pages.
    pub bytes: u64,
    /// How long they have been there, in the mean; nothing without a block.
    pub mean_age_s: Option<u64>,
    /// Those of them that are not on a drive.
    pub late_blocks: u64,
    /// Bytes of late blocks that left memory and were never written, in whole pages.
    pub never_written_bytes: u64,
}

/// How one member of a store is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardReport {
    /// Name of the store.
    pub store: String,
    /// Its device.
    pub device: u16,
    /// `starting`, `warming`, `serving`, or why it does not start.
    pub state: String,
    /// Bytes that blocks can take.
    pub capacity_bytes: u64,
    /// Bytes of RAM of its tables and its pool.
    pub memory_bytes: u64,
    /// Blocks the index is made for.
    pub blocks_max: u64,
    /// Blocks there are.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Holds in force.
    pub holds: u32,
    /// Namespaces that there are.
    #[serde(default)]
    pub namespaces: u64,
    /// Namespaces that there may be; 0 where the sidecar does not send it.
    #[serde(default)]
    pub namespaces_max: u64,
    /// Seconds since 1970 when the oldest content was written.
    pub oldest_unix_s: Option<u32>,
    /// Counters since the start; what the sidecar does not send is missing.
    pub counters: MemberCounters<Option<u64>>,
    /// Its pools.
    #[serde(default)]
    pub pools: Vec<PoolReport>,
}

impl ShardReport {
    /// Whether its blocks can be requested.
    #[must_use]
    pub fn serves(&self) -> bool {
        ["warming", "serving"].contains(&self.state.as_str()) || self.refuses_writes()
    }

    /// Whether it was taken out of the store for good.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.state == "retired"
    }

    /// Whether its index is full and less than half of its medium is: blocks are much shorter than
    /// it was made for.
    #[must_use]
    pub fn is_index_full(&self) -> bool {
        self.blocks_max > 0
            && self.blocks >= self.blocks_max
            && self.bytes < self.capacity_bytes / 2
    }

    /// Whether its drive refuses writes: what is there is served, and nothing is taken.
    #[must_use]
    pub fn refuses_writes(&self) -> bool {
        self.state == "refuses writes"
    }
}

/// How a pool of one member is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// Its name.
    pub name: String,
    /// Whether the configuration has it.
    pub configured: bool,
    /// Bytes that are kept for it.
    pub minimum_bytes: u64,
    /// Bytes that it has at most.
    pub maximum_bytes: u64,
    /// Bytes of its segments.
    pub segment_bytes: u64,
    /// Blocks in it.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Counters since the start; what the sidecar does not send is missing.
    pub counters: PoolCounters<Option<u64>>,
}
