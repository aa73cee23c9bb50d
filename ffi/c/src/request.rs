//! Requests and completions as C has them.
#![expect(unsafe_code, reason = "names ranges of arenas that C laid out")]
// UNSAFETY: a lease that is made here names its range on its way to the sidecar and back. The
// client library touches the bytes between submission and completion only, for checksums and for
// blocks; until then they are the request's alone, on the header's terms.

use std::time::Duration;

use kvrail_client::{
    Arena, Class, Completed, GpuRange, GpuRegion, Lease, Opcode, PollerIndex, Status, Volume,
};

use crate::client::{Memory, Session, no_memory};
use crate::code::Failure;
use crate::note;
use crate::sized::SizedStruct;
use crate::volume::no_volume;

/// A round trip to a poller (its number in `offset`), without a device.
pub const KVRAIL_NOP: u8 = 0;
/// Volume to memory.
pub const KVRAIL_READ: u8 = 1;
/// Memory to volume.
pub const KVRAIL_WRITE: u8 = 2;
/// Everything written and completed before is durable when this completes.
pub const KVRAIL_FLUSH: u8 = 3;
/// The range may be forgotten by the devices.
pub const KVRAIL_DISCARD: u8 = 4;

/// Somebody waits for it: the default.
pub const KVRAIL_DEMAND: u8 = 0;
/// Somebody may soon wait for it.
pub const KVRAIL_PREFETCH: u8 = 1;
/// No caller waits for it.
pub const KVRAIL_BACKGROUND: u8 = 2;

/// A write, put or drop is on stable media when it completes.
pub const KVRAIL_DURABLE: u16 = 1;
/// Return CRC-64/NVME of the bytes.
pub const KVRAIL_CHECKSUM: u16 = 2;
/// Bytes with another checksum than `checksum` end as KVRAIL_CORRUPT.
pub const KVRAIL_VERIFY: u16 = 4;

/// One request.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Request {
    /// sizeof this structure.
    pub size: u32,
    /// KVRAIL_READ, ...
    pub opcode: u8,
    /// KVRAIL_DEMAND, ...
    pub priority: u8,
    /// KVRAIL_DURABLE | ...
    pub flags: u16,
    /// Number of the volume.
    pub volume: u32,
    /// Number of the arena or GPU region for reads and writes, else 0.
    pub region: u32,
    /// First byte in the volume, a multiple of its logical block.
    pub offset: u64,
    /// First byte in the arena, or in the block of the GPU region; a multiple of the volume's
    /// memory alignment, and of 16 in a block.
    pub position: u64,
    /// Bytes to move, a multiple of the volume's logical block.
    pub length: u64,
    /// Comes back in the completion.
    pub tag: u64,
    /// For KVRAIL_VERIFY: CRC-64/NVME of the bytes.
    pub checksum: u64,
    /// If not 0: a notice KVRAIL_LATE comes when the request takes longer; it still goes on.
    pub deadline_ns: u64,
    /// Which block of the GPU region; 0 for an arena.
    pub block: u32,
    /// Must be 0.
    pub reserved: u32,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for Request {
    const NAME: &'static str = "kvrail_request";
    const LEAST: usize = 40;
}

/// The end of a request, or a notice that it is late.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Completion {
    /// sizeof this structure.
    pub size: u32,
    /// KVRAIL_OK, KVRAIL_IO_ERROR, ... After KVRAIL_LATE the end is still to come.
    pub status: i32,
    /// What kvrail_submit gave out for it.
    pub ticket: u64,
    /// The request's.
    pub tag: u64,
    /// Bytes moved: all of them when the status is KVRAIL_OK. Of a block the whole block's; after
    /// KVRAIL_TOO_SMALL those that a get of it needs.
    pub bytes: u64,
    /// CRC-64/NVME of the bytes, if the request has KVRAIL_CHECKSUM or KVRAIL_VERIFY.
    pub checksum: u64,
    /// Nanoseconds at the device; of several pieces the longest.
    pub device_ns: u32,
    /// Nanoseconds from acceptance to submission; of several pieces the longest.
    pub queue_ns: u32,
    /// Details of a block's end beyond the status: KVRAIL_NOTE_...
    pub note: u32,
    /// Must be ignored.
    pub reserved: u32,
}

// SAFETY: integers without padding, the size first.
unsafe impl SizedStruct for Completion {
    const NAME: &'static str = "kvrail_completion";
    const LEAST: usize = 24;
}

impl From<&Completed> for Completion {
    #[inline]
    fn from(done: &Completed) -> Self {
        Self {
            size: 0,
            status: i32::from(done.status.number()),
            ticket: done.ticket.0,
            tag: done.tag,
            bytes: done.bytes,
            checksum: done.checksum,
            device_ns: done.device_ns,
            queue_ns: done.queue_ns,
            note: note::number(done.note),
            reserved: 0,
        }
    }
}

