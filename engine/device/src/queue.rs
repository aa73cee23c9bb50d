//! What sysfs says about the request queue behind a device or a file.

use std::fs;
use std::path::{Path, PathBuf};

use crate::system::read_number;

/// Where the kernel shows block devices by number.
const SYSFS: &str = "/sys/dev/block";

/// Limits of a block device's queue. Fields are `None` where the kernel does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    /// Kernel name of the whole disk, e.g. `nvme0n1`.
    pub(crate) disk: String,
    pub(crate) logical_block: Option<u32>,
    /// Unit of buffer addresses, in bytes.
    pub(crate) memory_alignment: Option<u32>,
    /// Largest request, in bytes.
    pub(crate) request_bytes_max: Option<u32>,
    /// Most memory segments of a request.
    pub(crate) segments_max: Option<u32>,
    pub(crate) polling: Polling,
}

/// Whether the queue can be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polling {
    Yes,
    No,
}

impl Queue {
    /// Of the device with this number; for a partition, of its disk. `None` for numbers without
    /// a block device (tmpfs, btrfs, network file systems).
    pub(crate) fn of(major: u32, minor: u32) -> Option<Self> {
        Self::read(&Path::new(SYSFS).join(format!("{major}:{minor}")))
    }

    fn read(link: &Path) -> Option<Self> {
        let own = fs::canonicalize(link).ok()?;
        let disk = if own.join("queue").is_dir() { own } else { own.parent()?.to_path_buf() };
        let queue: PathBuf = disk.join("queue");
        if !queue.is_dir() {
            return None;
        }
        let number = |name: &str| read_number::<u32>(queue.join(name));
        Some(Self {
            disk: disk.file_name()?.to_str()?.to_owned(),
            logical_block: number("logical_block_size"),
            // The file holds a mask.
            memory_alignment: number("dma_alignment").and_then(|mask| mask.checked_add(1)),
            request_bytes_max: number("max_sectors_kb").map(|kib| kib.saturating_mul(1024)),
            segments_max: number("max_segments").filter(|count| *count > 0),
            polling: if number("io_poll") == Some(1) { Polling::Yes } else { Polling::No },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Polling, Queue};

    #[test]
    fn a_partition_has_the_queue_of_its_disk() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("nvme7n1");
        fs::create_dir_all(disk.join("queue")).unwrap();
        fs::create_dir_all(disk.join("nvme7n1p2")).unwrap();
        for (file, value) in [
            ("logical_block_size", "4096\n"),
            ("dma_alignment", "3\n"),
            ("max_sectors_kb", "128\n"),
            ("max_segments", "127\n"),
            ("io_poll", "1\n"),
        ] {
            fs::write(disk.join("queue").join(file), value).unwrap();
        }
        let queue = Queue::read(&disk.join("nvme7n1p2")).unwrap();
        let expected = Queue {
            disk: "nvme7n1".into(),
            logical_block: Some(4096),
            memory_alignment: Some(4),
            request_bytes_max: Some(131_072),
            segments_max: Some(127),
            polling: Polling::Yes,
        };
        assert_eq!(queue, expected);
        assert_eq!(Queue::read(&disk), Some(expected));
    }

    #[test]
    fn what_has_no_queue_says_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Queue::read(&root.path().join("0:42")), None);
    }
}
