//! Whole reads and writes at an offset, with buffers that O_DIRECT accepts.

use std::os::fd::AsFd;

use kvrail_memory::PageSize;
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

/// Alignment of every buffer here. No device requires more than a page in memory.
const ALIGNMENT: usize = PageSize::Base.bytes();

/// Zeroed bytes that begin at a page border.
#[derive(Debug)]
pub(crate) struct AlignedBytes {
    storage: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl AlignedBytes {
    pub(crate) fn zeroed(bytes: usize) -> Self {
        let storage = vec![0; bytes + ALIGNMENT];
        let start = storage.as_ptr().align_offset(ALIGNMENT);
        assert!(start <= ALIGNMENT, "a byte pointer can always be aligned");
        Self { storage, start, bytes }
    }

    pub(crate) fn copy_of(source: &[u8]) -> Self {
        let mut copy = Self::zeroed(source.len());
        copy.copy_from_slice(source);
        copy
    }
}

impl std::ops::Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.storage[self.start..self.start + self.bytes]
    }
}

impl std::ops::DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage[self.start..self.start + self.bytes]
    }
}

/// Reads until `into` is full or the end of the file; returns the bytes read.
pub(crate) fn read_at(fd: impl AsFd, into: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < into.len() {
        let at = offset + done as u64;
        match retry_on_intr(|| pread(&fd, &mut into[done..], at))? {
            0 => break,
            read => done += read,
        }
    }
    Ok(done)
}

/// Writes everything, or fails with the cause.
pub(crate) fn write_at(fd: impl AsFd, from: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < from.len() {
        let at = offset + done as u64;
        match retry_on_intr(|| pwrite(&fd, &from[done..], at))? {
            // A write that moves nothing and reports nothing would loop for ever.
            0 => return Err(Errno::IO),
            written => done += written,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{AlignedBytes, read_at, write_at};

    #[test]
    fn buffers_are_page_aligned_and_keep_their_bytes() {
        for bytes in [1, 4095, 4096, 1 << 20] {
            let mut buffer = AlignedBytes::zeroed(bytes);
            assert_eq!(buffer.as_ptr() as usize % 4096, 0);
            assert_eq!(buffer.len(), bytes);
            buffer[bytes - 1] = 7;
            assert_eq!(AlignedBytes::copy_of(&buffer)[bytes - 1], 7);
        }
    }

    #[test]
    fn reads_back_what_was_written_and_stops_at_the_end() {
        let file = tempfile::tempfile().unwrap();
        write_at(&file, b"0123456789", 3).unwrap();
        let mut back = [9; 20];
        assert_eq!(read_at(&file, &mut back, 0).unwrap(), 13);
        assert_eq!(&back[..14], b"\0\0\x000123456789\x09");
    }
}
