//! The file or block device behind a ring: what it is, how it must be addressed, whether it is
//! still there.

use std::num::NonZeroU8;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawMode, SeekFrom, Statx, StatxFlags, fcntl_getfl,
    fcntl_setfl, open, seek, statx,
};
use rustix::io::Errno;

use crate::contract::DirectIo;
use crate::error::DeviceError;
use crate::queue::{Cache, DiskPart, Fua, QueueLimits};
use crate::system::kernel_version;

/// Unit of buffered I/O as we do it, and the smallest block there is.
const SECTOR: u32 = 512;

/// Alignment assumed where neither statx nor sysfs has one: one page suits every device there is.
const CAREFUL: u32 = 4096;

/// Largest piece where no limit is known.
const TRANSFER_BYTES_DEFAULT: u32 = 1 << 20;

/// Largest piece in any case: the kernel takes no more than 2 GiB less a page in one call.
const TRANSFER_BYTES_CEILING: u32 = 1 << 30;

/// The kind of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    File,
    Block,
}

/// How it is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Io {
    Direct,
    Buffered,
}

/// The first kernel with a discard that does not block its ring.
const DISCARD_KERNEL: (u32, u32) = (6, 12);

/// How a range is given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DiscardMethod {
    /// The kernel's discard command; for NVMe it becomes Dataset Management, deallocate.
    Deallocate,
    /// A hole, which files have, and old kernels make of zeroes on block devices.
    #[default]
    PunchHole,
}

/// A write stream: the drive keeps what is written under one number apart from other data, so that
/// deleting it together costs the drive no copying. Counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriveStream(pub(crate) NonZeroU8);

/// Which stream all writes of a device go by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteStream {
    /// None: the drive mixes them with all other unnamed writes.
    #[default]
    Unnamed,
    /// This one; the drive must have it.
    Number(NonZeroU8),
    /// A stream apart from the default, where the drive has several: the last. The first is used by
    /// writes without a stream.
    Apart,
}

/// An opened file or block device.
#[derive(Debug)]
pub struct Target {
    pub(crate) path: String,
    pub(crate) fd: OwnedFd,
    pub(crate) kind: FileKind,
    pub(crate) io: Io,
    pub(crate) capacity_bytes: u64,
    /// Unit of offsets and lengths.
    pub(crate) logical_block: u32,
    /// Unit of buffer addresses. Not below `logical_block`, so that a piece that ends at a table
    /// entry's border is whole blocks.
    pub(crate) memory_alignment: u32,
    pub(crate) queue: Option<QueueLimits>,
}

/// Opens a path for a ring: read, write, and O_DIRECT by `direct`. For embedded files and tools;
/// the volume crate opens devices itself (exclusively).
///
/// # Errors
/// `DeviceError::Open` with the kernel's reason.
pub fn open_path(path: &str, direct: DirectIo) -> Result<OwnedFd, DeviceError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let flags = if direct == DirectIo::Required { flags | OFlags::DIRECT } else { flags };
    open(path, flags, Mode::empty()).map_err(|errno| {
        let remedy = match errno {
            Errno::NOENT => "create it (kvrail volume create) or correct the path",
            Errno::ACCESS | Errno::PERM => "give this user read and write permission on it",
            Errno::INVAL => "its file system has no O_DIRECT: move it or set direct = \"optional\"",
            Errno::ISDIR => "name a file or a block device",
            _ => "see errno(3)",
        };
        DeviceError::Open { path: path.into(), errno, remedy: remedy.into() }
    })
}

impl Target {
    /// Finds out about an open descriptor and sets or clears O_DIRECT on it.
    pub(crate) fn examine(path: &str, fd: OwnedFd, direct: DirectIo) -> Result<Self, DeviceError> {
        Self::examine_in(path, fd, direct, None)
    }

    /// The same for one whose opener has tried units that the kernel does not promise: a file of
    /// which extents are shared (a copy by reflink) takes them, and promises whole blocks only.
    pub(crate) fn examine_in(
        path: &str,
        fd: OwnedFd,
        direct: DirectIo,
        tried: Option<u32>,
    ) -> Result<Self, DeviceError> {
        let failed = |errno| DeviceError::Open {
            path: path.into(),
            errno,
            remedy: "the open descriptor cannot be examined".into(),
        };
        let mask = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        let stat = statx(&fd, "", AtFlags::EMPTY_PATH, mask).map_err(failed)?;
        let flags = fcntl_getfl(&fd).map_err(failed)?;
        if flags & OFlags::RWMODE != OFlags::RDWR {
            return Err(DeviceError::unfit(
                path,
                "is not open for reading and writing",
                "open it O_RDWR",
            ));
        }
        let kind = kind_of(path, &stat)?;
        let queue = match kind {
            FileKind::Block => QueueLimits::of(stat.stx_rdev_major, stat.stx_rdev_minor),
            FileKind::File => QueueLimits::of(stat.stx_dev_major, stat.stx_dev_minor),
        };
        let io = choose_io(path, &fd, &stat, direct)?;
        let (promised, memory_alignment) = alignment(&stat, queue.as_ref(), io);
        let tried = tried.filter(|_| kind == FileKind::File);
        let logical_block = tried.map_or(promised, |tried| promised.min(tried.max(SECTOR)));
        let capacity_bytes = seek(&fd, SeekFrom::End(0)).map_err(failed)?;
        if capacity_bytes < u64::from(logical_block) {
            let what = format!("has {capacity_bytes} bytes, less than one block");
            return Err(DeviceError::unfit(path, &what, "give it its full size first"));
        }
        let path = path.to_owned();
        Ok(Self { path, fd, kind, io, capacity_bytes, logical_block, memory_alignment, queue })
    }

