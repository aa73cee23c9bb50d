//! Whether a member is empty behind its first MiB, before a volume is made of it.
//!
//! Of a file all data is read, because the kernel reports where there is any; of a device the known
//! places, both ends, and samples all over, which takes a moment on a drive of any size.

use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::bytes::{AlignedBytes, read_at};
use crate::label::LABEL_BYTES;
use crate::remains::places;
use crate::signature::Signature;

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Data of a file that is read at most: written zeros alone make no member; a file with more of
/// them needs the user's confirmation.
const FILE_BYTES_MAX: u64 = if cfg!(test) { 8 << 20 } else { 256 << 20 };

/// Bytes at both ends of a device that are read whole.
const END_BYTES: u64 = 4 << 20;

/// Reads of a device between them.
const SAMPLES: u64 = 256;

/// The content found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// Known things and where they stand.
    pub(crate) known: Vec<(u64, Signature)>,
    /// The first byte seen that is not zero.
    pub(crate) data: Option<u64>,
    /// More data than was read.
    pub(crate) unread: bool,
    /// The first byte seen that the device cannot read, which may be data.
    pub(crate) unreadable: Option<u64>,
}

impl Survey {
    pub(crate) fn is_blank(&self) -> bool {
        *self == Self::default()
    }
}

/// Surveys a file of `bytes` bytes.
pub(crate) fn survey_file(fd: impl AsFd, bytes: u64) -> Result<Survey, Errno> {
    let mut look = SurveyReader::new(fd, bytes);
    look.at_places(4096)?;
    let (mut at, mut read) = (LABEL_BYTES, 0);
    while let Some((start, end)) = look.extent(at)? {
        let until = end.min(start + (FILE_BYTES_MAX - read));
        look.stretch(start, until)?;
        if look.found.data.is_some() {
            break;
        }
        read += until - start;
        if until < end {
            look.found.unread = true;
            break;
        }
        at = end;
    }
    Ok(look.found)
}

/// Surveys a device of `bytes` bytes with blocks of `block` bytes.
pub(crate) fn survey_device(fd: impl AsFd, bytes: u64, block: u32) -> Result<Survey, Errno> {
    let mut look = SurveyReader::new(fd, bytes);
    look.at_places(u64::from(block).max(4096))?;
    look.stretch(LABEL_BYTES, bytes.min(LABEL_BYTES + END_BYTES))?;
    look.stretch(bytes.saturating_sub(END_BYTES).max(LABEL_BYTES), bytes)?;
    let step = bytes / SAMPLES;
    for sample in (1..SAMPLES).map(|number| number * step).filter(|&at| at >= LABEL_BYTES) {
        look.stretch(sample, bytes.min(sample + READ_BYTES as u64))?;
    }
    Ok(look.found)
}

struct SurveyReader<F> {
    fd: F,
    bytes: u64,
    buffer: AlignedBytes,
    found: Survey,
}

impl<F: AsFd> SurveyReader<F> {
    fn new(fd: F, bytes: u64) -> Self {
        let buffer = AlignedBytes::zeroed(READ_BYTES);
        Self { fd, bytes, buffer, found: Survey::default() }
    }

    /// Reads the units around the known places, each once.
    fn at_places(&mut self, unit: u64) -> Result<(), Errno> {
        let (mut start, mut length) = (u64::MAX, 0);
        let unit_bytes = usize::try_from(unit).unwrap_or(READ_BYTES).min(READ_BYTES);
        for (at, mark) in places(self.bytes) {
            if at / unit * unit != start {
                start = at / unit * unit;
                length = self.read(unit_bytes, start)?;
            }
            let inside = usize::try_from(at - start).unwrap_or(length);
            let there = self.buffer[..length].get(inside..);
            if there.is_some_and(|bytes| bytes.starts_with(mark.magic)) {
                self.found.known.push((at, mark.signature()));
            }
        }
        Ok(())
    }

    /// Reads `bytes` bytes; none where the medium is bad (ENODATA of the block layer, EIO).
    /// Anything else is a failure.
    fn read(&mut self, bytes: usize, at: u64) -> Result<usize, Errno> {
        match read_at(&self.fd, &mut self.buffer[..bytes], at) {
            Err(Errno::IO | Errno::NODATA | Errno::ILSEQ | Errno::REMOTEIO) => {
                self.found.unreadable.get_or_insert(at);
                Ok(0)
            }
            read => read,
        }
    }

