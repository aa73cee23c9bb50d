//! Block requests: reads, writes, fsync, discard.

use std::os::fd::OwnedFd;

use io_uring::{IoUring, cqueue, opcode, squeue, types::FsyncFlags};
use kvrail_ring::Opcode;
use rustix::io::Errno;

use super::transfer::{Code, Transfer};
use super::{FILE, SqeFormat, table_entry};
use crate::buffer_table::BufferPlace;
use crate::contract::{Durability, Operation};
use crate::error::DeviceResult;
use crate::failure::Cause;
use crate::split::Outcome;
use crate::target::{DiscardMethod, DriveStream, Target};
use crate::uring::cqe_result;
use crate::uring::ring::{RingSetup, make_plain};

/// BLOCK_URING_CMD_DISCARD, `_IO(0x12, 0)` of linux/blkdev.h: start in `addr`, length in `addr3`,
/// where commands have their first bytes. Kernel 6.12.
const COMMAND_DISCARD: u32 = 0x1200;

/// Requests to a file or block device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Block {
    discard: DiscardMethod,
    /// The write stream of all writes; 0 is none.
    stream: u8,
}

impl SqeFormat for Block {
    type Entry = squeue::Entry;
    type Cqe = cqueue::Entry;

    fn open(target: &Target, stream: Option<DriveStream>) -> DeviceResult<(Self, Option<OwnedFd>)> {
        let stream = stream.map_or(0, |stream| stream.0.get());
        Ok((Self { discard: target.discard(), stream }, None))
    }

    fn make(setup: &RingSetup) -> Result<IoUring, Errno> {
        make_plain(setup)
    }

    fn request_bytes_max(&self, target: &Target) -> u32 {
        target.transfer_bytes_max()
    }

    #[inline(always)]
    fn read(&self, operation: &Operation, place: BufferPlace) -> squeue::Entry {
        transfer(Code::Read, operation, place).entry()
    }

    #[inline(always)]
    fn write(&self, operation: &Operation, place: BufferPlace) -> squeue::Entry {
        let flags = match operation.durability {
            Durability::Visible => 0,
            // The block layer makes it FUA, or a flush behind, or nothing, as the cache of the
            // device demands.
            Durability::Durable => libc::RWF_DSYNC.cast_unsigned(),
        };
        let transfer = transfer(Code::Write, operation, place);
        Transfer { flags, stream: self.stream, ..transfer }.entry()
    }

    fn other(&self, operation: &Operation) -> squeue::Entry {
        match operation.opcode {
            Opcode::Flush => opcode::Fsync::new(FILE).flags(FsyncFlags::DATASYNC).build(),
            Opcode::Discard => self.discard(operation.offset, u64::from(operation.length)),
            Opcode::Nop => opcode::Nop::new().build(),
            other => unreachable!("{}: has a buffer, or never comes here", other.name()),
        }
    }

    #[inline(always)]
    fn moved_all(result: i32, asked: u32) -> bool {
        u32::try_from(result) == Ok(asked)
    }

    #[inline]
    fn outcome(result: i32, _: u32) -> Outcome {
        cqe_result::outcome(result)
    }

    fn cause(result: i32) -> Cause {
        cqe_result::cause(result)
    }
}

#[inline(always)]
fn transfer(code: Code, operation: &Operation, place: BufferPlace) -> Transfer {
    let &Operation { offset, length, .. } = operation;
    let BufferPlace { address, access } = place;
    let (address, entry) = (address as u64, table_entry(operation));
    Transfer { code, offset, address, length, flags: 0, access, entry, stream: 0 }
}

impl Block {
    fn discard(&self, offset: u64, length: u64) -> squeue::Entry {
        match self.discard {
            DiscardMethod::Deallocate => {
                let mut command = [0; 16];
                command[..8].copy_from_slice(&length.to_ne_bytes());
                let discard = opcode::UringCmd16::new(FILE, COMMAND_DISCARD);
                discard.cmd(command).addr(Some(offset)).build()
            }
            DiscardMethod::PunchHole => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                opcode::Fallocate::new(FILE, length).offset(offset).mode(mode).build()
            }
        }
    }
}
