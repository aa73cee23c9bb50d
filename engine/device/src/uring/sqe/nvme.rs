//! NVMe commands through a namespace's generic character device: 128-byte entries, 32-byte
//! completions. Reads and writes only; what needs no speed goes through the block device beside it,
//! which also holds the claim.

use std::os::fd::OwnedFd;

use io_uring::{IoUring, cqueue, opcode, squeue};
use kvrail_ring::Opcode;
use rustix::io::Errno;

use super::transfer::Passed;
use super::{SqeFormat, table_entry};
use crate::buffer_table::BufferPlace;
use crate::contract::{Durability, Operation};
use crate::error::DeviceResult;
use crate::failure::Cause;
use crate::namespace::Namespace;
use crate::nvme_status::NvmeStatus;
use crate::queue::Cache;
use crate::split::Outcome;
use crate::target::{DriveStream, Target};
use crate::uring::cqe_result;
use crate::uring::ring::{RingSetup, make_wide};

/// NVME_URING_CMD_IO, `_IOWR('N', 0x80, struct nvme_uring_cmd)` of linux/nvme_ioctl.h.
const COMMAND_IO: u32 = 0xc048_4e80;

/// Opcodes of the NVM command set.
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;

/// Force Unit Access, bit 30 of command dword 12: the write ends on stable media.
const FUA: u32 = 1 << 30;

/// Directive type 2, data placement, in bits 20 to 23 of command dword 12. The placement
/// identifier stands in the upper half of dword 13; stream N of the kernel is handle N - 1 in the
/// first reclaim group.
const PLACED: u32 = 2 << 20;

/// Most blocks of one command: its count field has 16 bits and begins at 0.
const BLOCKS_MAX: u32 = 1 << 16;

/// Commands to one namespace.
#[derive(Clone, Copy, Debug)]
pub struct Nvme {
    namespace: u32,
    block_shift: u32,
    /// Bits of dword 12 that make a write durable: none where no cache is volatile.
    durable: u32,
    /// Bits of dword 12 that make dword 13 the placement of a write, and dword 13.
    placed: u32,
    placement: u32,
    request_bytes_max: u32,
}

impl SqeFormat for Nvme {
    type Entry = squeue::Entry128;
    type Cqe = cqueue::Entry32;

    fn open(target: &Target, stream: Option<DriveStream>) -> DeviceResult<(Self, Option<OwnedFd>)> {
        let Namespace { file, id, block_bytes, request_bytes_max, cache, .. } =
            Namespace::behind(target)?;
        let durable = match cache {
            Cache::Volatile { .. } => FUA,
            Cache::None => 0,
        };
        let most = block_bytes.saturating_mul(BLOCKS_MAX);
        let wire = Self {
            namespace: id,
            block_shift: block_bytes.trailing_zeros(),
            durable,
            placement: stream.map_or(0, |stream| u32::from(stream.0.get() - 1) << 16),
            placed: if stream.is_some() { PLACED } else { 0 },
            request_bytes_max: request_bytes_max.min(most),
        };
        Ok((wire, Some(file)))
    }

    fn make(setup: &RingSetup) -> Result<IoUring<Self::Entry, Self::Cqe>, Errno> {
        make_wide(setup)
    }

    fn request_bytes_max(&self, _: &Target) -> u32 {
        self.request_bytes_max
    }

    #[inline(always)]
    fn read(&self, operation: &Operation, place: BufferPlace) -> squeue::Entry128 {
        self.entry(READ, 0, operation, place)
    }

    #[inline(always)]
    fn write(&self, operation: &Operation, place: BufferPlace) -> squeue::Entry128 {
        let durable = match operation.durability {
            Durability::Visible => 0,
            Durability::Durable => self.durable,
        };
        self.entry(WRITE, self.placed | durable, operation, place)
    }

    fn other(&self, operation: &Operation) -> squeue::Entry128 {
        match operation.opcode {
            Opcode::Nop => opcode::Nop::new().build().into(),
            other => unreachable!("{other:?} goes through the block device"),
        }
    }

    #[inline(always)]
    fn moved_all(result: i32, _: u32) -> bool {
        result == 0 // a command moves all or fails
    }

    #[inline]
    fn outcome(result: i32, asked: u32) -> Outcome {
        match result {
            0 => Outcome::Moved(asked), // a command moves all or fails
            1.. => match NvmeStatus::of_result(result) {
                status if status.is_transient() => Outcome::Transient(status.status()),
                status => Outcome::Failed(status.status()),
            },
            _ => cqe_result::outcome(result),
        }
    }

