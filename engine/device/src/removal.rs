//! Surprise removal: whether a device that fails has been taken away. The kernel reports a removal
//! in several ways: commands in flight end with EIO, later reads bring 0 bytes without an error,
//! later writes end with ENOSPC. Once the device is known to be gone, all of these mean its
//! removal.
//!
//! Some answers come before their meaning is known. A detached namespace is unknown to its drive
//! before the kernel is notified, and the drive then refuses plain commands, which no drive with
//! the namespace does. A head refuses commands passed through while it chooses among its paths, and
//! a controller that leaves or is reset fails commands that another path would execute. A doubtful
//! request is held and repeated until the kernel's view is settled.
//!
//! A file that is truncated is gone as well. Writes make it grow again and end well, and what was
//! cut off reads as zeros then, so its length is looked at whenever something ended: a volume's
//! file has a last block that no request reaches, so it never grows to its full length again.

use std::path::Path;
use std::time::{Duration, Instant};

use kvrail_ring::{Opcode, Status};
use rustix::fs::{AtFlags, SeekFrom, StatxFlags, seek, statx};
use rustix::io::Errno;

use crate::controllers::{Controllers, Standing};
use crate::failure::Cause;
use crate::split::Outcome;
use crate::target::{DiscardMethod, FileKind, Target};

/// Time for which a failure may be in doubt before it is taken at face value. A kernel drops a
/// namespace within milliseconds of its drive's notice, but its workers wait for processors like
/// others: half a second was measured where processors are scarce.
const DOUBT: Duration = Duration::from_secs(5);

/// The end of every request from then on.
const GONE: Outcome = Outcome::Failed(Status::DeviceGone);

/// Operations that a drive with the namespace never refuses.
const READ_AND_WRITE: &[Opcode] = &[Opcode::Read, Opcode::Write];

/// The same of a drive that discards.
const READ_WRITE_DISCARD: &[Opcode] = &[Opcode::Read, Opcode::Write, Opcode::Discard];

/// State for the detection of a removal.
#[derive(Debug)]
pub(crate) struct Removal {
    gone: Gone,
    /// For NVMe namespaces.
    controllers: Option<Controllers>,
    /// Operations that are never refused while the device is there.
    commands: &'static [Opcode],
    /// The first and the last answer of a series in doubt.
    doubted: Option<(Instant, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    No,
    Yes,
}

impl Removal {
    /// Begins to watch a device that is there.
    pub(crate) fn watch(target: &Target) -> Self {
        let disk = target.queue.as_ref().filter(|_| target.kind == FileKind::Block);
        let controllers =
            disk.and_then(|queue| Controllers::of(&Path::new("/sys/block").join(&queue.disk)));
        let commands = match target.discard() {
            DiscardMethod::Deallocate => READ_WRITE_DISCARD,
            DiscardMethod::PunchHole => READ_AND_WRITE,
        };
        Self { gone: Gone::No, controllers, commands, doubted: None }
    }

    /// Watches a device that is on trial: it is present, and its answers are valid.
    pub(crate) fn believe(&mut self) {
        self.controllers = None;
    }

    /// Meaning of a suspect answer to a request. Called for failures and short transfers only.
    #[cold]
    pub(crate) fn judge(
        &mut self,
        target: &Target,
        opcode: Opcode,
        (outcome, cause): (Outcome, Cause),
    ) -> Outcome {
        if self.gone == Gone::Yes {
            return GONE;
        }
        let standing = self.controllers.as_ref().map_or(Standing::Serving, Controllers::standing);
        if standing == Standing::Leaving || has_shrunk(target) {
            self.gone = Gone::Yes;
            return GONE;
        }
        if self.is_doubtful(opcode, cause, standing) && self.is_in_doubt(Instant::now()) {
            return Outcome::Later;
        }
        match cause {
            // No path was left at the time of the request, and now there is one.
            Cause::Errno(Errno::IO) if self.has_paths() => Outcome::Transient(Status::IoError),
            _ => outcome,
        }
    }

    /// Whether a present device might answer like this only because it, or a path to it, is about
    /// to leave or to come back. For block requests the kernel turns the drive's status into
    /// EOPNOTSUPP, and a head turns a temporary lack of paths into EINVAL.
    fn is_doubtful(&self, opcode: Opcode, cause: Cause, standing: Standing) -> bool {
        let refused = match cause {
            Cause::Errno(Errno::IO) => return standing == Standing::Unsettled,
            Cause::Errno(Errno::OPNOTSUPP) => self.controllers.is_some(),
            Cause::Errno(Errno::INVAL) => self.has_paths(),
            Cause::Errno(_) | Cause::Short => false,
            Cause::Nvme(status) => self.controllers.is_some() && status.may_mean_no_namespace(),
        };
        refused && self.commands.contains(&opcode)
    }

