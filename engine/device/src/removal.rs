//! Surprise removal: whether a device that fails has been taken away. The kernel says so in strange
//! ways: commands in flight end with EIO, later reads bring 0 bytes without an error, later writes
//! say ENOSPC. Once it is known to be gone, all of them mean that and nothing else.
//!
//! A namespace that is detached is unknown to its drive before the kernel has heard of it. The
//! drive refuses plain reads and writes then, which no drive does that has the namespace, so they
//! are asked again until the kernel has taken it away or time has shown that it stays.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use kvrail_ring::{Opcode, Status};
use rustix::fs::{SeekFrom, seek};
use rustix::io::{Errno, pread};

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
    /// The NVMe controller's state in sysfs, kept open: it changes before commands in flight are
    /// cancelled, and cannot be read once the controller is gone.
    state: Option<OwnedFd>,
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
        let state = disk.and_then(|queue| {
            let path = Path::new("/sys/block").join(&queue.disk).join("device/state");
            File::open(path).ok().filter(|_| queue.disk.starts_with("nvme"))
        });
        Self { gone: Gone::No, state: state.map(OwnedFd::from), refused: None }
    }

    /// What a suspect answer to a request means. Asked for failures and short transfers only.
    #[cold]
    pub(crate) fn judge(
        &mut self,
        target: &Target,
        opcode: Opcode,
        (outcome, cause): (Outcome, Cause),
    ) -> Outcome {
        if self.gone == Gone::No && (has_shrunk(target) || self.is_leaving()) {
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
    /// EOPNOTSUPP of what the drive says of block requests.
    fn is_refusal(&self, opcode: Opcode, cause: Cause) -> bool {
        let refused = match cause {
            Cause::Errno(errno) => errno == Errno::OPNOTSUPP,
            Cause::Nvme(status) => status.may_mean_no_namespace(),
            Cause::Short => false,
        };
        refused && self.state.is_some() && matches!(opcode, Opcode::Read | Opcode::Write)
    }

    /// Whether a refusal now belongs to a series that began a moment ago.
    fn is_in_doubt(&mut self, now: Instant) -> bool {
        let series = self.refused.filter(|(_, last)| now.duration_since(*last) < DOUBT);
        let first = series.map_or(now, |(first, _)| first);
        self.refused = Some((first, now));
        now.duration_since(first) < DOUBT
    }

    /// Whether the controller is on its way out. One that is reset or reconnects comes back.
    fn is_leaving(&self) -> bool {
        let Some(state) = &self.state else { return false };
        let mut word = [0; 32];
        match pread(state, &mut word, 0) {
            Ok(length) => is_final(&word[..length]),
            Err(_) => true,
        }
    }
}

/// States of the kernel's driver that have no way back: `dead`, `deleting`, `deleting (no IO)`.
fn is_final(state: &[u8]) -> bool {
    state.starts_with(b"de")
}

/// Whether a block device has fewer bytes than when it was opened: none, when it was removed.
fn has_shrunk(target: &Target) -> bool {
    target.kind == Kind::Block
        && match seek(&target.fd, SeekFrom::End(0)) {
            Ok(bytes) => bytes < target.capacity_bytes,
            Err(_) => true,
        }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use std::time::Instant;

    use kvrail_ring::{Opcode, Status};
    use rustix::io::Errno;

    use super::{DOUBT, Gone, Removal, is_final};
    use crate::contract::DirectIo;
    use crate::failure::Cause;
    use crate::split::Outcome;
    use crate::target::Target;
    use crate::uring::NvmeStatus;

    #[test]
    fn states_without_a_way_back_are_told_from_others() {
        for state in ["dead\n", "deleting\n", "deleting (no IO)\n"] {
            assert!(is_final(state.as_bytes()));
        }
        for state in ["live\n", "new\n", "resetting\n", "connecting\n", ""] {
            assert!(!is_final(state.as_bytes()));
        }
    }

    /// A device of 1 MiB, and what is watched of it, with the controller's state in a file.
    fn watched() -> (Target, Removal, tempfile::NamedTempFile) {
        let fd = rustix::fs::memfd_create("target", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
        let target = Target::examine("memory", fd, DirectIo::Off).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"live\n").unwrap();
        let state = Some(File::open(file.path()).unwrap().into());
        (target, Removal { gone: Gone::No, state, refused: None }, file)
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
