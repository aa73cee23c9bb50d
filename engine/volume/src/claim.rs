//! A claim: a member opened exclusively, for as long as the value (or a duplicate of its
//! descriptor) lives.
//!
//! Block devices are opened O_EXCL: the kernel refuses while anything holds the device or one of
//! its partitions (mount, swap, md, device mapper, another claim). Files are locked with flock,
//! which holds between kvrail processes; uses the lock cannot see (swap, loop) are looked up, and
//! files that a member rests on are held as well (`beneath`).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, SeekFrom, fcntl_getfl, fcntl_setfl, flock, fstat,
    fsync, ftruncate, open, seek, stat,
};
use rustix::io::Errno;

use crate::alignment::{Alignment, IoPath, MemberKind};
use crate::beneath;
use crate::bytes::{AlignedBytes, read_at, write_at};
use crate::content::{Content, judge};
use crate::error::{Reason, VolumeError};
use crate::identity::FileIdentity;
use crate::kernel::Kernel;
use crate::label::COPY_BYTES;
use crate::patience::{outlive_loops, outlive_the_dead};
use crate::signature::{HEAD_BYTES, TAIL_BYTES};

/// How O_DIRECT is to be treated. The same three words as the device room's, which this room does
/// not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectIo {
    /// Members without it are refused.
    #[default]
    Required,
    /// Used where the file system has it; `Claim::io` has the result.
    Optional,
    /// Through the page cache.
    Off,
}

/// Exclusive ownership of a member.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    fd: OwnedFd,
    /// Shared locks of the files below it.
    beneath: Arc<Vec<OwnedFd>>,
    kind: MemberKind,
    bytes: u64,
    /// The requested mode, and the mode in use.
    direct: DirectIo,
    io: IoPath,
    alignment: Alignment,
    /// Bytes of the blocks that the kernel promises to take, where smaller ones were tried.
    promised: Option<u32>,
}

impl Claim {
    /// Opens a block device or an existing file for reading and writing, for us alone.
    ///
    /// # Errors
    /// `Reason::Busy` names the holders; `Partition`, `Partitioned`, `ReadOnly`, `NotStorage`,
    /// `UserSpace`, `NoDirect` and `Open` name other obstacles.
    pub fn open(path: &Path, direct: DirectIo) -> Result<Self, VolumeError> {
        Self::open_with(&Kernel::default(), path, direct)
    }

    pub(crate) fn open_with(
        kernel: &Kernel,
        path: &Path,
        direct: DirectIo,
    ) -> Result<Self, VolumeError> {
        let refuse = |reason| VolumeError::at(path, reason);
        let identity = classify(path).map_err(refuse)?;
        let kind = match identity {
            FileIdentity::Block { .. } => MemberKind::Block,
            FileIdentity::File { .. } => MemberKind::File,
        };
        // Before it is opened: such a file system may not answer.
        kernel.check_user_space(identity, path).map_err(refuse)?;
        if let FileIdentity::Block { device } = identity {
            check_kind(kernel, device).map_err(refuse)?;
        }
        let attempt = || open_exclusively(path, kind, direct);
        let (fd, io) = outlive_the_dead(kernel, identity, attempt).map_err(refuse)?;
        // The path may have led elsewhere a moment ago.
        if identify(&fd).map_err(refuse)? != identity {
            return Err(refuse(Reason::Open { errno: Errno::STALE }));
        }
        check_uses(kernel, &fd, identity).map_err(refuse)?;
        let beneath = Arc::new(beneath::hold(kernel, identity).map_err(refuse)?);
        let bytes = seek(&fd, SeekFrom::End(0))
            .map_err(|errno| refuse(Reason::Io { step: "finding its size", errno }))?;
        let alignment = Alignment::probe(kernel, &fd, kind, io);
        let path = path.to_owned();
        Ok(Self { path, fd, beneath, kind, bytes, direct, io, alignment, promised: None })
    }

    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Block device or file.
    #[must_use]
    pub fn kind(&self) -> MemberKind {
        self.kind
    }

    /// Its length in bytes when it was claimed or last resized by us.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The mode in use: O_DIRECT or not.
    #[must_use]
    pub fn io(&self) -> IoPath {
        self.io
    }

    /// Its requirements on offsets and buffers.
    #[must_use]
    pub fn alignment(&self) -> Alignment {
        self.alignment
    }

    /// Bytes of the blocks that the kernel promises to take with O_DIRECT, where the volume has
    /// smaller ones and they were tried.
    #[must_use]
    pub fn promised_block(&self) -> Option<u32> {
        self.promised
    }

