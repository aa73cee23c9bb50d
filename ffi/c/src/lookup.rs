//! Lookups as C has them.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header says it once for all")]
// UNSAFETY: pointers are followed by `boundary`, `key` and `sized` only, on the header's terms; one
// array of bytes is filled here, up to the caller's length.

use std::time::Duration;

use kvrail_client::{Lookup, LookupExtent, Recency};

use crate::boundary::call;
use crate::code::Failure;
use crate::key::{Key, keys};
use crate::namespace::{Namespace, opened};
use crate::queue::{Queue, hold};
use crate::sized::{SizedStruct, read, write};

/// To the first key that is missing, where a prefix ends, and little further.
pub const KVRAIL_LOOKUP_PREFIX: u32 = 0;
/// All keys.
pub const KVRAIL_LOOKUP_ALL: u32 = 1;

/// What is found ages as before.
pub const KVRAIL_LOOKUP_KEPT: u32 = 0;
/// What is found counts as used, as by a get, and is evicted later. Not together with a hold.
pub const KVRAIL_LOOKUP_RENEWED: u32 = 1;
/// What is found goes first, until it is used again: its session has ended. Not together with a
/// hold, and of writers of the namespace alone: else KVRAIL_E_DENIED. Earlier sidecars only look.
pub const KVRAIL_LOOKUP_ENDED: u32 = 2;
/// What is found is needed soon: it comes into the sidecar's memory tier, in the background, up to
/// 64 blocks of each member at once. Without a tier it counts as used. Not together with a hold.
pub const KVRAIL_LOOKUP_EXPECTED: u32 = 3;

/// Options of a lookup. Members that are 0 or NULL are left out.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LookupRequest {
    /// sizeof this structure.
    pub size: u32,
    /// KVRAIL_LOOKUP_PREFIX or KVRAIL_LOOKUP_ALL.
    pub extent: u32,
    /// The keys, in the order of their chain.
    pub keys: *const Key,
    /// Number of keys.
    pub count: usize,
    /// One byte for each key: becomes 1 where the block is there, else 0.
    pub there: *mut u8,
    /// Time that found blocks are held: they are moved, not evicted. 0 holds none; a minute at
    /// most.
    pub hold_ns: u64,
    /// Longest time for all; 0 is 10 seconds.
    pub timeout_ns: u64,
    /// KVRAIL_LOOKUP_KEPT, ...
    pub recency: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: integers and pointers without padding, the size first; zeroes are a value of it.
unsafe impl SizedStruct for LookupRequest {
    const NAME: &'static str = "kvrail_lookup_request";
    const LEAST: usize = 24;
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Found {
    /// sizeof this structure.
    pub size: u32,
    /// Must be ignored.
    pub reserved: u32,
    /// Keys from the first on that are all there.
    pub prefix: u64,
    /// Keys that were looked up; the state of those behind is unknown.
    pub asked: u64,
    /// Keys that are held now.
    pub held: u64,
    /// Keys that may yet turn up: recovery has not seen everything.
    pub warming: u64,
    /// Nanoseconds that gets of the prefix would take if they began now; 0 where that is not known,
    /// as long as a drive was not measured, and for no key.
    pub load_ns: u64,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for Found {
    const NAME: &'static str = "kvrail_found";
    const LEAST: usize = 16;
}

fn load_ns(found: &kvrail_client::Found) -> u64 {
    let time = found.load_time(found.prefix).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn bad(member: &str, value: u32, use_instead: &str) -> Failure {
    Failure::argument(format!("kvrail_lookup_request.{member} is {value}; use {use_instead}"))
}

fn how(wanted: &LookupRequest) -> Result<Lookup, Failure> {
    let mut how = Lookup { hold: Duration::from_nanos(wanted.hold_ns), ..Lookup::default() };
    how.extent = match wanted.extent {
        KVRAIL_LOOKUP_PREFIX => LookupExtent::Prefix,
        KVRAIL_LOOKUP_ALL => LookupExtent::All,
        other => return Err(bad("extent", other, "KVRAIL_LOOKUP_PREFIX, ...")),
    };
    if wanted.reserved != 0 {
        return Err(bad("reserved", wanted.reserved, "0"));
    }
    how.recency = match wanted.recency {
        KVRAIL_LOOKUP_KEPT => Recency::Kept,
        KVRAIL_LOOKUP_RENEWED => Recency::Renewed,
        KVRAIL_LOOKUP_ENDED => Recency::Ended,
        KVRAIL_LOOKUP_EXPECTED => Recency::Expected,
        other => return Err(bad("recency", other, "KVRAIL_LOOKUP_KEPT, ...")),
    };
    if wanted.timeout_ns > 0 {
        how.timeout = Duration::from_nanos(wanted.timeout_ns);
    }
    Ok(how)
}

/// Looks up blocks of a namespace, and waits for the answer. Other requests of the queue continue
/// meanwhile. KVRAIL_STALE: the namespace was cleared; refresh it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_lookup(
    queue: *mut Queue,
    space: *const Namespace,
    wanted: *const LookupRequest,
    found: *mut Found,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let (_, mut held) = unsafe { hold(queue) }?;
        // SAFETY: the caller's handle.
        let space = unsafe { opened(space) }?;
        // SAFETY: the caller's structure.
        let wanted = unsafe { read(wanted) }?;
        // SAFETY: the caller's array.
        let keys = unsafe { keys(wanted.keys, wanted.count) }?;
        let answer = held.queue.lookup(space, &keys, &how(&wanted)?)?;
        if !wanted.there.is_null() {
            let there = answer.there.iter().copied().chain(std::iter::repeat(false));
            for (at, there) in there.take(keys.len()).enumerate() {
                // SAFETY: the caller's array has a byte for each key.
                unsafe { wanted.there.wrapping_add(at).write(u8::from(there)) };
            }
        }
        let value = Found {
            size: 0,
            reserved: 0,
            prefix: answer.prefix as u64,
            asked: answer.there.len() as u64,
            held: answer.held as u64,
            warming: answer.warming as u64,
            load_ns: load_ns(&answer),
        };
        // SAFETY: the caller's structure.
        unsafe { write(found, &value) }
    })
}

/// Ends this client's holds on these keys.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_release(
    queue: *mut Queue,
    space: *const Namespace,
    first: *const Key,
    count: usize,
    timeout_ns: u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's handle.
        let (_, mut held) = unsafe { hold(queue) }?;
        // SAFETY: the caller's handle.
        let space = unsafe { opened(space) }?;
        // SAFETY: the caller's array.
        let keys = unsafe { keys(first, count) }?;
        Ok(held.queue.release(space, &keys, Duration::from_nanos(timeout_ns))?)
    })
}
