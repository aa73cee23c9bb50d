//! The trace of `kvrail trace`: slow requests, and where their time went.

use serde::{Deserialize, Serialize};

use crate::block::key_text;

/// Events since the last read, oldest first for each poller.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracePage {
    /// The slow requests and turns.
    pub events: Vec<TraceInfo>,
    /// Events that were dropped since the trace or the slow log began: there was no room for them.
    pub lost: u64,
    /// What took this long is an event, in nanoseconds.
    #[serde(default)]
    pub slow_ns: u64,
}

/// The kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TraceKind {
    /// Reads and writes of a raw volume, and gets of blocks that fill logical blocks, that came and
    /// went together.
    Batch,
    /// A put or drop of a store, or a get of another block.
    Keyed,
    /// An operation of a store's own: a move, a page, a discard.
    Store,
    /// A turn of a poller: all its requests waited.
    Turn,
}

/// Something that took long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceInfo {
    /// The kind.
    pub kind: TraceKind,
    /// Which poller.
    pub poller: u16,
    /// When it ended, in milliseconds since 1970.
    pub ended_unix_ms: u64,
    /// The request; `None` for a turn.
    pub work: Option<TraceWork>,
    /// Where the time went.
    pub spent: TraceSpent,
}

/// The request of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceWork {
    /// Name of the device.
    pub device: String,
    /// The session's number; nothing of a store's own.
    pub session: Option<u64>,
    /// How its client calls itself, unless it has gone.
    pub client: Option<String>,
    /// `read`, `put`, ...
    pub operation: String,
    /// `demand`, ...
    pub class: String,
    /// `OK`, ...
    pub status: String,
    /// Requests that came, went and ended together.
    pub requests: u32,
    /// Bytes requested.
    pub bytes: u64,
    /// Of a request to a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<TraceKey>,
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TraceKey(#[serde(with = "key_text")] pub u128);

/// Where the time went, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceSpent {
    /// All of it.
    pub total_ns: u64,
    /// In its lane, at most: since the poller last took from there what it could, or woke.
    pub lane_ns: u64,
    /// Its session had its share in flight: what stood behind it in the lane waited longer.
    pub held: bool,
    /// In its store, before the device: waiting for space and for a slot.
    pub store_ns: u64,
    /// Behind others of its class and session, and for the device's budget.
    pub queue_ns: u64,
    /// At the device, the copies of a GPU included.
    pub device_ns: u64,
    /// From there to its answer: of a durable put the write of its record.
    pub answer_ns: u64,
    /// Until its completion was published; of a turn all of it.
    pub completion_ns: u64,
}