    /// Makes a file take a volume's blocks where the kernel promises larger ones only. The extents
    /// of a file on XFS are shared when it is copied by reflink, which `cp` does by itself; from
    /// then on whole blocks of the file system are promised, and smaller ones taken all the same.
    /// So one is tried: its bytes are written again. Where the kernel takes none, a file whose
    /// O_DIRECT is optional is read and written through the page cache.
    pub(crate) fn take_blocks(&mut self, block: u32) -> Result<(), VolumeError> {
        let larger = self.alignment.logical_block;
        if self.kind == MemberKind::Block || self.io == IoPath::Buffered || block >= larger {
            return Ok(());
        }
        if takes_block(&self.fd, block).map_err(|errno| self.failed("trying a block", errno))? {
            self.alignment.logical_block = block;
            self.promised = Some(larger);
        } else if self.direct == DirectIo::Optional {
            let plain = turn_direct_off(&self.fd);
            plain.map_err(|errno| self.failed("turning O_DIRECT off", errno))?;
            (self.io, self.alignment) = (IoPath::Buffered, Alignment::BUFFERED);
        }
        Ok(())
    }

    /// Whether it is a file without a name: it is deleted at its last close.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.kind == MemberKind::File && fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    /// Another descriptor of the same open file description: the claim holds until all are closed.
    ///
    /// # Errors
    /// `Reason::Io` when the process has no descriptors left.
    pub fn duplicate(&self) -> Result<OwnedFd, VolumeError> {
        rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
            .map_err(|errno| self.failed("duplicating its descriptor", errno))
    }

    /// The same claim with today's length, if the path still leads to what is claimed.
    pub(crate) fn still_at(&self, path: &Path) -> Result<Option<Self>, VolumeError> {
        let there = classify(path).map_err(|reason| VolumeError::at(path, reason))?;
        let here = identify(&self.fd).map_err(|reason| VolumeError::at(path, reason))?;
        if there != here {
            return Ok(None);
        }
        let fd = self.duplicate()?;
        let bytes = seek(&fd, SeekFrom::End(0));
        let bytes = bytes.map_err(|errno| self.failed("finding its size", errno))?;
        let beneath = Arc::clone(&self.beneath);
        Ok(Some(Self { path: path.to_owned(), fd, beneath, bytes, ..*self }))
    }

    /// Makes a file longer.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), VolumeError> {
        let grown = ftruncate(&self.fd, bytes).and_then(|()| fsync(&self.fd));
        grown.map_err(|errno| self.failed("making it longer by a block", errno))?;
        self.bytes = bytes;
        Ok(())
    }

    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    pub(crate) fn failed(&self, step: &'static str, errno: Errno) -> VolumeError {
        VolumeError::at(&self.path, Reason::Io { step, errno })
    }

    /// Reads and judges what is on it.
    pub(crate) fn content(&self) -> Result<Content, VolumeError> {
        read_content(&self.fd, self.bytes).map_err(|errno| self.failed("reading its label", errno))
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Reads a member's first and last bytes and judges them.
pub(crate) fn read_content(fd: impl AsFd, bytes: u64) -> Result<Content, Errno> {
    let mut head = AlignedBytes::zeroed(HEAD_BYTES);
    let head_bytes = read_at(&fd, &mut head, 0)?;
    // From a page border on, so that it may be read with O_DIRECT; one page more to reach the end.
    let tail_at = bytes.saturating_sub(TAIL_BYTES as u64) & !4095;
    let mut tail = AlignedBytes::zeroed(TAIL_BYTES + 4096);
    let tail_bytes = read_at(&fd, &mut tail, tail_at)?;
    Ok(judge(&head[..head_bytes], &tail[..tail_bytes], bytes))
}

pub(crate) fn classify(path: &Path) -> Result<FileIdentity, Reason> {
    let stat = stat(path).map_err(|errno| Reason::Open { errno })?;
    identity(&stat)
}

fn identify(fd: &OwnedFd) -> Result<FileIdentity, Reason> {
    let stat = fstat(fd).map_err(|errno| Reason::Open { errno })?;
    identity(&stat)
}

fn identity(stat: &rustix::fs::Stat) -> Result<FileIdentity, Reason> {
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => return Ok(FileIdentity::Block { device: stat.st_rdev }),
        FileType::RegularFile => {
            return Ok(FileIdentity::File { device: stat.st_dev, inode: stat.st_ino });
        }
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "neither a block device nor a regular file",
    };
    Err(Reason::NotStorage { what })
}

fn open_exclusively(
    path: &Path,
    kind: MemberKind,
    direct: DirectIo,
) -> Result<(OwnedFd, IoPath), Reason> {
    let base = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    let base = if kind == MemberKind::Block { base | OFlags::EXCL } else { base };
    let buffered = || (open(path, base, Mode::empty()), IoPath::Buffered);
    let (result, io) = match direct {
        DirectIo::Off => buffered(),
        _ => match open(path, base | OFlags::DIRECT, Mode::empty()) {
            Err(Errno::INVAL) if direct == DirectIo::Optional => buffered(),
            other => (other, IoPath::Direct),
        },
    };
    let fd = result.map_err(|errno| match errno {
        Errno::BUSY | Errno::TXTBSY => Reason::Busy { holders: Vec::new() },
        Errno::ROFS if kind == MemberKind::File => Reason::ReadOnlyMount,
        Errno::ROFS => Reason::ReadOnly,
        Errno::INVAL if io == IoPath::Direct => Reason::NoDirect { errno },
        errno => Reason::Open { errno },
    })?;
    if kind == MemberKind::File {
        flock(&fd, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::WOULDBLOCK => Reason::Busy { holders: Vec::new() },
            errno => Reason::Io { step: "locking it", errno },
        })?;
    }
    let io = really_direct(&fd, io, direct)?;
    Ok((fd, io))
}

