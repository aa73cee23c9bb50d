//! What the kernel says in its log while it refuses a connection: the only place with the cause.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use kvrail_memory::Root;
use rustix::fs::OFlags;

/// Longest record (`printk`'s CONSOLE_EXT_LOG_MAX).
const RECORD_BYTES: usize = 8192;

/// Records read at most: a flood must not hold an error back.
const RECORDS_MAX: usize = 1000;

/// The log from now on.
pub(crate) struct KernelLog(File);

impl KernelLog {
    /// None where this process may not read it.
    pub(crate) fn open(root: &Root) -> Option<Self> {
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let path = root.path("/dev/kmsg");
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        file.seek(SeekFrom::End(0)).ok()?;
        Some(Self(file))
    }

    /// Lines about NVMe since it was opened.
    pub(crate) fn nvme_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut record = [0; RECORD_BYTES];
        for _ in 0..RECORDS_MAX {
            match self.0.read(&mut record) {
                // EPIPE: records were overwritten; the next read goes on with the oldest.
                Err(why) if why.kind() == ErrorKind::BrokenPipe => {}
                Ok(0) | Err(_) => break,
                Ok(bytes) => lines.extend(text(&record[..bytes])),
            }
        }
        lines.retain(|line| line.contains("nvme"));
        lines.dedup();
        lines
    }
}

/// `6,1234,5678,-;nvme nvme1: text` and lines with more fields behind it.
fn text(record: &[u8]) -> Option<String> {
    let record = String::from_utf8_lossy(record);
    let (_, rest) = record.split_once(';')?;
    rest.lines().next().map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn a_record_is_its_first_line_behind_the_numbers() {
        let record = b"3,900,5;nvme nvme1: Connect refused; really\n SUBSYSTEM=nvme\n";
        assert_eq!(text(record).as_deref(), Some("nvme nvme1: Connect refused; really"));
        assert_eq!(text(b"nonsense"), None);
    }
}
