//! The lock beside the session socket: one sidecar each. It stays when the sidecar ends, because
//! removing it would let two sidecars lock two files of one name.
//!
//! The directory may be one that others write to, such as /tmp, so whatever lies at the path is
//! looked at before it is written: no link is followed, and only a lock file is taken for one.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, ftruncate, open};
use rustix::io::{Errno, pread, pwrite};
use rustix::process::geteuid;

use crate::error::{Pid, ServerError};
use crate::file_id::FileId;

/// Longest content of a lock file: a process id and a newline.
const BYTES_MAX: usize = 11;

/// Held for as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: OwnedFd,
    path: PathBuf,
    id: Option<FileId>,
}

impl Lock {
    /// Locks the file beside a socket and leaves our process id in it.
    pub(crate) fn take(socket: &Path) -> Result<Self, ServerError> {
        let mut name = socket.as_os_str().to_owned();
        name.push(".lock");
        let path = PathBuf::from(name);
        let failed = |step| {
            let path = path.clone();
            move |errno| ServerError::Socket { path, step, errno }
        };
        let not_ours = |what: String| ServerError::NotALock { lock: path.clone(), what };
        let file = match open_or_make(&path) {
            Ok(file) => file,
            Err(Errno::LOOP) => return Err(not_ours("a symbolic link".into())),
            Err(Errno::ISDIR) => return Err(not_ours("a directory".into())),
            Err(errno) => return Err(failed("open")(errno)),
        };
        let stat = fstat(&file).map_err(failed("fstat"))?;
        if let Some(what) = stranger(&stat) {
            return Err(not_ours(what));
        }
        let line = read(&file).map_err(failed("read"))?;
        let pid = line.strip_suffix('\n').and_then(|pid| pid.parse().ok());
        if pid.is_none() && !line.is_empty() {
            return Err(not_ours("a file with other content".into()));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(ServerError::Alive { socket: socket.into(), pid: Pid(pid) });
            }
            Err(errno) => return Err(failed("flock")(errno)),
        }
        write(&file).map_err(failed("write"))?;
        Ok(Self { _file: file, id: FileId::at(&path), path })
    }

    /// Whether what is locked still lies at its path: else another sidecar may lock what does.
    pub(crate) fn is_in_place(&self) -> bool {
        self.id.is_some() && FileId::at(&self.path) == self.id
    }
}

fn open_or_make(path: &Path) -> Result<OwnedFd, Errno> {
    // NONBLOCK: a device without a medium must not keep us.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match open(path, flags | OFlags::NOCTTY, Mode::empty()) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let new = OFlags::CREATE | OFlags::EXCL;
    match open(path, flags | new, Mode::from_raw_mode(0o640)) {
        // Another sidecar was quicker.
        Err(Errno::EXIST) => open(path, flags | OFlags::NOCTTY, Mode::empty()),
        other => other,
    }
}

/// The kind of the file, unless it may be a lock file of ours.
fn stranger(stat: &Stat) -> Option<String> {
    let what = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Fifo => Some("a pipe"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
        _ => Some("no regular file"),
    };
    if what.is_none() && stat.st_nlink != 1 {
        return Some(format!("a file with {} names (hard links)", stat.st_nlink));
    }
    if what.is_none() && ![0, geteuid().as_raw()].contains(&stat.st_uid) {
        return Some(format!("a file of user {}", stat.st_uid));
    }
    what.map(Into::into)
}

/// The process id of the lock's current or last holder. Reads one byte more than an id can have.
fn read(file: &OwnedFd) -> Result<String, Errno> {
    let mut bytes = [0; BYTES_MAX + 1];
    let length = pread(file, &mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
}

fn write(file: &OwnedFd) -> Result<(), Errno> {
    ftruncate(file, 0)?;
    let line = format!("{}\n", std::process::id());
    let written = pwrite(file, line.as_bytes(), 0)?;
    if written == line.len() { Ok(()) } else { Err(Errno::NOSPC) }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    use super::Lock;
    use crate::error::ServerError;

    /// Checks the file at the lock's path, and the message of the refusal.
    #[track_caller]
    fn assert_refused(socket: &std::path::Path, words: &str) {
        let error = Lock::take(socket).unwrap_err();
        assert!(matches!(error, ServerError::NotALock { .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains(words) && said.contains("s.lock"), "no {words:?} in {said}");
    }

    #[test]
    fn nothing_but_a_lock_file_is_written() {
        let root = tempfile::tempdir().unwrap();
        let [socket, lock, other] = ["s", "s.lock", "other"].map(|name| root.path().join(name));
        fs::write(&other, "precious").unwrap();
        let links: [fn(&std::path::Path, &std::path::Path) -> std::io::Result<()>; 2] =
            [|to, at| symlink(to, at), |to, at| fs::hard_link(to, at)];
        for (link, words) in links.iter().zip(["a symbolic link", "2 names"]) {
            link(&other, &lock).unwrap();
            assert_refused(&socket, words);
            assert_eq!(fs::read(&other).unwrap(), b"precious", "{words}");
            fs::remove_file(&lock).unwrap();
        }
        symlink(root.path().join("nowhere"), &lock).unwrap();
        assert_refused(&socket, "a symbolic link");
        assert!(!root.path().join("nowhere").exists(), "nothing is made behind a link");
        fs::remove_file(&lock).unwrap();
        for content in ["precious", "12 monkeys\n", "1", "123456789012345\n", "\n"] {
            fs::write(&lock, content).unwrap();
            assert_refused(&socket, "other content");
            assert_eq!(fs::read_to_string(&lock).unwrap(), content);
        }
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        assert_refused(&socket, "a directory");
    }

    #[test]
    fn a_lock_file_of_an_earlier_sidecar_is_taken() {
        let root = tempfile::tempdir().unwrap();
        let [socket, lock] = ["s", "s.lock"].map(|name| root.path().join(name));
        for content in ["", "4294967295\n"] {
            fs::write(&lock, content).unwrap();
            drop(Lock::take(&socket).unwrap());
            let own = format!("{}\n", std::process::id());
            assert_eq!(fs::read_to_string(&lock).unwrap(), own);
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_refused() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: a foreign lock file: only root can change a file's owner");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let lock = root.path().join("s.lock");
        fs::write(&lock, "1\n").unwrap();
        chown(&lock, Some(65_534), None).unwrap();
        assert_refused(&root.path().join("s"), "a file of user 65534");
    }
}
