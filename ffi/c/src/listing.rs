//! Blocks of a namespace, and blocks that a store has lost.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `sized` only, on the header's terms.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use kvrail_client::{Event as Gone, EventKind, ListedBlock};

use crate::boundary::{self, call, shared, take};
use crate::client::Session;
use crate::key::Key;
use crate::namespace::{self as namespaces, Namespace};
use crate::sized::{Array, SizedStruct};
use crate::store::{self as stores, Store};

/// Bytes of metadata that a block can have.
pub const KVRAIL_METADATA_BYTES: usize = 1024;

/// Its segment was reclaimed.
pub const KVRAIL_EVICTED: u32 = 0;
/// It was dropped. Its metadata is not known.
pub const KVRAIL_DROPPED: u32 = 1;
/// Its namespace was cleared or removed: one event for all its blocks, with key 0.
pub const KVRAIL_CLEARED: u32 = 2;

/// A walk over the blocks of a namespace.
#[derive(Debug)]
pub struct Listing {
    session: Arc<Session>,
    walk: Mutex<Walk>,
}

#[derive(Debug)]
struct Walk {
    listing: kvrail_client::Listing,
    /// Listed, and not yet handed out.
    ready: VecDeque<ListedBlock>,
    unreadable: u64,
}

/// The feed of blocks that are gone from a store.
#[derive(Debug)]
pub struct Events {
    session: Arc<Session>,
    feed: Mutex<Feed>,
}

#[derive(Debug)]
struct Feed {
    events: kvrail_client::Events,
    /// Fetched, and not yet handed out.
    ready: VecDeque<Gone>,
    lost: u64,
}

/// A block that was there when it was listed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BlockInfo {
    /// sizeof this structure.
    pub size: u32,
    /// Its bytes.
    pub length: u32,
    /// The key.
    pub key: Key,
    /// Its depth in its chain; 0 is the head of a prompt.
    pub depth: u32,
    /// Seconds since 1970 when it was put.
    pub put_unix_s: u32,
    /// Bytes of `metadata`.
    pub metadata_bytes: u32,
    /// Must be ignored.
    pub reserved: u32,
    /// Metadata of its put.
    pub metadata: [u8; KVRAIL_METADATA_BYTES],
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for BlockInfo {
    const NAME: &'static str = "kvrail_block_info";
    const LEAST: usize = 24;
}

/// A block that is not there any more.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    /// sizeof this structure.
    pub size: u32,
    /// KVRAIL_EVICTED, ...
    pub kind: u32,
    /// The key.
    pub key: Key,
    /// The namespace, as kvrail_namespace_info has it.
    pub uid: u64,
    /// Its bytes.
    pub length: u32,
    /// Bytes of `metadata`.
    pub metadata_bytes: u32,
    /// Metadata of its put.
    pub metadata: [u8; KVRAIL_METADATA_BYTES],
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for Event {
    const NAME: &'static str = "kvrail_event";
    const LEAST: usize = 32;
}

pub(crate) fn number_of(kind: EventKind) -> u32 {
    match kind {
        EventKind::Evicted => KVRAIL_EVICTED,
        EventKind::Dropped => KVRAIL_DROPPED,
        EventKind::Cleared => KVRAIL_CLEARED,
    }
}

/// Metadata in the room for the longest, and its length.
fn padded(metadata: &[u8]) -> ([u8; KVRAIL_METADATA_BYTES], u32) {
    let mut room = [0; KVRAIL_METADATA_BYTES];
    let bytes = metadata.len().min(KVRAIL_METADATA_BYTES);
    room[..bytes].copy_from_slice(&metadata[..bytes]);
    (room, u32::try_from(bytes).expect("1 KiB at most"))
}

impl From<&ListedBlock> for BlockInfo {
    fn from(block: &ListedBlock) -> Self {
        let (metadata, metadata_bytes) = padded(&block.metadata);
        Self {
            size: 0,
            length: block.length,
            key: block.key.into(),
            depth: block.depth.into(),
            put_unix_s: block.put_unix_s,
            metadata_bytes,
            reserved: 0,
            metadata,
        }
    }
}

impl From<&Gone> for Event {
    fn from(gone: &Gone) -> Self {
        let (metadata, metadata_bytes) = padded(&gone.metadata);
        let kind = number_of(gone.kind);
        let (key, uid, length) = (gone.key.into(), gone.uid, gone.length);
        Self { size: 0, kind, key, uid, length, metadata_bytes, metadata }
    }
}

/// Hands out what is ready, as far as the array goes; returns how many.
fn hand_out<T, C: SizedStruct + for<'a> From<&'a T>>(
    ready: &mut VecDeque<T>,
    to: Array<C>,
) -> usize {
    let count = ready.len().min(to.count());
    for (at, item) in ready.drain(..count).enumerate() {
        to.put(at, &C::from(&item));
    }
    count
}