/// Obstacles of a device that do not depend on its holders.
fn check_kind(kernel: &Kernel, device: u64) -> Result<(), Reason> {
    if let Some(namespace) = kernel.namespace_around(device) {
        return Err(Reason::Partition { namespace });
    }
    if kernel.is_read_only(device) {
        return Err(Reason::ReadOnly);
    }
    match kernel.metadata_bytes(device) {
        0 => Ok(()),
        bytes => Err(Reason::Metadata { bytes }),
    }
}

/// Some files open with O_DIRECT and are read through the page cache all the same (encrypted ones,
/// ext4 with a data journal): statx reports an alignment of 0 for them.
fn really_direct(fd: &OwnedFd, io: IoPath, direct: DirectIo) -> Result<IoPath, Reason> {
    if io == IoPath::Buffered || Alignment::is_direct_possible(fd) {
        return Ok(io);
    }
    if direct == DirectIo::Required {
        return Err(Reason::NoDirect { errno: Errno::OPNOTSUPP });
    }
    let step = "turning O_DIRECT off";
    turn_direct_off(fd).map(|()| IoPath::Buffered).map_err(|errno| Reason::Io { step, errno })
}

fn turn_direct_off(fd: &OwnedFd) -> Result<(), Errno> {
    fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags & !OFlags::DIRECT))
}

/// Whether the kernel takes a block of that many bytes: one behind the label is read and written as
/// it is. A drive that refuses writes for another reason refuses no size.
fn takes_block(fd: &OwnedFd, block: u32) -> Result<bool, Errno> {
    let mut bytes = AlignedBytes::zeroed(block as usize);
    let at = COPY_BYTES as u64 + u64::from(block);
    match read_at(fd, &mut bytes, at) {
        Ok(read) if read == bytes.len() => {}
        Ok(_) | Err(Errno::INVAL) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    Ok(write_at(fd, &bytes, at) != Err(Errno::INVAL))
}

/// Uses that the exclusive open does not refuse by itself.
fn check_uses(kernel: &Kernel, fd: &OwnedFd, identity: FileIdentity) -> Result<(), Reason> {
    match identity {
        FileIdentity::Block { device } => {
            let partitions = kernel.partitions(device);
            if !partitions.is_empty() {
                let partitions = partitions.into_iter().map(|part| part.name).collect();
                return Err(Reason::Partitioned { partitions });
            }
        }
        FileIdentity::File { .. } => {
            outlive_loops(kernel, || match kernel.silent_holders(identity) {
                holders if holders.is_empty() => Ok(()),
                holders => Err(Reason::Busy { holders }),
            })?;
            check_linked(fd)?;
        }
    }
    Ok(())
}

/// A file removed while we waited for nothing: its bytes would vanish with the descriptor.
fn check_linked(fd: &OwnedFd) -> Result<(), Reason> {
    let stat = fstat(fd).map_err(|errno| Reason::Open { errno })?;
    if stat.st_nlink == 0 {
        return Err(Reason::Open { errno: Errno::NOENT });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Claim, DirectIo};
    use crate::alignment::IoPath;

    /// A file of which the kernel promises whole blocks of 4 KiB only.
    fn promised(direct: DirectIo) -> (tempfile::NamedTempFile, Claim) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..1 << 16).map(|at: u32| at.to_le_bytes()[0]).collect();
        fs::write(file.path(), bytes).unwrap();
        let mut claim = Claim::open(file.path(), direct).unwrap();
        claim.alignment.logical_block = 4096;
        (file, claim)
    }

    #[test]
    fn smaller_blocks_than_the_kernel_promises_are_taken_where_they_work() {
        for direct in [DirectIo::Required, DirectIo::Optional] {
            let (file, mut claim) = promised(direct);
            let before = fs::read(file.path()).unwrap();
            claim.take_blocks(512).unwrap();
            assert_eq!((claim.io(), claim.alignment().logical_block), (IoPath::Direct, 512));
            assert_eq!(claim.promised_block(), Some(4096));
            assert!(fs::read(file.path()).unwrap() == before, "no byte is another one");
        }
    }

    #[test]
    fn blocks_that_the_kernel_refuses_go_through_the_page_cache_or_are_refused() {
        let (_file, mut claim) = promised(DirectIo::Required);
        claim.take_blocks(100).unwrap();
        assert_eq!((claim.io(), claim.alignment().logical_block), (IoPath::Direct, 4096));
        let (_file, mut claim) = promised(DirectIo::Optional);
        claim.take_blocks(100).unwrap();
        assert_eq!((claim.io(), claim.alignment().logical_block), (IoPath::Buffered, 512));
        assert_eq!(claim.promised_block(), None);
    }
}