    /// The descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Largest piece to hand over: the queue's limit where it is known, rounded down to blocks.
    pub(crate) fn transfer_bytes_max(&self) -> u32 {
        let known = self.queue.as_ref().and_then(|queue| queue.request_bytes_max);
        let most = known.unwrap_or(TRANSFER_BYTES_DEFAULT).min(TRANSFER_BYTES_CEILING);
        (most - most % self.logical_block).max(self.logical_block)
    }

    /// Bytes of as many pages as a request can have segments. The block layer splits what has
    /// more, and then nothing polls it; commands passed through are refused.
    pub(crate) fn paged_bytes_max(&self) -> u32 {
        let segments = self.queue.as_ref().and_then(|queue| queue.segments_max);
        let most = segments.map_or(u32::MAX, |segments| segments.saturating_mul(4096));
        (most - most % self.logical_block).max(self.logical_block).max(4096)
    }

    /// How a range is given back to the device.
    pub(crate) fn discard(&self) -> DiscardMethod {
        let able = self.queue.as_ref().is_some_and(|queue| queue.discard_bytes_max > 0);
        if self.kind == FileKind::Block && able && kernel_version() >= Some(DISCARD_KERNEL) {
            DiscardMethod::Deallocate
        } else {
            DiscardMethod::PunchHole
        }
    }

    /// Streams that there are. A partition has none: the kernel refuses them there.
    pub(crate) fn streams(&self) -> u8 {
        let whole = self.queue.as_ref().filter(|queue| queue.part == DiskPart::Whole);
        whole.map_or(0, |queue| queue.write_streams)
    }

    /// The stream that is meant, if writes can be placed by it.
    ///
    /// # Errors
    /// `Unfit` with the number of streams there are.
    pub(crate) fn stream(&self, wanted: WriteStream) -> Result<Option<DriveStream>, DeviceError> {
        let there = self.streams();
        match wanted {
            WriteStream::Unnamed => Ok(None),
            WriteStream::Apart => {
                Ok(NonZeroU8::new(there).filter(|number| number.get() > 1).map(DriveStream))
            }
            WriteStream::Number(number) if number.get() <= there => Ok(Some(DriveStream(number))),
            WriteStream::Number(number) => {
                let what = format!("has {there} write streams and write_stream is {number}");
                let remedy = "set write_stream = \"auto\" or 0, or use a drive with data placement \
                              (FDP) enabled and kernel 6.16 or later";
                Err(DeviceError::unfit(&self.path, &what, remedy))
            }
        }
    }

    /// The requirements of a durable write here.
    pub(crate) fn cache(&self) -> Cache {
        let known = self.queue.as_ref().map(|queue| queue.cache);
        known.unwrap_or(Cache::Volatile { fua: Fua::No })
    }
}

fn kind_of(path: &str, stat: &Statx) -> Result<FileKind, DeviceError> {
    match FileType::from_raw_mode(RawMode::from(stat.stx_mode)) {
        FileType::RegularFile => Ok(FileKind::File),
        FileType::BlockDevice => Ok(FileKind::Block),
        FileType::CharacterDevice if is_generic_nvme(stat) => {
            let what = "is the character device of an NVMe namespace";
            let remedy = "name its block device (/dev/nvme0n1 for /dev/ng0n1), which holds the \
                          claim; mode passthrough finds the character device by itself";
            Err(DeviceError::unfit(path, what, remedy))
        }
        other => {
            let what = format!("is neither a file nor a block device ({other:?})");
            Err(DeviceError::unfit(path, &what, "name a file or a block device"))
        }
    }
}

fn is_generic_nvme(stat: &Statx) -> bool {
    let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
    let link = std::fs::canonicalize(format!("/sys/dev/char/{major}:{minor}"));
    link.is_ok_and(|link| link.parent().is_some_and(|home| home.ends_with("nvme-generic")))
}