/// Begins a walk over the blocks of a namespace. A whole walk has every block that was there when
/// it began and when it ended; one that the store moved meanwhile may come twice.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_namespace_list(
    space: *const Namespace,
    listing: *mut *mut Listing,
) -> i32 {
    call(|| {
        // SAFETY: the caller's variable; null on failure.
        unsafe { boundary::store(listing, std::ptr::null_mut(), "listing") }?;
        // SAFETY: the caller's handle.
        let (session, space) = unsafe { namespaces::handle(space) }?;
        let walk = Walk { listing: space.list(), ready: VecDeque::new(), unreadable: 0 };
        let made = Listing { session: Arc::clone(session), walk: Mutex::new(walk) };
        // SAFETY: as above.
        unsafe { boundary::store(listing, Box::into_raw(Box::new(made)), "listing") }
    })
}

/// The next blocks of a walk, up to `capacity`; `count` is 0 behind the last one. `unreadable`, if
/// it is not NULL, becomes the number of pages so far that could not be read, whose blocks are
/// missing here. KVRAIL_STALE: the namespace was cleared meanwhile; asking again goes on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_listing_next(
    listing: *const Listing,
    blocks: *mut BlockInfo,
    capacity: usize,
    count: *mut usize,
    unreadable: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's variable.
        unsafe { boundary::store(count, 0, "count") }?;
        // SAFETY: the caller's handle.
        let Listing { session, walk } = unsafe { shared(listing, "listing") }?;
        session.birth.check()?;
        // SAFETY: the caller's array.
        let blocks = unsafe { Array::new(blocks, capacity) }?;
        let mut walk = walk.lock().unwrap_or_else(PoisonError::into_inner);
        while walk.ready.is_empty()
            && let Some(page) = walk.listing.next_page()?
        {
            walk.unreadable += u64::from(page.unreadable);
            walk.ready.extend(page.blocks);
        }
        let handed = hand_out(&mut walk.ready, blocks);
        if !unreadable.is_null() {
            // SAFETY: the caller's variable.
            unsafe { boundary::store(unreadable, walk.unreadable, "unreadable") }?;
        }
        // SAFETY: as above.
        unsafe { boundary::store(count, handed, "count") }
    })
}

/// Ends a walk and sets the variable to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_listing_close(listing: *mut *mut Listing) -> i32 {
    call(|| {
        // SAFETY: the caller's variable with a handle that is not used any more.
        drop(unsafe { take(listing, "listing") }?);
        Ok(())
    })
}

/// The feed of blocks that are gone from a store from now on: evicted, dropped, cleared, of all
/// namespaces. Each feed has its own place; none takes events from another.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_store_events(store: *const Store, events: *mut *mut Events) -> i32 {
    call(|| {
        // SAFETY: the caller's variable; null on failure.
        unsafe { boundary::store(events, std::ptr::null_mut(), "events") }?;
        // SAFETY: the caller's handle.
        let (session, store) = unsafe { stores::opened(store) }?;
        let feed = Feed { events: store.events()?, ready: VecDeque::new(), lost: 0 };
        let made = Events { session: Arc::clone(session), feed: Mutex::new(feed) };
        // SAFETY: as above.
        unsafe { boundary::store(events, Box::into_raw(Box::new(made)), "events") }
    })
}

/// Blocks that are gone since the last call, without waiting, up to `capacity`; `count` is 0 when
/// there is none now. `lost` becomes the number of events since the last call that were
/// overwritten: above 0, list again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_events_poll(
    events: *const Events,
    gone: *mut Event,
    capacity: usize,
    count: *mut usize,
    lost: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's variable.
        unsafe { boundary::store(count, 0, "count") }?;
        // SAFETY: the caller's variable.
        unsafe { boundary::store(lost, 0, "lost") }?;
        // SAFETY: the caller's handle.
        let Events { session, feed } = unsafe { shared(events, "events") }?;
        session.birth.check()?;
        // SAFETY: the caller's array.
        let gone = unsafe { Array::new(gone, capacity) }?;
        let mut feed = feed.lock().unwrap_or_else(PoisonError::into_inner);
        if feed.ready.is_empty() {
            let batch = feed.events.poll()?;
            feed.lost += batch.lost;
            feed.ready.extend(batch.events);
        }
        let handed = hand_out(&mut feed.ready, gone);
        // SAFETY: as above.
        unsafe { boundary::store(lost, std::mem::take(&mut feed.lost), "lost") }?;
        // SAFETY: as above.
        unsafe { boundary::store(count, handed, "count") }
    })
}

/// Ends a feed and sets the variable to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_events_close(events: *mut *mut Events) -> i32 {
    call(|| {
        // SAFETY: the caller's variable with a handle that is not used any more.
        drop(unsafe { take(events, "events") }?);
        Ok(())
    })
}
