//! What operations look like as queue entries.

use std::ptr::without_provenance_mut;

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fixed, FsyncFlags};
use kvrail_ring::Opcode;
use kvrail_ring::limits::REGISTERED_BYTES_MAX;

use crate::contract::{Durability, Operation};

/// The device's file in the table of registered files.
const FILE: Fixed = Fixed(0);

/// The entry for a piece whose buffer range begins at `address`. Reads and writes name registered
/// buffers only.
#[inline]
pub(crate) fn entry(operation: &Operation, address: usize) -> Entry {
    let Operation { offset, length, buffer_offset, .. } = *operation;
    // Entries of a region follow each other, 1 GiB each; pieces do not cross their borders.
    let buffer = || {
        let entry = u16::try_from(buffer_offset / REGISTERED_BYTES_MAX).expect("in the table");
        operation.buffer.0 + entry
    };
    match operation.opcode {
        Opcode::Read => {
            let address = without_provenance_mut(address);
            opcode::ReadFixed::new(FILE, address, length, buffer()).offset(offset).build()
        }
        Opcode::Write => {
            let flags = match operation.durability {
                Durability::Visible => 0,
                Durability::Durable => libc::RWF_DSYNC,
            };
            let write =
                opcode::WriteFixed::new(FILE, without_provenance_mut(address), length, buffer());
            write.offset(offset).rw_flags(flags).build()
        }
        Opcode::Flush => opcode::Fsync::new(FILE).flags(FsyncFlags::DATASYNC).build(),
        Opcode::Discard => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            opcode::Fallocate::new(FILE, u64::from(length)).offset(offset).mode(mode).build()
        }
        Opcode::Nop => opcode::Nop::new().build(),
    }
}
