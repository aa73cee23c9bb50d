//! Requests for blocks as C has them.
#![expect(unsafe_code, reason = "follows a pointer that a structure of C has")]
// UNSAFETY: metadata is read as bytes, copied within the call, on the header's terms.

use std::ffi::c_void;
use std::time::Duration;

use kvrail_client::{Chain, Class, Namespace, Priority};

use crate::client::Memory;
use crate::code::{Failure, KVRAIL_E_REFUSED};
use crate::key::{Key, bytes};
use crate::request::{KVRAIL_DURABLE, lease, memory};
use crate::sized::SizedStruct;

/// Puts the bytes as the block of a key. An existing block stays, and nothing is written, unless
/// KVRAIL_REPLACE is set.
pub const KVRAIL_PUT: u8 = 5;
/// Fills memory with the block of a key. The bytes are verified before the completion is handed
/// out; wrong ones are KVRAIL_MISS. Bytes behind the block stay as they were.
pub const KVRAIL_GET: u8 = 6;
/// The block of a key is forgotten. KVRAIL_MISS: it was not there.
pub const KVRAIL_DROP: u8 = 8;

/// For a put: `checksum` is CRC-64/NVME of the bytes, which is not computed again.
pub const KVRAIL_SUMMED: u16 = 8;
/// For a put: a block with other bytes or of another length is dropped for good before these bytes
/// are put; a get between the two is KVRAIL_MISS. The same bytes are KVRAIL_NOTE_PRESENT.
pub const KVRAIL_REPLACE: u16 = 16;
/// For a put: the store has less than half of the chain that the block belongs to, counted from its
/// head. It is taken if it is worth more than the coldest blocks there are; else the put ends as
/// KVRAIL_DECLINED with KVRAIL_NOTE_COLDER. Without this flag the block extends its chain.
pub const KVRAIL_BEGINS: u16 = 32;

/// For a put: the block has the worth of others that are used as often.
pub const KVRAIL_WORTH_NORMAL: u32 = 0;
/// For a put: it is worth less.
pub const KVRAIL_WORTH_LOW: u32 = 1;
/// For a put: it is worth more. A quarter of a pool may have such blocks; what is beyond is as
/// others.
pub const KVRAIL_WORTH_HIGH: u32 = 2;

/// One request for one block.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct BlockRequest {
    /// sizeof this structure.
    pub size: u32,
    /// KVRAIL_PUT, KVRAIL_GET or KVRAIL_DROP.
    pub opcode: u8,
    /// KVRAIL_DEMAND, ...
    pub priority: u8,
    /// KVRAIL_DURABLE for a put or drop; KVRAIL_SUMMED, KVRAIL_REPLACE and KVRAIL_BEGINS for a put.
    pub flags: u16,
    /// The key.
    pub key: Key,
    /// Number of the arena for puts and gets, else 0.
    pub region: u32,
    /// For a put: how deep in its chain the block is; 0 is the head of a prompt. More than 32,767
    /// counts as 32,767.
    pub depth: u32,
    /// First byte in the arena, a multiple of the volume's memory alignment.
    pub position: u64,
    /// Bytes to put, from 1 to the store's `block_bytes_max`; bytes of memory for a get.
    pub length: u64,
    /// Comes back in the completion.
    pub tag: u64,
    /// If not 0: a notice KVRAIL_LATE comes when a put or get takes longer; it still goes on.
    pub deadline_ns: u64,
    /// For KVRAIL_SUMMED: CRC-64/NVME of the bytes.
    pub checksum: u64,
    /// For a put: bytes that stay with the block, for listings and the feed of what is gone. They
    /// are copied.
    pub metadata: *const c_void,
    /// How many; 1,024 at most.
    pub metadata_bytes: u64,
    /// For a put: KVRAIL_WORTH_NORMAL, ... It stays with the block, over restarts too.
    pub worth: u32,
    /// For a put: seconds after which the block is worth nothing and goes first; 0: none.
    pub ttl_s: u32,
}