    fn has_paths(&self) -> bool {
        self.controllers.as_ref().is_some_and(Controllers::are_paths)
    }

    /// Whether a file was truncated since it was opened. Checked after answers were taken and
    /// before they are reported: if not, all of them are about whole bytes.
    #[inline]
    pub(crate) fn is_truncated(&mut self, target: &Target) -> bool {
        if target.kind == FileKind::File && self.gone == Gone::No && has_shrunk(target) {
            self.gone = Gone::Yes;
        }
        target.kind == FileKind::File && self.gone == Gone::Yes
    }

    /// Whether a doubtful answer now belongs to a series that began a moment ago.
    fn is_in_doubt(&mut self, now: Instant) -> bool {
        let series = self.doubted.filter(|(_, last)| now.duration_since(*last) < DOUBT);
        let first = series.map_or(now, |(first, _)| first);
        self.doubted = Some((first, now));
        now.duration_since(first) < DOUBT
    }
}

/// Whether it has fewer bytes than when it was opened: none, for a device that was removed. Of a
/// file only the size cached by the kernel is read, so that no server can delay the call.
fn has_shrunk(target: &Target) -> bool {
    let bytes = match target.kind {
        FileKind::Block => seek(&target.fd, SeekFrom::End(0)),
        FileKind::File => {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            statx(&target.fd, c"", flags, StatxFlags::SIZE).map(|found| found.stx_size)
        }
    };
    bytes.map_or(true, |bytes| bytes < target.capacity_bytes)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::time::{Duration, Instant};

    use kvrail_ring::{Opcode, Status};
    use rustix::io::Errno;

    use super::{DOUBT, GONE, Gone, READ_AND_WRITE, READ_WRITE_DISCARD, Removal};
    use crate::contract::DirectIo;
    use crate::controllers::Controllers;
    use crate::controllers::tests::Head;
    use crate::failure::Cause;
    use crate::nvme_status::NvmeStatus;
    use crate::split::Outcome;
    use crate::target::Target;

    const FAILED: (Outcome, Cause) = (Outcome::Failed(Status::IoError), Cause::Errno(Errno::IO));
    const REFUSED: (Outcome, Cause) =
        (Outcome::Failed(Status::Unsupported), Cause::Errno(Errno::OPNOTSUPP));

    impl Removal {
        /// Watches only these.
        pub(crate) fn of(controllers: Controllers) -> Self {
            let (gone, commands) = (Gone::No, READ_AND_WRITE);
            Self { gone, controllers: Some(controllers), commands, doubted: None }
        }
    }

    /// A device of 1 MiB.
    fn target() -> Target {
        let fd = rustix::fs::memfd_create("target", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
        Target::examine("memory", fd, DirectIo::Off).unwrap()
    }

    /// A plain namespace, with its controller's state in a file.
    fn plain() -> (Removal, tempfile::NamedTempFile) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"live\n").unwrap();
        let state = File::open(file.path()).unwrap().into();
        (Removal::of(Controllers::One(state)), file)
    }

    /// Commands in flight are cancelled before the device has lost its bytes.
    #[test]
    fn a_failure_of_a_dying_controller_is_its_removal() {
        let (target, (mut removal, file)) = (target(), plain());
        assert_eq!(removal.judge(&target, Opcode::Read, FAILED), FAILED.0);
        std::fs::write(file.path(), "deleting\n").unwrap();
        assert_eq!(removal.judge(&target, Opcode::Read, FAILED), GONE);
        let short = (Outcome::Moved(0), Cause::Short);
        assert_eq!(removal.judge(&target, Opcode::Read, short), GONE);
    }

    /// The drive refuses before the kernel is notified: a repeated request then gets its true
    /// result.
    #[test]
    fn a_refused_command_waits_for_the_namespace_to_be_taken_away() {
        let (target, (mut removal, file)) = (target(), plain());
        let inactive = NvmeStatus::of_result(0x4002); // invalid field: drives' status for it
        let passed = (Outcome::Failed(inactive.status()), Cause::Nvme(inactive));
        for opcode in [Opcode::Read, Opcode::Write] {
            assert_eq!(removal.judge(&target, opcode, REFUSED), Outcome::Later);
            assert_eq!(removal.judge(&target, opcode, passed), Outcome::Later);
        }
        assert_eq!(removal.judge(&target, Opcode::Discard, REFUSED), REFUSED.0);
        removal.commands = READ_WRITE_DISCARD;
        assert_eq!(removal.judge(&target, Opcode::Discard, REFUSED), Outcome::Later);
        std::fs::write(file.path(), "deleting\n").unwrap();
        assert_eq!(removal.judge(&target, Opcode::Read, REFUSED), GONE);
    }

