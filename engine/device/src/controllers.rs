//! The NVMe controllers behind a block device, as sysfs shows them: whether it is still served.
//! Read on a poller, after a failure: it allocates nothing.
//!
//! A plain namespace hangs below its controller. One that may be reached by several paths has a
//! head, which hangs below the subsystem, and the subsystem names its controllers: they come and
//! go. Each that reaches the namespace has a hidden disk for it, the path: the kernel takes that
//! disk's bytes away before it stops to use the path, and removes it later.

use std::ffi::CStr;
use std::fs::File;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom, openat, seek};
use rustix::io::{Errno, pread};

/// The longest word is `deleting (no IO)`.
const WORD_BYTES: usize = 32;

/// Room for the names of some dozen entries at a time.
const ENTRIES_BYTES: usize = 1024;

/// Longer than the name of a path's file with its size.
const NAME_BYTES: usize = 64;

/// The open files that show its state.
#[derive(Debug)]
pub(crate) enum Controllers {
    /// The state of the only one. It changes before commands in flight are cancelled, and cannot
    /// be read once the controller is gone.
    One(OwnedFd),
    /// Those of the subsystem of a head.
    Paths(Paths),
}

/// How a device is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// By nothing, and never again.
    Leaving,
    /// By some of its controllers; others leave, are reset or reconnect. Or it is not known.
    Unsettled,
    /// By all of its controllers.
    Serving,
}

/// The paths of a head.
#[derive(Debug)]
pub(crate) struct Paths {
    /// The directory of the subsystem.
    subsystem: OwnedFd,
    /// How the disks of the paths are called, unless they are not called like that here.
    names: Option<HeadNames>,
}

/// The disk of `nvme2n7` below the controller `nvme5` is `nvme2c5n7`.
#[derive(Debug)]
struct HeadNames {
    /// `nvme2`.
    subsystem: String,
    /// `7`.
    head: String,
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
            Err(_) => Some(Self::Paths(Paths::of(disk, &above)?)),
        }
    }

    /// How they serve the device now.
    pub(crate) fn standing(&self) -> Standing {
        match self {
            Self::One(state) => standing(state).unwrap_or(Standing::Leaving),
            Self::Paths(paths) => paths.standing(),
        }
    }

    /// Whether the kernel chooses one of several for each request.
    pub(crate) fn are_paths(&self) -> bool {
        matches!(self, Self::Paths(_))
    }
}

impl Paths {
    fn of(disk: &Path, above: &Path) -> Option<Self> {
        let subsystem = File::open(above).ok()?.into();
        let names = disk.file_name().and_then(|name| HeadNames::of(name.to_str()?));
        let mut paths = Self { subsystem, names };
        // A head has a path when it is opened. Where none is seen, none would be missed.
        if paths.standing() == Standing::Leaving {
            paths.names = None;
        }
        Some(paths)
    }

    fn standing(&self) -> Standing {
        self.all().unwrap_or(Standing::Unsettled)
    }

