//! The request queue behind a device or a file, from sysfs.

use std::fs;
use std::path::{Path, PathBuf};

use crate::system::read_number;

/// Where the kernel shows block devices by number.
const SYSFS: &str = "/sys/dev/block";

/// Limits of a block device's queue. Fields are `None` where the kernel does not report them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueLimits {
    /// Kernel name of the whole disk, e.g. `nvme0n1`.
    pub(crate) disk: String,
    pub(crate) logical_block: Option<u32>,
    /// Unit of buffer addresses, in bytes.
    pub(crate) memory_alignment: Option<u32>,
    /// Largest request, in bytes, as the administrator set it.
    pub(crate) request_bytes_max: Option<u32>,
    /// Largest request of the hardware (for NVMe: MDTS), in bytes.
    pub(crate) hardware_bytes_max: Option<u32>,
    /// Most memory segments of a request.
    pub(crate) segments_max: Option<u32>,
    pub(crate) polling: Polling,
    pub(crate) cache: Cache,
    /// Largest range to deallocate at once, in bytes; 0 when it cannot.
    pub(crate) discard_bytes_max: u64,
    /// Streams that writes can be placed by (kernel 6.16 and a drive with data placement).
    pub(crate) write_streams: u8,
    /// Whether the number named the whole disk.
    pub(crate) part: DiskPart,
}

/// Whether the device keeps written bytes where the end of power loses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cache {
    /// It does. Durable writes need FUA, or a flush behind them where the device has no FUA.
    Volatile { fua: Fua },
    /// It does not: a write that ended is durable.
    None,
}

/// Whether single writes can be forced to stable media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fua {
    Yes,
    No,
}

/// A disk or a piece of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskPart {
    Whole,
    Partition,
}

/// Whether the queue can be polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polling {
    Yes,
    No,
}

impl QueueLimits {
    /// Of the device with this number; for a partition, of its disk. `None` for numbers without
    /// a block device (tmpfs, btrfs, network file systems).
    pub(crate) fn of(major: u32, minor: u32) -> Option<Self> {
        Self::read(&Path::new(SYSFS).join(format!("{major}:{minor}")))
    }

    pub(crate) fn read(link: &Path) -> Option<Self> {
        let own = fs::canonicalize(link).ok()?;
        let (disk, part) = if own.join("queue").is_dir() {
            (own, DiskPart::Whole)
        } else {
            (own.parent()?.to_path_buf(), DiskPart::Partition)
        };
        let queue: PathBuf = disk.join("queue");
        if !queue.is_dir() {
            return None;
        }
        let number = |name: &str| read_number::<u32>(queue.join(name));
        let bytes = |name: &str| number(name).map(|kib| kib.saturating_mul(1024));
        Some(Self {
            disk: disk.file_name()?.to_str()?.to_owned(),
            logical_block: number("logical_block_size"),
            // The file holds a mask.
            memory_alignment: number("dma_alignment").and_then(|mask| mask.checked_add(1)),
            request_bytes_max: bytes("max_sectors_kb"),
            hardware_bytes_max: bytes("max_hw_sectors_kb"),
            segments_max: number("max_segments").filter(|count| *count > 0),
            polling: if number("io_poll") == Some(1) { Polling::Yes } else { Polling::No },
            cache: cache(&queue),
            discard_bytes_max: read_number(queue.join("discard_max_bytes")).unwrap_or_default(),
            write_streams: read_number(queue.join("max_write_streams")).unwrap_or_default(),
            part,
        })
    }
}

/// Kind of the cache; volatile where the kernel does not report it.
fn cache(queue: &Path) -> Cache {
    let word = fs::read_to_string(queue.join("write_cache")).unwrap_or_default();
    if word.trim() == "write through" {
        return Cache::None;
    }
    let fua = read_number::<u32>(queue.join("fua")) == Some(1);
    Cache::Volatile { fua: if fua { Fua::Yes } else { Fua::No } }
}

impl Cache {
    /// The requirements of durable writes, for people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::None => "no volatile write cache: writes are durable when they end",
            Self::Volatile { fua: Fua::Yes } => "volatile write cache: durable writes by FUA",
            Self::Volatile { fua: Fua::No } => "volatile write cache: durable writes by flush",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Cache, DiskPart, Fua, Polling, QueueLimits};

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
            ("max_hw_sectors_kb", "512\n"),
            ("max_segments", "127\n"),
            ("write_cache", "write back\n"),
            ("fua", "1\n"),
            ("discard_max_bytes", "2199023255040\n"),
            ("max_write_streams", "4\n"),
            ("io_poll", "1\n"),
        ] {
            fs::write(disk.join("queue").join(file), value).unwrap();
        }
        let queue = QueueLimits::read(&disk.join("nvme7n1p2")).unwrap();
        let expected = QueueLimits {
            disk: "nvme7n1".into(),
            logical_block: Some(4096),
            memory_alignment: Some(4),
            request_bytes_max: Some(131_072),
            segments_max: Some(127),
            hardware_bytes_max: Some(524_288),
            polling: Polling::Yes,
            cache: Cache::Volatile { fua: Fua::Yes },
            discard_bytes_max: 2_199_023_255_040,
            write_streams: 4,
            part: DiskPart::Partition,
        };
        assert_eq!(queue, expected);
        assert_eq!(
            QueueLimits::read(&disk),
            Some(QueueLimits { part: DiskPart::Whole, ..expected })
        );
        fs::write(disk.join("queue/write_cache"), "write through\n").unwrap();
        assert_eq!(QueueLimits::read(&disk).unwrap().cache, Cache::None);
    }

    #[test]
    fn what_has_no_queue_says_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(QueueLimits::read(&root.path().join("0:42")), None);
    }
}
