//! Requests to a store, as they stand in the slot that requests to volumes have, too.
//!
//! | word | put | get | lookup, release | drop, suspect |
//! | --- | --- | --- | --- | --- |
//! | 0 | user data | same | same | same |
//! | 1 | opcode, flags, class, region | same | in the region's place the hold in ms | region 0 |
//! | 2 | handle 16, chain 16, bytes 32 | handle, 0, capacity | handle, 0, keys | handle, 0, 0 |
//! | 3 | key, lower half | same | lower half of the first key | key, lower half |
//! | 4 | first byte in the region | same | of the second key | 0 |
//! | 5 | check | 0, or with `FLAG_PART` the part's first byte | third | check seen; 0 is any |
//! | 6 | key, upper half | same | fourth | key, upper half |
//! | 7 | tail 32, deadline 32 | same | fifth | 0 |
//!
//! The handle is what opening a namespace returned. The chain is the block's place in its chain:
//! 15 bits of depth, and `CHAIN_BEGINS`, which sidecars of earlier releases take for a great
//! depth. `bytes` are those of this part of the block; the whole block, where that is more, is in
//! the slot's side area. The tail is the page of the queue's tail arena that takes the last bytes,
//! those behind the last whole logical block; for memory of a GPU it is the layout block. The
//! deadline is in microseconds; 0 is none.

use crate::ids::RegionId;
use crate::slot::{LOOKUP_KEYS, Opcode, Request, half, high, low};
use crate::snapshot::RequestSnapshot;

/// Largest depth of a block in its chain that a put can express.
pub const CHAIN_DEPTH_MAX: u16 = CHAIN_BEGINS - 1;

/// Bit of a place in a chain: the store has less than half of that chain.
pub const CHAIN_BEGINS: u16 = 1 << 15;

/// Fields of a put beside its slot: parts of larger blocks, and metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Side<'a> {
    /// Bytes of the whole block.
    pub block_bytes: u32,
    /// First byte of the block that this part has.
    pub at: u32,
    /// How much the block is worth beside others: 0 as they are, 1 less, 2 more.
    pub worth: u8,
    /// Seconds since 1970 from which on it is worth nothing; 0: never.
    pub until: u32,
    /// Stays with the block; at most `METADATA_BYTES_MAX`.
    pub metadata: &'a [u8],
}

/// A put or get, to be written into a slot.
#[derive(Clone, Copy, Debug)]
pub struct KeyedRequest {
    /// The namespace's handle, from the answer to its open.
    pub handle: u16,
    /// Of a put: how deep in its chain the block is, and `CHAIN_BEGINS` or nothing.
    pub chain: u16,
    /// Bytes of this part; of a get the bytes of memory there are.
    pub bytes: u32,
    /// Lower and upper half of the key.
    pub key: [u64; 2],
    /// Where the bytes are.
    pub region: RegionId,
    /// First byte there.
    pub region_offset: u64,
    /// Check of the whole block; of a get the part's first byte.
    pub check: u64,
    /// Page of the tail arena, or the layout block.
    pub tail: u32,
    /// Microseconds after acceptance at which a LATE notice is due; 0 is never.
    pub deadline_us: u32,
}

impl KeyedRequest {
    /// The slot, but for user data, flags and class.
    #[must_use]
    pub fn slot(&self, opcode: Opcode) -> Request {
        Request {
            opcode: opcode as u8,
            region: self.region.0,
            volume: self.handle,
            reserved_a: self.chain,
            length: self.bytes,
            volume_offset: self.key[0],
            region_offset: self.region_offset,
            checksum: self.check,
            deadline_ns: self.key[1],
            layout_block: self.tail,
            reserved_b: self.deadline_us,
            ..Request::default()
        }
    }
}

/// The slot of a lookup or release of 1 to 5 keys, by their lower halves, but for user data and
/// class. `hold_ms` 0 holds nothing.
///
/// # Panics
/// With more keys.
#[must_use]
pub fn keys_slot(opcode: Opcode, handle: u16, hold_ms: u32, lows: &[u64]) -> Request {
    let mut all = [0; LOOKUP_KEYS];
    all[..lows.len()].copy_from_slice(lows);
    let [volume_offset, region_offset, checksum, deadline_ns, last] = all;
    Request {
        opcode: opcode as u8,
        region: hold_ms,
        volume: handle,
        length: u32::try_from(lows.len()).expect("five at most"),
        volume_offset,
        region_offset,
        checksum,
        deadline_ns,
        layout_block: low(last),
        reserved_b: high(last),
        ..Request::default()
    }
}

impl RequestSnapshot {
    /// The handle of the namespace.
    #[must_use]
    #[inline(always)]
    pub fn handle(&self) -> u16 {
        half(self.0[2], 0)
    }

    /// The block's place in its chain: its depth, and `CHAIN_BEGINS` or nothing.
    #[must_use]
    #[inline(always)]
    pub fn chain(&self) -> u16 {
        half(self.0[2], 16)
    }

    /// Lower and upper half of the key.
    #[must_use]
    #[inline(always)]
    pub fn key(&self) -> [u64; 2] {
        [self.0[3], self.0[6]]
    }

    /// Whether it has no flags, no chain and no check: what a get of a whole block has.
    #[must_use]
    #[inline(always)]
    pub fn is_whole_get(&self) -> bool {
        let others = low(self.0[1]) & 0xff00 | low(self.0[2]) & 0xffff_0000;
        u64::from(others) | self.0[5] == 0
    }

    /// Page of the tail arena, or the layout block.
    #[must_use]
    #[inline(always)]
    pub fn tail(&self) -> u32 {
        low(self.0[7])
    }

    /// Microseconds until a LATE notice is due.
    #[must_use]
    #[inline(always)]
    pub fn deadline_us(&self) -> u32 {
        high(self.0[7])
    }

    /// Lower halves of the keys of a lookup or release; `length` is their number.
    #[must_use]
    #[inline(always)]
    pub fn lows(&self) -> [u64; LOOKUP_KEYS] {
        [self.0[3], self.0[4], self.0[5], self.0[6], self.0[7]]
    }

    /// How long a lookup holds what it finds, in milliseconds.
    #[must_use]
    #[inline(always)]
    pub fn hold_ms(&self) -> u32 {
        high(self.0[1])
    }
}