    fn all(&self) -> Result<Standing, Errno> {
        seek(&self.subsystem, SeekFrom::Start(0))?;
        let mut buffer = [MaybeUninit::uninit(); ENTRIES_BYTES];
        let mut entries = RawDir::new(&self.subsystem, &mut buffer);
        let mut all = None;
        while let Some(entry) = entries.next() {
            match self.through(entry?.file_name()) {
                Ok(one) if all.is_none_or(|all| all == one) => all = Some(one),
                Ok(_) => all = Some(Standing::Unsettled),
                // No controller, or one that is gone or does not reach the namespace.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(all.unwrap_or(Standing::Leaving))
    }

    /// How this entry of the subsystem's directory serves the head.
    fn through(&self, controller: &CStr) -> Result<Standing, Errno> {
        let open = |at: &OwnedFd, name: &CStr, flags: OFlags| {
            openat(at, name, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        };
        let directory = open(&self.subsystem, controller, OFlags::DIRECTORY)?;
        let standing = standing(open(&directory, c"state", OFlags::empty())?)?;
        let Some(names) = &self.names else {
            let left = standing == Standing::Leaving;
            return Ok(if left { standing } else { Standing::Unsettled });
        };
        let mut name = [0; NAME_BYTES];
        let size = open(&directory, names.size(controller, &mut name)?, OFlags::empty())?;
        match word(size, &mut [0; WORD_BYTES])? {
            b"0" => Err(Errno::NODEV),
            _ => Ok(standing),
        }
    }
}

impl HeadNames {
    fn of(disk: &str) -> Option<Self> {
        let (subsystem, head) = disk.rsplit_once('n')?;
        Some(Self { subsystem: subsystem.into(), head: head.into() })
    }

    /// The file with the size of the path through a controller, from that one's directory.
    fn size<'a>(&self, controller: &CStr, name: &'a mut [u8]) -> Result<&'a CStr, Errno> {
        let number = controller.to_bytes().strip_prefix(b"nvme").ok_or(Errno::NOENT)?;
        let (before, after) = (self.subsystem.as_bytes(), self.head.as_bytes());
        let mut rest = &mut *name;
        for part in [before, b"c", number, b"n", after, b"/size\0"] {
            rest.write_all(part).map_err(|_| Errno::NOENT)?;
        }
        CStr::from_bytes_until_nul(name).map_err(|_| Errno::NOENT)
    }
}

/// How a controller in this state serves. From `dead`, `deleting` and `deleting (no IO)` there is
/// no way back.
fn standing(state: impl AsFd) -> Result<Standing, Errno> {
    Ok(match word(state, &mut [0; WORD_BYTES])? {
        b"live" => Standing::Serving,
        [b'd', b'e', ..] => Standing::Leaving,
        _ => Standing::Unsettled,
    })
}

/// Content of a file of sysfs.
fn word(file: impl AsFd, buffer: &mut [u8; WORD_BYTES]) -> Result<&[u8], Errno> {
    let length = pread(file, &mut buffer[..], 0)?;
    Ok(buffer[..length].trim_ascii_end())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use super::{Controllers, Standing};

    const FINAL: [&str; 3] = ["dead\n", "deleting\n", "deleting (no IO)\n"];
    const PASSING: [&str; 3] = ["new\n", "resetting\n", "connecting\n"];

    /// The directory of a head in sysfs, and what lies around it.
    #[derive(Debug)]
    pub(crate) struct Head(tempfile::TempDir);

    impl Head {
        /// With a path below each of the controllers `nvme0`, `nvme1` and so on.
        pub(crate) fn with_paths(count: u32) -> Self {
            let it = Self(tempfile::tempdir().unwrap());
            // A head and its power settings lie there too.
            for directory in ["nvme3n7", "power"] {
                fs::create_dir_all(it.0.path().join("nvme3n7/device").join(directory)).unwrap();
            }
            fs::write(it.0.path().join("nvme3n7/device/subsysnqn"), "nqn\n").unwrap();
            for number in 0..count {
                fs::create_dir_all(it.controller(number).join(format!("nvme3c{number}n7")))
                    .unwrap();
                it.state(number, "live\n");
                it.size(number, "2048\n");
            }
            it
        }

        pub(crate) fn watch(&self) -> Controllers {
            Controllers::of(&self.0.path().join("nvme3n7")).unwrap()
        }

        fn controller(&self, number: u32) -> std::path::PathBuf {
            self.0.path().join(format!("nvme3n7/device/nvme{number}"))
        }

        pub(crate) fn state(&self, number: u32, word: &str) {
            fs::write(self.controller(number).join("state"), word).unwrap();
        }

        pub(crate) fn size(&self, number: u32, sectors: &str) {
            let path = format!("nvme3c{number}n7/size");
            fs::write(self.controller(number).join(path), sectors).unwrap();
        }

        fn remove(&self, number: u32) {
            fs::remove_dir_all(self.controller(number)).unwrap();
        }
    }

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
        assert!(!one.are_paths() && one.standing() == Standing::Serving);
        for (words, expected) in [(FINAL, Standing::Leaving), (PASSING, Standing::Unsettled)] {
            for word in words {
                fs::write(&state, word).unwrap();
                assert_eq!(one.standing(), expected, "{word}");
            }
        }
    }

    #[test]
    fn a_head_leaves_with_its_last_controller() {
        let head = Head::with_paths(2);
        let paths = head.watch();
        assert!(paths.are_paths() && paths.standing() == Standing::Serving);
        head.state(0, "deleting\n");
        assert_eq!(paths.standing(), Standing::Unsettled, "the other path is there");
        for word in PASSING {
            head.state(1, word);
            assert_eq!(paths.standing(), Standing::Unsettled, "{word}");
        }
        head.state(1, "dead\n");
        assert_eq!(paths.standing(), Standing::Leaving);
        head.state(1, "live\n");
        assert_eq!(paths.standing(), Standing::Unsettled);
        head.remove(0);
        assert_eq!(paths.standing(), Standing::Serving);
        head.remove(1);
        assert_eq!(paths.standing(), Standing::Leaving, "no controller is left");
    }

    /// A namespace that is detached, or deleted, leaves controllers that live on, perhaps with
    /// other namespaces.
    #[test]
    fn a_head_leaves_with_its_last_path() {
        let head = Head::with_paths(2);
        let paths = head.watch();
        head.size(0, "0\n");
        assert_eq!(paths.standing(), Standing::Serving, "by the other path");
        fs::remove_dir_all(head.controller(1).join("nvme3c1n7")).unwrap();
        assert_eq!(paths.standing(), Standing::Leaving);
        head.size(0, "2048\n");
        assert_eq!(paths.standing(), Standing::Serving);
    }

    /// Descriptors may have run out; here a link leads to itself.
    #[test]
    fn what_cannot_be_looked_at_is_not_gone() {
        let head = Head::with_paths(1);
        let paths = head.watch();
        head.remove(0);
        std::os::unix::fs::symlink("nvme0", head.controller(0)).unwrap();
        assert_eq!(paths.standing(), Standing::Unsettled);
    }

    /// Another kernel may call its disks as it likes.
    #[test]
    fn a_head_whose_paths_are_not_found_leaves_with_its_controllers() {
        let head = Head::with_paths(1);
        fs::remove_dir_all(head.controller(0).join("nvme3c0n7")).unwrap();
        let paths = head.watch();
        assert_eq!(paths.standing(), Standing::Unsettled, "it may have lost its path");
        head.state(0, "deleting\n");
        assert_eq!(paths.standing(), Standing::Leaving);
    }
}
