//! The queue entries of reads and writes, made of words.
//!
//! The library makes entries field by field, in the widths of their fields, and copies them wide
//! into the queue: such a load waits until all older stores have left the core. Words are stored
//! where they go, one by one. Everything else on a ring is made by the library.
#![expect(unsafe_code, reason = "makes queue entries of their words")]
// UNSAFETY: an entry is the kernel's `struct io_uring_sqe`: 64 or 128 bytes of numbers, without
// padding.

use std::mem::transmute;

use io_uring::squeue;

use crate::buffer_table::Access;

/// IOSQE_FIXED_FILE of linux/io_uring.h: the descriptor is a place in the table of registered
/// files. The device's is the first.
const FIXED_FILE: u64 = 1;

/// Opcodes of linux/io_uring.h, for registered buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// IORING_OP_READ_FIXED.
    Read = 4,
    /// IORING_OP_WRITE_FIXED.
    Write = 5,
}

/// How far IORING_OP_READ and IORING_OP_WRITE are behind those for registered buffers.
const ADDRESSED: u64 = 18;

/// A transfer between the device and a range of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) code: Code,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) length: u32,
    /// RWF flags.
    pub(super) flags: u32,
    pub(super) access: Access,
    /// The buffer's place in the table; the kernel does not look at it where the memory is
    /// addressed.
    pub(super) entry: u16,
    /// The write stream; 0 is none.
    pub(super) stream: u8,
}

impl Transfer {
    /// The entry, without a name.
    #[inline(always)]
    pub(super) fn entry(self) -> squeue::Entry {
        let code = match self.access {
            Access::Registered => self.code as u64,
            Access::Addressed => self.code as u64 + ADDRESSED,
        };
        let words: [u64; 8] = [
            code | FIXED_FILE << 8,
            self.offset,
            self.address,
            u64::from(self.length) | u64::from(self.flags) << 32,
            0,
            u64::from(self.entry) | u64::from(self.stream) << 32,
            0,
            0,
        ];
        // SAFETY: any words are an entry (the size is checked here); its effect in the kernel is
        // the responsibility of the code that pushes it.
        unsafe { transmute::<[u64; 8], squeue::Entry>(words) }
    }
}

/// IORING_OP_URING_CMD of linux/io_uring.h.
const URING_CMD: u64 = 46;

/// IORING_URING_CMD_FIXED: the address in the command is in a registered buffer.
const FIXED_BUFFER: u64 = 1;

/// A command for the driver behind the file, and where its data is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passed {
    /// The driver's number for what the command is.
    pub(super) code: u32,
    pub(super) access: Access,
    /// The buffer's place in the table, as in `Transfer`.
    pub(super) entry: u16,
    pub(super) command: [u64; 10],
}

impl Passed {
    /// The entry, without a name.
    #[inline(always)]
    pub(super) fn entry(self) -> squeue::Entry128 {
        let [a, b, c, d, e, f, g, h, i, j] = self.command;
        let flags = match self.access {
            Access::Registered => FIXED_BUFFER << 32,
            Access::Addressed => 0,
        };
        let code = u64::from(self.code);
        let kind = URING_CMD | FIXED_FILE << 8;
        let words: [u64; 16] =
            [kind, code, 0, flags, 0, u64::from(self.entry), a, b, c, d, e, f, g, h, i, j];
        // SAFETY: as in `Transfer::entry`.
        unsafe { transmute::<[u64; 16], squeue::Entry128>(words) }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::transmute;

    use io_uring::{opcode, squeue, types};

    use super::{Access, Code, Passed, Transfer};

    fn words(entry: squeue::Entry) -> [u64; 8] {
        // SAFETY: an entry is 64 bytes of numbers without padding.
        unsafe { transmute::<squeue::Entry, [u64; 8]>(entry) }
    }

    #[test]
    fn the_library_makes_the_same_entries() {
        let (offset, address, length, entry) = (1 << 40 | 512, 0x7000_1234_5000, 0x3_1000, 777);
        let pointer = std::ptr::without_provenance_mut(0x7000_1234_5000);
        let (code, flags, stream, access) = (Code::Read, 0, 0, Access::Registered);
        let ours = Transfer { code, offset, address, length, flags, access, entry, stream };
        let read = opcode::ReadFixed::new(types::Fixed(0), pointer, length, entry);
        assert_eq!(words(ours.entry()), words(read.offset(offset).build()));
        let ours = Transfer { code: Code::Write, flags: 2, stream: 9, ..ours };
        let write = opcode::WriteFixed::new(types::Fixed(0), pointer, length, entry);
        let write = write.offset(offset).rw_flags(2).write_stream(9).build();
        assert_eq!(words(ours.entry()), words(write));

        let addressed = Transfer { access: Access::Addressed, entry: 0, ..ours };
        let write = opcode::Write::new(types::Fixed(0), pointer, length);
        let write = write.offset(offset).rw_flags(2).write_stream(9).build();
        assert_eq!(words(addressed.entry()), words(write));
        let addressed = Transfer { code: Code::Read, flags: 0, stream: 0, ..addressed };
        let read = opcode::Read::new(types::Fixed(0), pointer, length).offset(offset).build();
        assert_eq!(words(addressed.entry()), words(read));
    }

    #[test]
    fn the_library_makes_the_same_commands() {
        let command: [u64; 10] = std::array::from_fn(|word| (word as u64 + 1) << 31 | 0x5a);
        let access = Access::Registered;
        let ours = Passed { code: 0xc048_4e80, access, entry: 777, command };
        // SAFETY: numbers without padding, both.
        let bytes = unsafe { transmute::<[u64; 10], [u8; 80]>(command) };
        let theirs = opcode::UringCmd80::new(types::Fixed(0), 0xc048_4e80).cmd(bytes);
        let theirs = theirs.buf_index(Some(777)).build();
        // SAFETY: an entry is 128 bytes of numbers without padding.
        let words = |entry| unsafe { transmute::<squeue::Entry128, [u64; 16]>(entry) };
        assert_eq!(words(ours.entry()), words(theirs));
        let addressed = Passed { access: Access::Addressed, entry: 0, ..ours };
        let theirs = opcode::UringCmd80::new(types::Fixed(0), 0xc048_4e80).cmd(bytes).build();
        assert_eq!(words(addressed.entry()), words(theirs));
    }
}
