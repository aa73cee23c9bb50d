//! The form of the bare ring's requests: block requests, or NVMe commands passed through.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use io_uring::{cqueue, opcode, squeue, types};
use kvrail_device::{DirectIo, Namespace, open_path};

use crate::port::Direction;

/// NVME_URING_CMD_IO of linux/nvme_ioctl.h.
const COMMAND_IO: u32 = 0xc048_4e80;

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct WireRequest {
    pub(super) direction: Direction,
    /// The member, which is also its place among the registered files.
    pub(super) member: u32,
    /// First byte on the member.
    pub(super) offset: u64,
    pub(super) address: *mut u8,
    pub(super) bytes: u32,
    /// The entry of the registered buffers that the address lies in, if it lies in one.
    pub(super) entry: Option<u16>,
}

/// The command set of a ring and its members.
pub(super) trait Wire: Sized {
    type Entry: squeue::EntryMarker;
    type Answer: cqueue::EntryMarker;
    /// One member.
    type Member: AsFd;

    /// Opens a member, not exclusively: a sidecar may hold it.
    fn open(path: &Path, io: DirectIo) -> Result<Self::Member>;

    /// Largest request to the member, in bytes.
    fn request_bytes_max(member: &Self::Member) -> u32;

    fn entry(member: &Self::Member, request: WireRequest) -> Self::Entry;

    /// Bytes moved, or the error, for a request of `asked` bytes.
    fn moved(result: i32, asked: u32) -> Result<u32, i32>;
}

/// Block requests.
#[derive(Debug)]
pub(super) struct BlockWire;

impl Wire for BlockWire {
    type Entry = squeue::Entry;
    type Answer = cqueue::Entry;
    type Member = OwnedFd;

    fn open(path: &Path, io: DirectIo) -> Result<OwnedFd> {
        open_path(&path.to_string_lossy(), io).context("opening a member for the raw arm")
    }

    /// The kernel splits what is larger.
    fn request_bytes_max(_: &OwnedFd) -> u32 {
        u32::MAX
    }

    fn entry(_: &OwnedFd, request: WireRequest) -> squeue::Entry {
        let WireRequest { direction, member, offset, address, bytes, entry } = request;
        let fd = types::Fixed(member);
        match (direction, entry) {
            (Direction::Read, Some(entry)) => {
                opcode::ReadFixed::new(fd, address, bytes, entry).offset(offset).build()
            }
            (Direction::Write, Some(entry)) => {
                opcode::WriteFixed::new(fd, address, bytes, entry).offset(offset).build()
            }
            (Direction::Read, None) => opcode::Read::new(fd, address, bytes).offset(offset).build(),
            (Direction::Write, None) => {
                opcode::Write::new(fd, address, bytes).offset(offset).build()
            }
        }
    }

    fn moved(result: i32, _: u32) -> Result<u32, i32> {
        u32::try_from(result).map_err(|_| -result)
    }
}

/// NVMe commands.
#[derive(Debug)]
pub(super) struct NvmeWire;

/// A namespace's character device.
#[derive(Debug)]
pub(super) struct Commanded(Namespace);

impl AsFd for Commanded {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

impl Wire for NvmeWire {
    type Entry = squeue::Entry128;
    type Answer = cqueue::Entry32;
    type Member = Commanded;

    fn open(path: &Path, _: DirectIo) -> Result<Commanded> {
        let namespace = Namespace::at(&path.to_string_lossy());
        Ok(Commanded(namespace.context("opening a member for the raw arm")?))
    }

    /// Buffers begin with a page.
    fn request_bytes_max(member: &Commanded) -> u32 {
        member.0.request_bytes_max.min(member.0.paged_bytes_max)
    }

    fn entry(member: &Commanded, request: WireRequest) -> squeue::Entry128 {
        let WireRequest { direction, offset, address, bytes, entry, .. } = request;
        let block = u64::from(member.0.block_bytes);
        let mut command = [0; 80]; // struct nvme_uring_cmd
        command[0] = match direction {
            Direction::Read => 0x02,
            Direction::Write => 0x01,
        };
        command[4..8].copy_from_slice(&member.0.id.to_ne_bytes());
        command[24..32].copy_from_slice(&(address.addr() as u64).to_ne_bytes());
        command[36..40].copy_from_slice(&bytes.to_ne_bytes());
        command[40..48].copy_from_slice(&(offset / block).to_le_bytes());
        let count = bytes / member.0.block_bytes - 1;
        command[48..52].copy_from_slice(&count.to_ne_bytes());
        let command =
            opcode::UringCmd80::new(types::Fixed(request.member), COMMAND_IO).cmd(command);
        command.buf_index(entry).build()
    }

    /// A command moves all or fails; the drive's status is positive.
    fn moved(result: i32, asked: u32) -> Result<u32, i32> {
        match result {
            0 => Ok(asked),
            1.. => Err(libc::EIO),
            errno => Err(-errno),
        }
    }
}
