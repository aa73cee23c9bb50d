//! Surprise removal: whether a device that fails has been taken away. The kernel says so in strange
//! ways: commands in flight end with EIO, later reads bring 0 bytes without an error, later writes
//! say ENOSPC. Once it is known to be gone, all of them mean that and nothing else.
//!
//! A namespace that is detached is unknown to its drive before the kernel has heard of it. The
//! drive refuses plain reads and writes then, which no drive does that has the namespace, so they
//! are asked again until the kernel has taken it away or time has shown that it stays.
//!
//! A file that is truncated is gone as well. Writes make it grow again and end well, and what was
//! cut off reads as zeros then, so its length is looked at whenever something ended: a volume's
//! file has a last block that no request reaches, so it never grows to its full length again.

use std::path::Path;
use std::time::{Duration, Instant};

use kvrail_ring::{Opcode, Status};
use rustix::fs::{AtFlags, SeekFrom, StatxFlags, seek, statx};
use rustix::io::Errno;

use crate::controllers::Controllers;
use crate::failure::Cause;
use crate::split::Outcome;
use crate::target::{Kind, Target};

/// How long refusals may come before they mean what they say. A kernel drops a namespace within
/// milliseconds of its drive's notice; clients are promised DEVICE_GONE within a second.
const DOUBT: Duration = Duration::from_millis(500);

/// What is watched to know it.
#[derive(Debug)]
pub(crate) struct Removal {
    gone: Gone,
    /// For NVMe namespaces.
    controllers: Option<Controllers>,
    /// The first and the last refusal of a series.
    refused: Option<(Instant, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    No,
    Yes,
}

impl Removal {
    /// Begins to watch a device that is there.
    pub(crate) fn watch(target: &Target) -> Self {
        let disk = target.queue.as_ref().filter(|_| target.kind == Kind::Block);
        let controllers =
            disk.and_then(|queue| Controllers::of(&Path::new("/sys/block").join(&queue.disk)));
        Self { gone: Gone::No, controllers, refused: None }
    }

    /// What a suspect answer to a request means. Asked for failures and short transfers only.
    #[cold]
    pub(crate) fn judge(
        &mut self,
        target: &Target,
        opcode: Opcode,
        (outcome, cause): (Outcome, Cause),
    ) -> Outcome {
        if self.gone == Gone::No && (has_shrunk(target) || self.are_leaving()) {
            self.gone = Gone::Yes;
        }
        if self.gone == Gone::Yes {
            return Outcome::Failed(Status::DeviceGone);
        }
        if self.is_refusal(opcode, cause) && self.is_in_doubt(Instant::now()) {
            return Outcome::Again;
        }
        outcome
    }

    /// Whether a drive that does not know its namespace would answer like this. The kernel makes
    /// EOPNOTSUPP of what the drive says of block requests. A head that has lost its last path and
    /// is still there fails them with EIO, and commands passed through with EINVAL.
    fn is_refusal(&self, opcode: Opcode, cause: Cause) -> bool {
        let Some(controllers) = &self.controllers else { return false };
        let refused = match cause {
            Cause::Errno(Errno::OPNOTSUPP) => true,
            Cause::Errno(Errno::IO | Errno::INVAL) => controllers.are_paths(),
            Cause::Errno(_) | Cause::Short => false,
            Cause::Nvme(status) => status.may_mean_no_namespace(),
        };
        refused && matches!(opcode, Opcode::Read | Opcode::Write)
    }

    /// Whether a file was truncated since it was opened. Asked after answers were taken and before
    /// anybody hears of them: where it was not, all of them are about whole bytes.
    #[inline]
    pub(crate) fn is_truncated(&mut self, target: &Target) -> bool {
        if target.kind == Kind::File && self.gone == Gone::No && has_shrunk(target) {
            self.gone = Gone::Yes;
        }
        target.kind == Kind::File && self.gone == Gone::Yes
    }

    fn are_leaving(&self) -> bool {
        self.controllers.as_ref().is_some_and(Controllers::are_leaving)
    }

