//! The kernel's tree. The only file of this room that changes anything outside of the state
//! directory.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::tree::{Entry, EntryKind, Tree};

/// A tree at a directory: `/sys/kernel/config/nvmet`, or a copy to look at.
#[derive(Clone, Debug)]
pub struct Kernel {
    root: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The tree below `root`; modules are those of this host.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), modules: "/sys/module".into() }
    }

    fn full(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Tree for Kernel {
    fn list(&self, path: &str) -> Result<Vec<Entry>, Errno> {
        let listing = fs::read_dir(self.full(path)).map_err(|error| errno(&error))?;
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            let kind = match entry.file_type()? {
                kind if kind.is_dir() => EntryKind::Dir,
                kind if kind.is_symlink() => EntryKind::Link,
                _ => EntryKind::File,
            };
            Ok(Entry { name: entry.file_name().to_string_lossy().into_owned(), kind })
        };
        listing.map(entry).collect::<io::Result<_>>().map_err(|error| errno(&error))
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        let bytes = fs::read(self.full(path)).map_err(|error| errno(&error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The kernel writes links from the link up to the mount point and down again
    /// (`../../../../nvmet/subsystems/NAME`): the last two parts are the object.
    fn target(&self, path: &str) -> Result<String, Errno> {
        let target = fs::read_link(self.full(path)).map_err(|error| errno(&error))?;
        let text = target.to_string_lossy().into_owned();
        let mut parts = text.trim_end_matches('/').rsplit('/');
        match (parts.next(), parts.next()) {
            (Some(name), Some(folder)) => Ok(format!("{folder}/{name}")),
            _ => Ok(text),
        }
    }

    fn id(&self, path: &str) -> Result<u64, Errno> {
        fs::symlink_metadata(self.full(path)).map(|it| it.ino()).map_err(|error| errno(&error))
    }

    fn make_dir(&mut self, path: &str) -> Result<(), Errno> {
        fs::create_dir(self.full(path)).map_err(|error| errno(&error))
    }

    fn write(&mut self, path: &str, text: &str) -> Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = open(self.full(path), flags, Mode::empty())?;
        let written = rustix::io::write(&file, text.as_bytes())?;
        // An attribute takes its text in one call or not at all.
        if written == text.len() { Ok(()) } else { Err(Errno::IO) }
    }

    /// configfs resolves the target when the link is made, from the caller's directory: only a
    /// full path is right.
    fn link(&mut self, path: &str, target: &str) -> Result<(), Errno> {
        symlink(self.full(target), self.full(path)).map_err(|error| errno(&error))
    }

    fn unlink(&mut self, path: &str) -> Result<(), Errno> {
        fs::remove_file(self.full(path)).map_err(|error| errno(&error))
    }

    fn remove_dir(&mut self, path: &str) -> Result<(), Errno> {
        fs::remove_dir(self.full(path)).map_err(|error| errno(&error))
    }

    fn has_module(&self, name: &str) -> bool {
        self.modules.join(name).is_dir()
    }

    fn load_module(&mut self, name: &str) -> Result<(), Errno> {
        let mut command = Command::new("modprobe");
        command.arg(name).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let status = command.status().map_err(|error| errno(&error))?;
        // modprobe says no more than that it failed: the module is not there for us.
        if status.success() { Ok(()) } else { Err(Errno::NODEV) }
    }
}
