//! Surprise removal: whether a device that fails has been taken away. The kernel says so in strange
//! ways: commands in flight end with EIO, later reads bring 0 bytes without an error, later writes
//! say ENOSPC. Once it is known to be gone, all of them mean that and nothing else.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use kvrail_ring::Status;
use rustix::fs::{SeekFrom, seek};
use rustix::io::pread;

use crate::split::Outcome;
use crate::target::{Kind, Target};

/// What is watched to know it.
#[derive(Debug)]
pub(crate) struct Removal {
    gone: Gone,
    /// The NVMe controller's state in sysfs, kept open: it changes before commands in flight are
    /// cancelled, and cannot be read once the controller is gone.
    state: Option<OwnedFd>,
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
        Self { gone: Gone::No, state: state.map(OwnedFd::from) }
    }

    /// What a suspect answer means. Asked for failures and short transfers only.
    #[cold]
    pub(crate) fn judge(&mut self, target: &Target, outcome: Outcome) -> Outcome {
        if self.gone == Gone::No && (has_shrunk(target) || self.is_leaving()) {
            self.gone = Gone::Yes;
        }
        match self.gone {
            Gone::No => outcome,
            Gone::Yes => Outcome::Failed(Status::DeviceGone),
        }
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

    use kvrail_ring::Status;

    use super::{Gone, Removal, is_final};
    use crate::contract::DirectIo;
    use crate::split::Outcome;
    use crate::target::Target;

    #[test]
    fn states_without_a_way_back_are_told_from_others() {
        for state in ["dead\n", "deleting\n", "deleting (no IO)\n"] {
            assert!(is_final(state.as_bytes()));
        }
        for state in ["live\n", "new\n", "resetting\n", "connecting\n", ""] {
            assert!(!is_final(state.as_bytes()));
        }
    }

    /// Commands in flight are cancelled before the device has lost its bytes.
    #[test]
    fn a_failure_of_a_dying_controller_is_its_removal() {
        let fd = rustix::fs::memfd_create("target", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
        let target = Target::examine("memory", fd, DirectIo::Off).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"live\n").unwrap();
        let state = Some(File::open(file.path()).unwrap().into());
        let mut removal = Removal { gone: Gone::No, state };
        let failed = Outcome::Failed(Status::IoError);
        assert_eq!(removal.judge(&target, failed), failed);
        std::fs::write(file.path(), "deleting\n").unwrap();
        let gone = Outcome::Failed(Status::DeviceGone);
        assert_eq!(removal.judge(&target, failed), gone);
        assert_eq!(removal.judge(&target, Outcome::Moved(0)), gone);
    }
}