    /// Whether a refusal now belongs to a series that began a moment ago.
    fn is_in_doubt(&mut self, now: Instant) -> bool {
        let series = self.refused.filter(|(_, last)| now.duration_since(*last) < DOUBT);
        let first = series.map_or(now, |(first, _)| first);
        self.refused = Some((first, now));
        now.duration_since(first) < DOUBT
    }
}

/// Whether it has fewer bytes than when it was opened: none, for a device that was removed. Of a
/// file only what the kernel knows by itself is asked, so that no server is waited for.
fn has_shrunk(target: &Target) -> bool {
    let bytes = match target.kind {
        Kind::Block => seek(&target.fd, SeekFrom::End(0)),
        Kind::File => {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            statx(&target.fd, c"", flags, StatxFlags::SIZE).map(|found| found.stx_size)
        }
    };
    bytes.map_or(true, |bytes| bytes < target.capacity_bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use std::time::Instant;

    use kvrail_ring::{Opcode, Status};
    use rustix::io::Errno;

    use super::{DOUBT, Gone, Removal};
    use crate::contract::DirectIo;
    use crate::controllers::Controllers;
    use crate::failure::Cause;
    use crate::split::Outcome;
    use crate::target::Target;
    use crate::uring::NvmeStatus;

    /// A device of 1 MiB, and what is watched of it, with the controller's state in a file.
    fn watched() -> (Target, Removal, tempfile::NamedTempFile) {
        let fd = rustix::fs::memfd_create("target", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
        let target = Target::examine("memory", fd, DirectIo::Off).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"live\n").unwrap();
        let state = Controllers::One(File::open(file.path()).unwrap().into());
        (target, Removal { gone: Gone::No, controllers: Some(state), refused: None }, file)
    }

    /// Commands in flight are cancelled before the device has lost its bytes.
    #[test]
    fn a_failure_of_a_dying_controller_is_its_removal() {
        let (target, mut removal, file) = watched();
        let failed = (Outcome::Failed(Status::IoError), Cause::Errno(Errno::IO));
        assert_eq!(removal.judge(&target, Opcode::Read, failed), failed.0);
        std::fs::write(file.path(), "deleting\n").unwrap();
        let gone = Outcome::Failed(Status::DeviceGone);
        assert_eq!(removal.judge(&target, Opcode::Read, failed), gone);
        let short = (Outcome::Moved(0), Cause::Short);
        assert_eq!(removal.judge(&target, Opcode::Read, short), gone);
    }

    /// The drive speaks before the kernel does: asked again, a request ends as what it is.
    #[test]
    fn a_refused_read_waits_for_the_namespace_to_be_taken_away() {
        let (target, mut removal, file) = watched();
        let unsupported = Outcome::Failed(Status::Unsupported);
        let block = (unsupported, Cause::Errno(Errno::OPNOTSUPP));
        let inactive = NvmeStatus::of_result(0x4002); // invalid field: what drives say of it
        let passed = (inactive.outcome(), Cause::Nvme(inactive));
        for opcode in [Opcode::Read, Opcode::Write] {
            assert_eq!(removal.judge(&target, opcode, block), Outcome::Again);
            assert_eq!(removal.judge(&target, opcode, passed), Outcome::Again);
        }
        assert_eq!(removal.judge(&target, Opcode::Discard, block), unsupported);
        std::fs::write(file.path(), "deleting\n").unwrap();
        let gone = Outcome::Failed(Status::DeviceGone);
        assert_eq!(removal.judge(&target, Opcode::Read, block), gone);
    }

    /// A head without a path says EIO and EINVAL where a plain namespace does not.
    #[test]
    fn a_head_without_a_path_is_asked_again() {
        let (target, mut plain, _) = watched();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("nvme0")).unwrap();
        std::fs::write(directory.path().join("nvme0/state"), "live\n").unwrap();
        let paths = Controllers::Paths(File::open(directory.path()).unwrap().into());
        let mut head = Removal { gone: Gone::No, controllers: Some(paths), refused: None };
        for errno in [Errno::IO, Errno::INVAL] {
            let failed = (Outcome::Failed(Status::IoError), Cause::Errno(errno));
            assert_eq!(plain.judge(&target, Opcode::Read, failed), failed.0);
            assert_eq!(head.judge(&target, Opcode::Read, failed), Outcome::Again);
        }
        std::fs::write(directory.path().join("nvme0/state"), "deleting\n").unwrap();
        let failed = (Outcome::Failed(Status::IoError), Cause::Errno(Errno::IO));
        let gone = Outcome::Failed(Status::DeviceGone);
        assert_eq!(head.judge(&target, Opcode::Read, failed), gone);
    }

    /// What it grows to later is not what it was.
    #[test]
    fn a_file_that_was_truncated_is_gone_for_good() {
        let (target, mut removal, _) = watched();
        assert!(!removal.is_truncated(&target));
        rustix::fs::ftruncate(&target.fd, (1 << 20) - 1).unwrap();
        assert!(removal.is_truncated(&target));
        rustix::fs::ftruncate(&target.fd, 1 << 20).unwrap();
        assert!(removal.is_truncated(&target));
        let short = (Outcome::Moved(0), Cause::Short);
        let gone = Outcome::Failed(Status::DeviceGone);
        assert_eq!(removal.judge(&target, Opcode::Read, short), gone);
    }

    #[test]
    fn refusals_that_go_on_are_believed() {
        let (_, mut removal, _) = watched();
        let start = Instant::now();
        let half = DOUBT / 2;
        assert!(removal.is_in_doubt(start) && removal.is_in_doubt(start + half));
        assert!(!removal.is_in_doubt(start + DOUBT) && !removal.is_in_doubt(start + DOUBT + half));
        // Another series.
        assert!(removal.is_in_doubt(start + DOUBT * 3));
    }
}
