//! The log of the kernel's `log-writes` target: every write below a device, in the order in which
//! it became certain. A flush stands behind all writes that had ended when it was sent; writes
//! without a later flush come last. Documentation/admin-guide/device-mapper/log-writes.rst.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// `WRITE_LOG_MAGIC` and the version of the format.
const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
/// Flags of an entry.
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// Bytes of an entry's front: sector, sectors, flags, bytes of a mark.
const FRONT_BYTES: usize = 32;

/// An entry of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// Bytes of the log were written there.
    Write { offset: u64, bytes: u64, at: u64 },
    /// A range was discarded.
    Discard { offset: u64, bytes: u64 },
    /// All entries before it are durable.
    Flush,
    /// The time was this, or later.
    Mark(Duration),
}

/// A log.
#[derive(Debug)]
pub(super) struct Log {
    device: File,
    pub(super) entries: Vec<Entry>,
}

impl Log {
    /// Reads the log on a device.
    pub(super) fn read(path: &Path) -> Self {
        let device = File::open(path).expect("our own device");
        let mut front = [0; 28];
        device.read_exact_at(&mut front, 0).expect("it can be read");
        let [magic, version, count] = [0, 8, 16].map(|at| word(&front, at));
        assert_eq!((magic, version), (MAGIC, VERSION), "no log of dm-log-writes");
        let unit = u64::from(u32::from_le_bytes(front[24..].try_into().expect("four bytes")));
        let (mut entries, mut at) = (Vec::new(), unit);
        for _ in 0..count {
            let mut front = vec![0; usize::try_from(unit).expect("a block")];
            device.read_exact_at(&mut front, at).expect("it can be read");
            at += unit;
            let [sector, sectors, flags, mark] = [0, 8, 16, 24].map(|from| word(&front, from));
            let (offset, bytes) = (sector * unit, sectors * unit);
            if flags & MARK != 0 {
                let text = &front[FRONT_BYTES..][..usize::try_from(mark).expect("short")];
                let text = String::from_utf8_lossy(text);
                let at = text.trim_end_matches('\0').parse().map(Duration::from_nanos);
                entries.extend(at.map(Entry::Mark)); // the kernel has marks of its own
                continue;
            }
            if flags & DISCARD != 0 {
                entries.push(Entry::Discard { offset, bytes });
            } else if bytes > 0 {
                entries.push(Entry::Write { offset, bytes, at });
                at += bytes.next_multiple_of(unit);
            }
            if flags & FLUSH != 0 {
                entries.push(Entry::Flush);
            }
        }
        Self { device, entries }
    }

    /// Applies an entry to another device; a discarded range reads as zeroes.
    pub(super) fn apply(&self, entry: &Entry, to: &File) {
        let (offset, content) = match *entry {
            Entry::Write { offset, bytes, at } => {
                let mut content = vec![0; usize::try_from(bytes).expect("a write")];
                self.device.read_exact_at(&mut content, at).expect("it can be read");
                (offset, content)
            }
            Entry::Discard { offset, bytes } => {
                (offset, vec![0; usize::try_from(bytes).expect("a segment")])
            }
            Entry::Flush | Entry::Mark(_) => return,
        };
        to.write_all_at(&content, offset).expect("our own device");
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