/// Sets or clears O_DIRECT, as far as the file system has it.
fn choose_io(path: &str, fd: &OwnedFd, stat: &Statx, direct: DirectIo) -> Result<Io, DeviceError> {
    let refused = |errno| DeviceError::Open {
        path: path.into(),
        errno,
        remedy: "its file system has no O_DIRECT: move it or set direct = \"optional\"".into(),
    };
    let flags = fcntl_getfl(fd).map_err(refused)?;
    // An alignment of 0 means that this file cannot be read directly (encrypted, data journal).
    let hopeless = has_alignment(stat) && stat.stx_dio_offset_align == 0;
    let wanted = direct != DirectIo::Off && !(hopeless && direct == DirectIo::Optional);
    if hopeless && wanted {
        let what = "cannot be read with O_DIRECT (statx reports this of its file system)";
        return Err(DeviceError::unfit(path, what, "move it, or set direct = \"optional\""));
    }
    if wanted {
        match fcntl_setfl(fd, flags | OFlags::DIRECT) {
            Ok(()) => return Ok(Io::Direct),
            Err(Errno::INVAL) if direct == DirectIo::Optional => {}
            Err(errno) => return Err(refused(errno)),
        }
    }
    fcntl_setfl(fd, flags & !OFlags::DIRECT).map_err(refused)?;
    Ok(Io::Buffered)
}

fn has_alignment(stat: &Statx) -> bool {
    stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
}

/// Units of offsets and of buffer addresses: from statx where it has them (kernel 6.1 and later,
/// most file systems), else from the queue, else a page.
fn alignment(stat: &Statx, queue: Option<&QueueLimits>, io: Io) -> (u32, u32) {
    if io == Io::Buffered {
        return (SECTOR, SECTOR);
    }
    let (offset, memory) = if has_alignment(stat) {
        (stat.stx_dio_offset_align, stat.stx_dio_mem_align)
    } else {
        let offset = queue.and_then(|queue| queue.logical_block).unwrap_or(CAREFUL);
        let memory = queue.and_then(|queue| queue.memory_alignment).unwrap_or(CAREFUL);
        (offset, memory)
    };
    let offset = offset.max(SECTOR);
    (offset, memory.max(offset))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;

    use super::{DriveStream, FileKind, Io, Target, WriteStream, open_path};
    use crate::contract::DirectIo;
    use crate::queue::{Cache, DiskPart, Polling, QueueLimits};

    fn memfd(bytes: u64) -> std::os::fd::OwnedFd {
        let fd = rustix::fs::memfd_create("target", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, bytes).unwrap();
        fd
    }

    #[test]
    fn a_buffered_file_has_sector_units_and_its_size() {
        let target = Target::examine("memory", memfd(1 << 20), DirectIo::Off).unwrap();
        assert_eq!((target.kind, target.io), (FileKind::File, Io::Buffered));
        assert_eq!((target.logical_block, target.memory_alignment), (512, 512));
        assert_eq!(target.capacity_bytes, 1 << 20);
    }

    /// A target whose drive has `write_streams` streams.
    fn with_streams(write_streams: u8) -> Target {
        let target = Target::examine("memory", memfd(1 << 20), DirectIo::Off).unwrap();
        let queue = QueueLimits {
            disk: "nvme0n1".into(),
            logical_block: None,
            memory_alignment: None,
            request_bytes_max: None,
            hardware_bytes_max: None,
            segments_max: None,
            polling: Polling::No,
            cache: Cache::None,
            discard_bytes_max: 0,
            write_streams,
            part: DiskPart::Whole,
        };
        Target { queue: Some(queue), ..target }
    }

    #[test]
    fn a_stream_apart_is_never_that_of_writes_which_name_none() {
        let stream = |number| NonZeroU8::new(number).map(DriveStream);
        for (there, apart) in [(0, 0), (1, 0), (2, 2), (8, 8)] {
            let target = with_streams(there);
            assert_eq!(target.stream(WriteStream::Apart).unwrap(), stream(apart), "{there}");
            assert_eq!(target.stream(WriteStream::Unnamed).unwrap(), None);
        }
        let [second, third] =
            [2, 3].map(|number| WriteStream::Number(NonZeroU8::new(number).unwrap()));
        assert_eq!(with_streams(2).stream(second).unwrap(), stream(2));
        let refused = with_streams(2).stream(third).unwrap_err().to_string();
        assert!(refused.contains("has 2 write streams and write_stream is 3"), "{refused}");
    }

    #[test]
    fn each_thing_that_is_no_device_is_named() {
        let null = open_path("/dev/null", DirectIo::Off).unwrap();
        let error = Target::examine("/dev/null", null, DirectIo::Off).unwrap_err().to_string();
        assert!(error.contains("neither a file nor a block device"), "{error}");
        let error = Target::examine("empty", memfd(0), DirectIo::Off).unwrap_err().to_string();
        assert!(error.contains("0 bytes"), "{error}");
        let error = open_path("/nonexistent/x", DirectIo::Off).unwrap_err().to_string();
        assert!(error.contains("kvrail volume create"), "{error}");
        let error = open_path("/", DirectIo::Off).unwrap_err().to_string();
        assert!(error.contains("name a file"), "{error}");
        let read_only = std::fs::File::open("/proc/self/exe").unwrap();
        let error = Target::examine("exe", read_only.into(), DirectIo::Off).unwrap_err();
        assert!(error.to_string().contains("O_RDWR"), "{error}");
    }
}
