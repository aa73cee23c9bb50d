//! Limits that every room shares, related to each other at compile time.

use crate::slot::{COMPLETION_BYTES, REQUEST_BYTES};

/// Version of the lane format: slot layouts, segment layout, wake protocol, order of sealing. Both
/// sides must agree.
pub const LANE_VERSION: u32 = 4;

/// Fewest requests a lane can hold.
pub const LANE_DEPTH_MIN: u32 = 2;

/// Most requests a lane can hold: 4,096 x 64 bytes is 256 KiB, an eighth of a 2 MiB L2 cache.
pub const LANE_DEPTH_MAX: u32 = 4096;

/// Completion slots for each request slot. Acceptance reserves a completion slot; the second half
/// is room for completions the client has not read yet and for LATE notices.
pub const COMPLETIONS_PER_REQUEST: u32 = 2;

/// Namespaces one session has open.
pub const HANDLES_MAX: usize = 256;

/// Most pollers of one sidecar, so also most lanes of one queue: their doorbells travel in one
/// message, and the kernel takes 253 descriptors a message (SCM_MAX_FD).
pub const POLLERS_MAX: u32 = 64;

/// Bytes between indices with different writers: two cache lines, because adjacent lines are
/// prefetched in pairs on x86.
pub const LINE_PAIR_BYTES: usize = 128;

/// Bytes one entry of a device's buffer table covers. io_uring takes up to 1 GiB, but pins the
/// pages of an entry within one call on the poller's thread: 27 ms for 1 GiB of base pages
/// (measured on 2 cores), so 1.7 ms for this.
pub const ENTRY_BYTES: u64 = 64 << 20;

/// Bytes one request in a lane may move; the client library splits larger ones. Bounds how long
/// one request keeps its class and its neighbours waiting.
pub const REQUEST_LENGTH_MAX: u32 = 64 << 20;

/// Bytes of a page of a queue's tail arena: it takes the bytes of a block behind the last whole
/// logical block, so less than one logical block.
pub const TAIL_BYTES: u32 = 4096;

const _: () = assert!(LANE_DEPTH_MIN.is_power_of_two() && LANE_DEPTH_MAX.is_power_of_two());
const _: () = assert!(LANE_DEPTH_MIN <= LANE_DEPTH_MAX);
// A request crosses the border of two entries at most once.
const _: () = assert!(REQUEST_LENGTH_MAX as u64 <= ENTRY_BYTES);
// Free-running 32-bit counters are unambiguous while a ring is smaller than half their range.
const _: () = assert!((LANE_DEPTH_MAX as u64) * (COMPLETIONS_PER_REQUEST as u64) < 1 << 31);
const _: () = assert!(REQUEST_BYTES == COMPLETION_BYTES * COMPLETIONS_PER_REQUEST as usize);