// SAFETY: integers and a pointer without padding, the size first; zeroes are a value of it.
unsafe impl SizedStruct for BlockRequest {
    const NAME: &'static str = "kvrail_block_request";
    const LEAST: usize = 48;
}

impl BlockRequest {
    /// The request as the client library has it.
    ///
    /// # Safety
    /// The metadata can be read.
    pub(crate) unsafe fn build(
        &self,
        space: &Namespace,
        memories: &[(u32, Memory)],
    ) -> Result<kvrail_client::BlockRequest, Failure> {
        type KeyedRequest = kvrail_client::BlockRequest;
        let key = self.key.block_key();
        let mut built = match self.opcode {
            KVRAIL_PUT => KeyedRequest::put(space, key, self.lease(memories)?),
            KVRAIL_GET => KeyedRequest::get(space, key, self.lease(memories)?),
            KVRAIL_DROP => KeyedRequest::drop_block(space, key),
            _ => return Err(self.bad("opcode", self.opcode.into(), "KVRAIL_PUT, ...")),
        };
        if self.flags & !(KVRAIL_DURABLE | KVRAIL_SUMMED | KVRAIL_REPLACE | KVRAIL_BEGINS) != 0 {
            let known = "KVRAIL_DURABLE | KVRAIL_SUMMED | KVRAIL_REPLACE | KVRAIL_BEGINS";
            return Err(self.bad("flags", self.flags.into(), known));
        }
        if self.flags & KVRAIL_DURABLE != 0 {
            built = built.durable();
        }
        if self.flags & KVRAIL_SUMMED != 0 {
            built = built.crc(self.checksum);
        }
        if self.flags & KVRAIL_REPLACE != 0 {
            built = built.replacing();
        }
        if self.flags & KVRAIL_BEGINS != 0 {
            built = built.chain(Chain::Begins);
        }
        if self.deadline_ns != 0 {
            built = built.deadline(Duration::from_nanos(self.deadline_ns));
        }
        if self.depth != 0 {
            built = built.depth(u16::try_from(self.depth).unwrap_or(u16::MAX));
        }
        if self.metadata_bytes != 0 {
            let count = usize::try_from(self.metadata_bytes).unwrap_or(usize::MAX);
            // SAFETY: the caller's promise.
            let metadata = unsafe { bytes(self.metadata.cast(), count, "metadata") }?;
            built = built.metadata(metadata);
        }
        built = match self.worth {
            KVRAIL_WORTH_NORMAL => built,
            KVRAIL_WORTH_LOW => built.worth(Priority::Low),
            KVRAIL_WORTH_HIGH => built.worth(Priority::High),
            other => return Err(self.bad("worth", other.into(), "KVRAIL_WORTH_NORMAL, ...")),
        };
        if self.ttl_s != 0 {
            built = built.ttl(Duration::from_secs(self.ttl_s.into()));
        }
        let class = Class::from_number(self.priority)
            .ok_or_else(|| self.bad("priority", self.priority.into(), "KVRAIL_DEMAND, ..."))?;
        Ok(built.class(class).tag(self.tag))
    }

    #[cold]
    fn bad(&self, member: &str, value: u64, use_instead: &str) -> Failure {
        Failure::argument(format!("kvrail_block_request.{member} is {value}; use {use_instead}"))
    }

    fn lease(&self, memories: &[(u32, Memory)]) -> Result<kvrail_client::Lease, Failure> {
        match memory(memories, self.region)? {
            Memory::Arena(arena) => lease(arena, self.position, self.length),
            Memory::Gpu(_) => Err(Failure::new(
                KVRAIL_E_REFUSED,
                format!(
                    "region {} is memory of a GPU, and blocks with keys move through arenas only; \
                     name an arena",
                    self.region
                ),
            )),
        }
    }
}