const _: () = assert!(Status::Ok.number() == 0);

impl Request {
    /// The request as the client library has it.
    #[inline]
    pub(crate) fn build(
        &self,
        session: &Session,
        memories: &[(u32, Memory)],
    ) -> Result<kvrail_client::Request, Failure> {
        type RawRequest = kvrail_client::Request;
        let mut built = match Opcode::from_number(self.opcode) {
            Some(Opcode::Read) => {
                let volume = self.volume(session)?;
                match memory(memories, self.region)? {
                    Memory::Arena(arena) => {
                        RawRequest::read(volume, self.offset, self.lease(arena)?)
                    }
                    Memory::Gpu(region) => {
                        RawRequest::read_gpu(volume, self.offset, self.range(region)?)
                    }
                }
            }
            Some(Opcode::Write) => {
                let volume = self.volume(session)?;
                match memory(memories, self.region)? {
                    Memory::Arena(arena) => {
                        RawRequest::write(volume, self.offset, self.lease(arena)?)
                    }
                    Memory::Gpu(region) => {
                        RawRequest::write_gpu(volume, self.offset, self.range(region)?)
                    }
                }
            }
            Some(Opcode::Flush) => RawRequest::flush(self.volume(session)?),
            Some(Opcode::Discard) => {
                RawRequest::discard(self.volume(session)?, self.offset, self.length)
            }
            Some(Opcode::Nop) => {
                let poller = u16::try_from(self.offset).unwrap_or(u16::MAX);
                session.client.nop_to(PollerIndex(poller))
            }
            _ => return Err(self.bad("opcode", u64::from(self.opcode), "KVRAIL_READ, ...")),
        };
        if self.priority != 0 {
            let class = Class::from_number(self.priority).ok_or_else(|| {
                self.bad("priority", u64::from(self.priority), "KVRAIL_DEMAND, ...")
            })?;
            built = built.class(class);
        }
        if self.flags != 0 {
            built = self.flagged(built)?;
        }
        if self.deadline_ns != 0 {
            built = built.deadline(Duration::from_nanos(self.deadline_ns));
        }
        Ok(built.tag(self.tag))
    }

    fn flagged(
        &self,
        mut built: kvrail_client::Request,
    ) -> Result<kvrail_client::Request, Failure> {
        if self.flags & !(KVRAIL_DURABLE | KVRAIL_CHECKSUM | KVRAIL_VERIFY) != 0 {
            return Err(self.bad("flags", u64::from(self.flags), "KVRAIL_DURABLE | ..."));
        }
        if self.flags & KVRAIL_DURABLE != 0 {
            built = built.durable();
        }
        if self.flags & KVRAIL_CHECKSUM != 0 {
            built = built.checksum();
        }
        if self.flags & KVRAIL_VERIFY != 0 {
            built = built.verify(self.checksum);
        }
        Ok(built)
    }

    #[cold]
    fn bad(&self, member: &str, value: u64, use_instead: &str) -> Failure {
        Failure::argument(format!("kvrail_request.{member} is {value}; use {use_instead}"))
    }

    #[inline]
    fn volume<'a>(&self, session: &'a Session) -> Result<&'a Volume, Failure> {
        let volumes = session.client.volumes();
        volumes.get(self.volume as usize).ok_or_else(|| no_volume(self.volume, volumes.len()))
    }

    /// The name of the range of a block.
    fn range(&self, region: &GpuRegion) -> Result<GpuRange, Failure> {
        if self.reserved != 0 {
            return Err(self.bad("reserved", u64::from(self.reserved), "0"));
        }
        Ok(region.range(self.block, self.position, self.length)?)
    }

    /// The name of the range of an arena.
    #[inline]
    fn lease(&self, arena: &Arena) -> Result<Lease, Failure> {
        if self.block != 0 {
            return Err(self.bad("block", u64::from(self.block), "0 for an arena"));
        }
        lease(arena, self.position, self.length)
    }
}

/// The memory of this number; `memories` are the client's.
#[inline]
pub(crate) fn memory(memories: &[(u32, Memory)], region: u32) -> Result<&Memory, Failure> {
    let place = memories.binary_search_by_key(&region, |(number, _)| *number);
    place.map(|place| &memories[place].1).map_err(|_| no_memory(region))
}

/// The name of a range of an arena.
#[inline]
pub(crate) fn lease(arena: &Arena, position: u64, length: u64) -> Result<Lease, Failure> {
    let [position, length] =
        [position, length].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    // SAFETY: until the request ends no other code touches the range; see the head of this file.
    let memory = unsafe { arena.pool().assume(position, length) };
    let memory = memory.map_err(kvrail_client::ClientError::from)?;
    Ok(arena.adopt(memory)?)
}