    fn cause(result: i32) -> Cause {
        if result > 0 {
            Cause::Nvme(NvmeStatus::of_result(result))
        } else {
            cqe_result::cause(result)
        }
    }
}

impl Nvme {
    #[inline(always)]
    fn entry(
        &self,
        code: u8,
        control: u32,
        operation: &Operation,
        place: BufferPlace,
    ) -> squeue::Entry128 {
        let command = self.command(code, control, operation, place.address);
        let entry = table_entry(operation);
        Passed { code: COMMAND_IO, access: place.access, entry, command }.entry()
    }

    /// The kernel's `struct nvme_uring_cmd`, in words: opcode and namespace; data address; data
    /// length; command dwords 10 and 11, the first block, and so on to 15. The lower of two dwords
    /// comes first, because every machine kvrail runs on is little endian.
    #[inline(always)]
    fn command(&self, code: u8, control: u32, operation: &Operation, address: usize) -> [u64; 10] {
        let first = operation.offset >> self.block_shift;
        let count = (operation.length >> self.block_shift) - 1;
        let placement = if control & PLACED != 0 { self.placement } else { 0 };
        let kind = u64::from(code) | u64::from(self.namespace) << 32;
        let length = u64::from(operation.length) << 32;
        let how = u64::from(count | control) | u64::from(placement) << 32;
        [kind, 0, 0, address as u64, length, first, how, 0, 0, 0]
    }
}

#[cfg(test)]
mod tests {
    use kvrail_ring::{Opcode, Status};
    use rustix::io::Errno;

    use super::{FUA, Nvme, PLACED, READ, SqeFormat, WRITE};
    use crate::contract::{BufferIndex, Durability, Operation};
    use crate::split::Outcome;

    fn wire(durable: u32) -> Nvme {
        let (placed, placement) = (PLACED, 7 << 16);
        let (namespace, block_shift, request_bytes_max) = (3, 12, 1 << 19);
        Nvme { namespace, block_shift, durable, placed, placement, request_bytes_max }
    }

    fn write(offset: u64, length: u32) -> Operation {
        let (opcode, durability) = (Opcode::Write, Durability::Durable);
        let buffer = BufferIndex(5);
        Operation { tag: 0, opcode, durability, offset, length, buffer, buffer_offset: 0 }
    }

    /// The dword at this byte.
    fn word(command: &[u64; 10], at: usize) -> u32 {
        (command[at / 8] >> (at % 8 * 8) & 0xffff_ffff).try_into().unwrap()
    }

    #[test]
    fn a_command_counts_blocks_from_zero() {
        let operation = write((1 << 45) + 8192, 16_384);
        let command = wire(FUA).command(WRITE, FUA, &operation, 0x7000_1000);
        assert_eq!((word(&command, 0), word(&command, 4)), (WRITE.into(), 3));
        assert_eq!((word(&command, 24), word(&command, 36)), (0x7000_1000, 16_384));
        assert_eq!((word(&command, 40), word(&command, 44)), (2, 2));
        assert_eq!(word(&command, 48), 3 | FUA);
        let command = wire(0).command(READ, 0, &operation, 0);
        let [kind, how, placement] = [0, 48, 52].map(|at| word(&command, at));
        assert_eq!((kind, how, placement), (READ.into(), 3, 0));
        let command = wire(0).command(WRITE, PLACED, &operation, 0);
        assert_eq!((word(&command, 48), word(&command, 52)), (3 | 2 << 20, 7 << 16));
    }

    #[test]
    fn results_are_all_or_a_status_or_an_errno() {
        assert_eq!(Nvme::outcome(0, 4096), Outcome::Moved(4096));
        assert_eq!(Nvme::outcome(0x4281, 1), Outcome::Failed(Status::IoError));
        assert_eq!(Nvme::outcome(0x0281, 1), Outcome::Transient(Status::IoError));
        // A reset of the controller cancels commands; they are done again.
        assert_eq!(Nvme::outcome(-Errno::INTR.raw_os_error(), 1), Outcome::Again);
        assert_eq!(
            Nvme::outcome(-Errno::NODEV.raw_os_error(), 1),
            Outcome::Failed(Status::DeviceGone)
        );
        assert_eq!(Nvme::cause(0x4281).to_string(), "NVMe: unrecovered read error (0x281)");
    }
}
