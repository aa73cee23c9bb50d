//! The kernel's tree. The only file of this room that changes anything outside of the state
//! directory.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open, statfs};
use rustix::io::Errno;

use crate::tree::{DirectoryEntry, EntryKind, Tree};

/// Of configfs, from the kernel's `linux/magic.h`.
const CONFIGFS_MAGIC: u64 = 0x6265_6570;

/// A tree at a directory: `/sys/kernel/config/nvmet`, or a copy to look at.
#[derive(Clone, Debug)]
pub struct KernelTree {
    root: PathBuf,
    /// Modules that are loaded, and most of those that are built in.
    modules: PathBuf,
    /// Names of all that are built in.
    built_in: PathBuf,
}

impl KernelTree {
    /// The tree below `root`; modules are those of this host.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let built_in = format!("/lib/modules/{}/modules.builtin", release.trim()).into();
        Self { root: root.to_owned(), modules: "/sys/module".into(), built_in }
    }

    fn full(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

impl Tree for KernelTree {
    fn list(&self, path: &str) -> Result<Vec<DirectoryEntry>, Errno> {
        let listing = fs::read_dir(self.full(path)).map_err(|error| errno(&error))?;
        let entry = |entry: io::Result<fs::DirEntry>| {
            let entry = entry?;
            let kind = match entry.file_type()? {
                kind if kind.is_dir() => EntryKind::Dir,
                kind if kind.is_symlink() => EntryKind::Link,
                _ => EntryKind::File,
            };
            Ok(DirectoryEntry { name: entry.file_name().to_string_lossy().into_owned(), kind })
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
        fs::symlink_metadata(self.full(path))
            .map(|metadata| metadata.ino())
            .map_err(|error| errno(&error))
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

    /// One that is built in and has no parameters does not show among the loaded ones.
    fn has_module(&self, name: &str) -> bool {
        let built_in = fs::read_to_string(&self.built_in).unwrap_or_default();
        let file = format!("{name}.ko");
        let mut files = built_in.lines().filter_map(|line| line.rsplit('/').next());
        self.modules.join(name).is_dir() || files.any(|other| other.replace('-', "_") == file)
    }

    fn can_load(&self, name: &str) -> bool {
        // Without modprobe the answer is unknown.
        modprobe(&["--dry-run", name]) != Err(Errno::NODEV)
    }

    fn can_appear(&self) -> bool {
        let above = self.root.parent().and_then(|above| statfs(above).ok());
        above.is_some_and(|system| u64::try_from(system.f_type) == Ok(CONFIGFS_MAGIC))
    }

    fn load_module(&mut self, name: &str) -> Result<(), Errno> {
        modprobe(&[name])
    }
}

fn modprobe(arguments: &[&str]) -> Result<(), Errno> {
    let mut command = Command::new("modprobe");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().map_err(|error| errno(&error))?;
    // modprobe reports no more than its failure: the module is not there for us.
    if status.success() { Ok(()) } else { Err(Errno::NODEV) }
}

#[cfg(test)]
mod tests {
    use super::KernelTree;
    use crate::tree::Tree;

    #[test]
    fn built_in_modules_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("modules.builtin");
        let built_in = "kernel/drivers/nvme/target/nvme-loop.ko\nkernel/fs/ext4/ext4.ko\n";
        std::fs::write(&list, built_in).unwrap();
        let modules = folder.path().join("module");
        std::fs::create_dir_all(modules.join("nvmet_tcp")).unwrap();
        let tree = KernelTree { root: folder.path().join("nvmet"), modules, built_in: list };
        assert!(tree.has_module("nvme_loop") && tree.has_module("nvmet_tcp"));
        assert!(!tree.has_module("nvmet_rdma") && !tree.has_module("loop"));
        assert!(!tree.can_appear(), "no configfs is there");
    }
}