    /// Its controller lives on, and may serve other namespaces. Whatever the delay of the kernel's
    /// notice, a request that fails because no path is left is no failure.
    #[test]
    fn a_head_that_has_lost_its_last_path_is_gone() {
        let target = target();
        for opcode in [Opcode::Read, Opcode::Write, Opcode::Flush, Opcode::Discard] {
            let sysfs = Head::with_paths(1);
            let mut head = Removal::of(sysfs.watch());
            let now = Instant::now();
            head.doubted = Some((now.checked_sub(DOUBT * 2).unwrap(), now));
            sysfs.size(0, "0\n");
            assert_eq!(head.judge(&target, opcode, FAILED), GONE);
        }
    }

    /// A path that is reset or leaves while another serves fails requests for a moment.
    #[test]
    fn failures_of_a_head_wait_for_its_paths_to_settle() {
        let (target, sysfs) = (target(), Head::with_paths(2));
        let mut head = Removal::of(sysfs.watch());
        for state in ["resetting\n", "connecting\n", "deleting\n"] {
            sysfs.state(0, state);
            for opcode in [Opcode::Read, Opcode::Flush] {
                assert_eq!(head.judge(&target, opcode, FAILED), Outcome::Later, "{state}");
            }
        }
        sysfs.state(0, "live\n");
        let once_more = Outcome::Transient(Status::IoError);
        assert_eq!(head.judge(&target, Opcode::Read, FAILED), once_more);
        let passed = (FAILED.0, Cause::Errno(Errno::INVAL));
        assert_eq!(head.judge(&target, Opcode::Read, passed), Outcome::Later);
        assert_eq!(plain().0.judge(&target, Opcode::Read, passed), passed.0);
    }

    /// Nothing is gone that may come back, however long that takes.
    #[test]
    fn a_controller_that_is_reset_is_never_gone() {
        let (target, (mut removal, file)) = (target(), plain());
        for state in ["resetting\n", "connecting\n", "new\n"] {
            std::fs::write(file.path(), state).unwrap();
            removal.doubted = None;
            assert_eq!(removal.judge(&target, Opcode::Read, FAILED), Outcome::Later, "{state}");
            let now = Instant::now();
            removal.doubted = Some((now.checked_sub(DOUBT).unwrap(), now));
            assert_eq!(removal.judge(&target, Opcode::Read, FAILED), FAILED.0, "{state}");
        }
    }

    /// Bytes that it grows by later are not its earlier content.
    #[test]
    fn a_file_that_was_truncated_is_gone_for_good() {
        let (target, (mut removal, _file)) = (target(), plain());
        assert!(!removal.is_truncated(&target));
        rustix::fs::ftruncate(&target.fd, (1 << 20) - 1).unwrap();
        assert!(removal.is_truncated(&target));
        rustix::fs::ftruncate(&target.fd, 1 << 20).unwrap();
        assert!(removal.is_truncated(&target));
        let short = (Outcome::Moved(0), Cause::Short);
        assert_eq!(removal.judge(&target, Opcode::Read, short), GONE);
    }

    #[test]
    fn what_is_doubted_for_long_is_believed() {
        let (mut removal, _) = plain();
        let (start, half) = (Instant::now(), DOUBT / 2);
        assert!(removal.is_in_doubt(start) && removal.is_in_doubt(start + half));
        // Where processors are scarce, a kernel learns late of a namespace that its drive has
        // dropped.
        assert!(removal.is_in_doubt(start + Duration::from_secs(3)));
        assert!(!removal.is_in_doubt(start + DOUBT) && !removal.is_in_doubt(start + DOUBT + half));
        // Another series.
        assert!(removal.is_in_doubt(start + DOUBT * 3));
    }

    #[test]
    fn a_device_on_trial_means_what_it_says() {
        let (target, (mut removal, _file)) = (target(), plain());
        removal.believe();
        assert_eq!(removal.judge(&target, Opcode::Read, REFUSED), REFUSED.0);
    }
}