    /// Looks for a byte that is not zero, unless there was one before.
    fn stretch(&mut self, from: u64, to: u64) -> Result<(), Errno> {
        // As far as O_DIRECT requires it: no device has larger blocks than a read.
        let mut at = from / READ_BYTES as u64 * READ_BYTES as u64;
        while at < to && self.found.data.is_none() {
            let length = self.read(READ_BYTES, at)?;
            let first = self.buffer[..length].iter().position(|&byte| byte != 0);
            self.found.data = first.map(|first| at + first as u64);
            at += READ_BYTES as u64;
        }
        Ok(())
    }

    /// The next piece with data of a file. All of it, where the file system does not support this.
    fn extent(&self, from: u64) -> Result<Option<(u64, u64)>, Errno> {
        if from >= self.bytes {
            return Ok(None);
        }
        match seek(&self.fd, SeekFrom::Data(from)) {
            Ok(start) => Ok(Some((start, seek(&self.fd, SeekFrom::Hole(start))?.max(start + 1)))),
            Err(Errno::NXIO) => Ok(None),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some((from, self.bytes))),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::{FILE_BYTES_MAX, survey_device, survey_file};

    const MIB: u64 = 1 << 20;

    fn file(bytes: u64) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(bytes).unwrap();
        file
    }

    /// Whatever is larger than a 256th of a device is met.
    #[test]
    fn samples_meet_data_anywhere_on_a_device() {
        let bytes = 1024 * MIB;
        for at in [MIB, 2 * MIB, 300 * MIB + 4096, 511 * MIB, 1000 * MIB, 1020 * MIB] {
            let device = file(bytes);
            assert!(survey_device(&device, bytes, 512).unwrap().is_blank());
            device.write_all_at(&[7; 4 << 20], at).unwrap();
            let seen = survey_device(&device, bytes, 512).unwrap().data;
            assert!(seen.is_some_and(|seen| (at..at + 4 * MIB).contains(&seen)), "{at}: {seen:?}");
        }
        // Small data is found at both ends.
        for at in [MIB, 5 * MIB - 1, bytes - 4 * MIB, bytes - 1] {
            let device = file(bytes);
            device.write_all_at(b"x", at).unwrap();
            assert_eq!(survey_device(&device, bytes, 4096).unwrap().data, Some(at));
        }
    }

    /// The first pages of a process are never mapped, and reading them fails as a bad sector does.
    #[test]
    fn what_cannot_be_read_may_be_data() {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let seen = survey_device(&memory, 2 * MIB, 512).unwrap();
        assert!(seen.unreadable.is_some() && !seen.is_blank(), "{seen:?}");
    }

    #[test]
    fn every_byte_of_a_file_counts_and_zeros_do_not() {
        let bytes = (40 << 30) + 5;
        for at in [MIB, 5_000_001, (20 << 30) + 77, bytes - 1] {
            let whole = file(bytes);
            whole.write_all_at(&[0; 4096], 3 * MIB).unwrap();
            assert!(survey_file(&whole, bytes).unwrap().is_blank());
            whole.write_all_at(b"x", at).unwrap();
            assert_eq!(survey_file(&whole, bytes).unwrap().data, Some(at));
        }
    }

    #[test]
    fn a_file_with_more_zeros_than_are_read_is_not_blank() {
        let bytes = FILE_BYTES_MAX + 3 * MIB;
        let whole = file(bytes);
        for at in (0..bytes).step_by(1 << 20) {
            whole.write_all_at(&[0; 1 << 20], at).unwrap();
        }
        let seen = survey_file(&whole, bytes).unwrap();
        if seen.is_blank() {
            println!("skipped: this file system keeps no zeros");
            return;
        }
        assert!(seen.unread && seen.data.is_none());
        whole.set_len(FILE_BYTES_MAX).unwrap();
        assert!(survey_file(&whole, FILE_BYTES_MAX).unwrap().is_blank());
    }
}
