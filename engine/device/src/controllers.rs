//! The NVMe controllers behind a block device, as sysfs shows them: whether all of them are on
//! their way out. Asked on a poller, after a failure: it allocates nothing.
//!
//! A plain namespace hangs below its controller. One that may be reached by several paths has a
//! head, which hangs below the subsystem, and the subsystem names its controllers: they come and
//! go.

use std::ffi::CStr;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, openat, seek};
use rustix::io::{Errno, pread};

/// The longest word is `deleting (no IO)`.
const STATE_BYTES: usize = 32;

/// Room for the names of some dozen entries at a time.
const ENTRIES_BYTES: usize = 1024;

/// What is kept open to know it.
#[derive(Debug)]
pub(crate) enum Controllers {
    /// The state of the only one. It changes before commands in flight are cancelled, and cannot
    /// be read once the controller is gone.
    One(OwnedFd),
    /// The directory of the subsystem.
    Paths(OwnedFd),
}

impl Controllers {
    /// Those of the disk with this directory in sysfs; `None` where it is no NVMe namespace.
    pub(crate) fn of(disk: &Path) -> Option<Self> {
        let above = disk.join("device");
        if !above.join("subsysnqn").exists() {
            return None;
        }
        match File::open(above.join("state")) {
            Ok(state) => Some(Self::One(state.into())),
            Err(_) => Some(Self::Paths(File::open(above).ok()?.into())),
        }
    }

    /// Whether none of them will serve again. One that is reset or reconnects will.
    pub(crate) fn are_leaving(&self) -> bool {
        match self {
            Self::One(state) => is_leaving(state),
            Self::Paths(subsystem) => !any_stays(subsystem).unwrap_or(false),
        }
    }

    /// Whether the kernel chooses one of several for each request.
    pub(crate) fn are_paths(&self) -> bool {
        matches!(self, Self::Paths(_))
    }
}

/// Whether a subsystem has a controller that is not leaving.
fn any_stays(subsystem: &OwnedFd) -> Result<bool, Errno> {
    seek(subsystem, SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); ENTRIES_BYTES];
    let mut entries = RawDir::new(subsystem, &mut buffer);
    while let Some(entry) = entries.next() {
        // Controllers are all there is in it with a state.
        let state = open_state(subsystem, entry?.file_name());
        if state.is_ok_and(|state| !is_leaving(&state)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn open_state(subsystem: &OwnedFd, entry: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = openat(subsystem, entry, flags | OFlags::DIRECTORY, Mode::empty())?;
    openat(directory, c"state", flags, Mode::empty())
}

/// States of the kernel's driver that have no way back: `dead`, `deleting`, `deleting (no IO)`.
fn is_leaving(state: impl AsFd) -> bool {
    let mut word = [0; STATE_BYTES];
    match pread(state, &mut word, 0) {
        Ok(length) => word[..length].starts_with(b"de"),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Controllers;

    const FINAL: [&str; 3] = ["dead\n", "deleting\n", "deleting (no IO)\n"];
    const PASSING: [&str; 4] = ["live\n", "new\n", "resetting\n", "connecting\n"];

    #[test]
    fn a_plain_namespace_leaves_with_its_controller() {
        let disk = tempfile::tempdir().unwrap();
        assert!(Controllers::of(disk.path()).is_none(), "no NVMe namespace");
        let above = disk.path().join("device");
        fs::create_dir(&above).unwrap();
        fs::write(above.join("subsysnqn"), "nqn\n").unwrap();
        let state = above.join("state");
        fs::write(&state, "live\n").unwrap();
        let one = Controllers::of(disk.path()).unwrap();
        assert!(!one.are_paths());
        for (words, expected) in [(&FINAL[..], true), (&PASSING[..], false)] {
            for word in words {
                fs::write(&state, word).unwrap();
                assert_eq!(one.are_leaving(), expected, "{word}");
            }
        }
    }

    #[test]
    fn a_head_leaves_with_its_last_controller() {
        let disk = tempfile::tempdir().unwrap();
        let above = disk.path().join("device");
        // A head and its power settings lie there too.
        for directory in ["nvme0", "nvme1", "nvme0n1", "power"] {
            fs::create_dir_all(above.join(directory)).unwrap();
        }
        fs::write(above.join("subsysnqn"), "nqn\n").unwrap();
        let state = |controller: &str, word: &str| {
            fs::write(above.join(controller).join("state"), word).unwrap();
        };
        state("nvme0", "live\n");
        state("nvme1", "live\n");
        let paths = Controllers::of(disk.path()).unwrap();
        assert!(paths.are_paths() && !paths.are_leaving());
        state("nvme0", "deleting\n");
        assert!(!paths.are_leaving(), "the other path is there");
        state("nvme1", "dead\n");
        assert!(paths.are_leaving());
        fs::create_dir(above.join("nvme7")).unwrap();
        state("nvme7", "connecting\n");
        assert!(!paths.are_leaving(), "a path that came later");
        for gone in ["nvme0", "nvme1", "nvme7"] {
            fs::remove_dir_all(above.join(gone)).unwrap();
        }
        assert!(paths.are_leaving(), "no path is left");
    }
}
