//! State of a key in a store.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use kvrail_client::{KeyBlock, KeyFate, KeyReport, KeyState, KeyWorth};

use crate::boundary::{call, shared};
use crate::key::Key;
use crate::listing::number_of;
use crate::namespace::{Namespace, opened};
use crate::sized::{SizedStruct, write};

/// Its block can be got.
pub const KVRAIL_KEY_THERE: u32 = 0;
/// A put of it is in flight.
pub const KVRAIL_KEY_PUTTING: u32 = 1;
/// It is not there: never put, or gone; `event` has its end, if that is known.
pub const KVRAIL_KEY_ABSENT: u32 = 2;
/// It was dropped, or a put of it was given up, while recovery goes on.
pub const KVRAIL_KEY_DROPPED: u32 = 3;
/// It may yet turn up: recovery has not seen everything.
pub const KVRAIL_KEY_WARMING: u32 = 4;
/// Its segment is not trusted: durable drops are missing in or behind it.
pub const KVRAIL_KEY_DISTRUSTED: u32 = 5;
/// In `event`: the sidecar remembers none.
pub const KVRAIL_NO_EVENT: u32 = u32::MAX;

/// State of a key in a store. Members that do not apply to its state are 0.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct KeyInfo {
    /// sizeof this structure.
    pub size: u32,
    /// KVRAIL_KEY_THERE, ...
    pub state: u32,
    /// Bytes of the block; there and putting.
    pub length: u32,
    /// Bytes of it that are written; putting.
    pub written: u32,
    /// The latest event about it: KVRAIL_EVICTED, ... or KVRAIL_NO_EVENT.
    pub event: u32,
    /// Segment of the ring, as all members below: there.
    pub segment: u32,
    /// Seconds since the event.
    pub event_seconds: u64,
    /// The segment's epoch.
    pub epoch: u64,
    /// The block's first byte on the area of its member.
    pub offset: u64,
    /// Its check.
    pub check: u64,
    /// Milliseconds until its last hold ends; 0 is no hold.
    pub held_ms: u64,
    /// Seconds since 1970 when the segment was made ready: the block is no older than that.
    pub opened_unix_s: u32,
    /// Segments that are reclaimed before it.
    pub segments_ahead: u32,
    /// Place of its member in the store, in every state.
    pub member: u16,
    /// The member's device, in every state.
    pub device: u16,
    /// Its worth: 0 normal, 1 less (demoted), 2 more (retained), 3 nothing (over).
    pub worth: u8,
    /// 0: not known here. A listing has the depth of a block in its chain.
    pub depth: u8,
    /// 1: a reader reported wrong bytes, and the store has not checked them yet.
    pub suspect: u8,
    /// 1: reclaim would move it now; 0: evict it.
    pub moves: u8,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for KeyInfo {
    const NAME: &'static str = "kvrail_key_info";
    const LEAST: usize = 24;
}

fn worth(worth: KeyWorth) -> u8 {
    match worth {
        KeyWorth::Normal => 0,
        KeyWorth::Low => 1,
        KeyWorth::High => 2,
        KeyWorth::Over => 3,
    }
}

impl KeyInfo {
    fn of_block(block: &KeyBlock) -> Self {
        Self {
            state: KVRAIL_KEY_THERE,
            length: block.length,
            segment: block.segment,
            epoch: block.epoch,
            offset: block.offset,
            check: block.check,
            held_ms: block.held_ms.unwrap_or(0),
            opened_unix_s: block.opened_unix_s,
            segments_ahead: block.segments_ahead,
            worth: worth(block.worth),
            suspect: u8::from(block.suspect),
            moves: u8::from(block.next == KeyFate::Moved),
            ..Self::default()
        }
    }
}

impl From<&KeyReport> for KeyInfo {
    fn from(report: &KeyReport) -> Self {
        let of = |state| Self { state, ..Self::default() };
        let known = match &report.state {
            KeyState::There(block) => Self::of_block(block),
            KeyState::Putting { length, written } => {
                Self { length: *length, written: *written, ..of(KVRAIL_KEY_PUTTING) }
            }
            KeyState::Absent => of(KVRAIL_KEY_ABSENT),
            KeyState::Dropped => of(KVRAIL_KEY_DROPPED),
            KeyState::Warming => of(KVRAIL_KEY_WARMING),
            KeyState::Distrusted => of(KVRAIL_KEY_DISTRUSTED),
        };
        let (event, event_seconds) = match &report.event {
            Some((event, seconds)) => (number_of(event.kind), *seconds),
            None => (KVRAIL_NO_EVENT, 0),
        };
        Self { event, event_seconds, member: report.member, device: report.device, ..known }
    }
}

/// State of a key in a store: where its block is and what becomes of it next, or its end, if that
/// is known. A request to the sidecar's control thread: for people, not for each request.
/// KVRAIL_MISS: the namespace was removed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_explain(
    space: *const Namespace,
    key: *const Key,
    info: *mut KeyInfo,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let space = unsafe { opened(space) }?;
        // SAFETY: the caller's key.
        let key = unsafe { shared(key, "key") }?;
        let report = space.explain(key.block_key())?;
        // SAFETY: the caller's structure.
        unsafe { write(info, &KeyInfo::from(&report)) }
    })
}
