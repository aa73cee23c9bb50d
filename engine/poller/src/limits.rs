//! How much of everything one poller serves.

/// Sessions a sidecar serves at once: one bit each in a poller's rounds.
pub const SESSIONS_MAX: usize = 64;

/// Arenas of all sessions at once. A `RegionId` is an index of this table (low 16 bits) and a
/// generation (high 16 bits).
pub const REGIONS_MAX: usize = 512;

/// Lanes one poller serves, over all sessions.
pub const LANES_MAX: usize = 1024;

/// Devices one poller drives.
pub const DEVICES_MAX: usize = 256;

/// Namespaces one session has open: numbers in requests, and places of its counts.
pub use kvrail_ring::limits::HANDLES_MAX;

/// Calls to stores that one poller may have in flight; the control thread sends no more.
pub const STORE_CALLS_MAX: usize = 64;

/// Requests each session may have in flight whatever the others do.
pub(crate) const SESSION_SHARE: u32 = 128;

/// Slots of the task table that all sessions share.
pub(crate) const COMMON_SHARE: u32 = SESSION_SHARE * u64::BITS;

/// Tasks one poller has in flight at most.
pub(crate) const TASKS_MAX: u32 = 2 * COMMON_SHARE;

/// Who takes turns at a device: sessions, and the sidecar itself.
pub(crate) const TURNS_MAX: usize = SESSIONS_MAX + 1;

/// What the sidecar does for itself, such as a store's own reads and writes.
#[expect(clippy::cast_possible_truncation, reason = "64 sessions")]
pub(crate) const SIDECAR: SessionSlot = SessionSlot(SESSIONS_MAX as u8);

const _: () = assert!(SESSIONS_MAX == u64::BITS as usize);

/// Index of a live session in every poller's tables, below `SESSIONS_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionSlot(pub u8);

/// Whose share of a device's time a session has a part of; below `SESSIONS_MAX`, as there are no
/// more tenants than sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantSlot(pub u8);
