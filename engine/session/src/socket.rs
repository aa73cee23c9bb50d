//! The session socket in the file system: one sidecar each, stale ones replaced, live ones left.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::{Path, PathBuf};

use kvrail_protocol::{Channel, ChannelError};
use rustix::fs::{FileType, Mode, OFlags, chmod, fchmod, fstat, open, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen,
    shutdown, socket_with,
};

use crate::access::Peer;
use crate::error::{Pid, ServerError};
use crate::file_id::FileId;
use crate::lock::Lock;

/// Connections the kernel holds for us while we do something else. Each is taken or refused before
/// those behind it, so more would make others wait for a flood.
const BACKLOG: i32 = 512;

/// A bound, listening socket and the lock that makes it ours. The file goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    mode: u32,
    /// The file that we made; `None` once connections are no longer accepted.
    file: Option<FileId>,
    /// Locked for as long as this process serves; the file itself stays, because removing it
    /// would let two sidecars lock two files of one name.
    lock: Lock,
}

impl Listener {
    /// Takes the path, unless a living sidecar has it.
    pub(crate) fn bind(path: &Path, mode: u32) -> Result<Self, ServerError> {
        SocketAddrUnix::new(path).map_err(|_| ServerError::PathTooLong { socket: path.into() })?;
        make_folder(path)?;
        let lock = Lock::take(path)?;
        let (fd, file) = listen_at(path, mode)?;
        Ok(Self { fd, path: path.into(), mode, file: Some(file), lock })
    }

    /// Binds the path again if the socket was removed from it: clients come by its name. Returns
    /// the old socket.
    ///
    /// # Errors
    /// `ServerError` names the file in the way, or the kernel's error.
    pub(crate) fn restore(&mut self) -> Result<Option<OwnedFd>, ServerError> {
        let Some(file) = self.file else { return Ok(None) };
        if !self.lock.is_in_place() {
            self.lock = Lock::take(&self.path)?;
        }
        if FileId::at(&self.path) == Some(file) {
            return Ok(None);
        }
        let (fd, file) = listen_at(&self.path, self.mode)?;
        self.file = Some(file);
        Ok(Some(std::mem::replace(&mut self.fd, fd)))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Stops new connections; those in the backlog are still to be accepted.
    pub(crate) fn shut(&mut self) {
        let _shut = shutdown(&self.fd, Shutdown::Both);
        self.remove();
    }

    /// Removes the path, unless it is gone or belongs to another socket.
    fn remove(&mut self) {
        if let Some(file) = self.file.take()
            && FileId::at(&self.path) == Some(file)
        {
            let _gone = unlink(&self.path);
        }
    }

    /// The next connection.
    pub(crate) fn accept(&self) -> Result<OwnedFd, Errno> {
        accept_with(&self.fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    }
}

/// A descriptor more, if there is one. It is a socket of its own, which takes a place among the
/// host's open files, too, as a connection does, and keeps none alive that was closed.
pub(crate) fn spare() -> Option<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()
}

/// A listening socket at a path without a living owner.
fn listen_at(path: &Path, mode: u32) -> Result<(OwnedFd, FileId), ServerError> {
    clear_stale(path)?;
    let failed = |step| move |errno| ServerError::Socket { path: path.into(), step, errno };
    let address =
        SocketAddrUnix::new(path).map_err(|_| ServerError::PathTooLong { socket: path.into() })?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(failed("socket"))?;
    // Before bind the mode applies to the file that bind makes: at no moment may more users connect
    // than the configuration allows.
    fchmod(&fd, Mode::from_raw_mode(mode)).map_err(failed("fchmod"))?;
    bind(&fd, &address).map_err(failed("bind"))?;
    undo_umask(path, Mode::from_raw_mode(mode)).map_err(failed("chmod"))?;
    listen(&fd, BACKLOG).map_err(failed("listen"))?;
    let file = FileId::at(path).ok_or(Errno::NOENT).map_err(failed("lstat"))?;
    Ok((fd, file))
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Makes the folder that a socket is to lie in, unless it is there.
///
/// # Errors
/// `ServerError::Socket` names the folder and the kernel's error.
pub fn make_folder(socket: &Path) -> Result<(), ServerError> {
    let Some(directory) = socket.parent().filter(|path| !path.as_os_str().is_empty()) else {
        return Ok(());
    };
    DirBuilder::new().recursive(true).mode(0o750).create(directory).map_err(|error| {
        ServerError::Socket { path: directory.into(), step: "mkdir", errno: errno_of(&error) }
    })
}

/// Gives the socket the mode that the umask took from it. Never follows a link: any process that
/// may rename in this directory could have put one there.
fn undo_umask(socket: &Path, mode: Mode) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let node = open(socket, flags, Mode::empty())?;
    let itself = format!("/proc/self/fd/{}", node.as_raw_fd());
    match FileType::from_raw_mode(fstat(&node)?.st_mode) {
        FileType::Socket => chmod(itself, mode),
        _ => Err(Errno::NOTSOCK),
    }
}

/// Removes a socket whose server is dead. A living one that holds no lock is respected as well.
fn clear_stale(socket: &Path) -> Result<(), ServerError> {
    let kind = match socket.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            let errno = errno_of(&error);
            return Err(ServerError::Socket { path: socket.into(), step: "lstat", errno });
        }
    };
    if !kind.is_socket() {
        return Err(ServerError::NotASocket { socket: socket.into() });
    }
    let foreign = |pid| Err(stranger(socket, pid));
    let failed = |step| move |errno| ServerError::Socket { path: socket.into(), step, errno };
    match Channel::connect(socket) {
        Ok(channel) => foreign(Peer::of(channel.as_fd()).ok().map(|peer| peer.pid)),
        Err(ChannelError::WouldBlock | ChannelError::Socket(Errno::PROTOTYPE)) => foreign(None),
        Err(ChannelError::Socket(Errno::CONNREFUSED)) => unlink(socket).map_err(failed("unlink")),
        // Alive or dead: unknown.
        Err(ChannelError::Socket(errno)) => Err(failed("connect")(errno)),
        Err(_) => Err(failed("connect")(Errno::IO)),
    }
}

/// Names the process that listens there without the lock: a sidecar whose lock file was removed, or
/// any other program.
fn stranger(socket: &Path, pid: Option<u32>) -> ServerError {
    let pid = pid.filter(|&pid| pid != 0);
    let command = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).ok());
    match (pid, command.as_deref().map(str::trim_end)) {
        (pid, Some("kvrail")) => ServerError::Alive { socket: socket.into(), pid: Pid(pid) },
        (pid, _) => ServerError::Foreign { socket: socket.into(), pid: Pid(pid) },
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixDatagram;

    use rustix::fd::OwnedFd;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};

    use super::{Listener, Mode, undo_umask};
    use crate::error::ServerError;

    #[test]
    fn modes_lock_and_removal() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("deep/kvrail.sock");
        let listener = Listener::bind(&path, 0o600).unwrap();
        let mode =
            |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o750);
        match Listener::bind(&path, 0o600) {
            Err(ServerError::Alive { pid, .. }) => assert_eq!(pid.0, Some(std::process::id())),
            other => panic!("a second sidecar took the socket: {other:?}"),
        }
        drop(listener);
        assert!(!path.exists());
        Listener::bind(&path, 0o660).unwrap();
    }

    fn seqpacket_at(path: &std::path::Path) -> OwnedFd {
        let fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        bind(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        fd
    }

    #[test]
    fn a_socket_that_was_removed_is_bound_again_and_a_strangers_is_left() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kvrail.sock");
        let mut listener = Listener::bind(&path, 0o600).unwrap();
        assert!(listener.restore().unwrap().is_none(), "nothing was removed");
        for lock in [false, true] {
            fs::remove_file(&path).unwrap();
            if lock {
                fs::remove_file(root.path().join("kvrail.sock.lock")).unwrap();
            }
            assert!(listener.restore().unwrap().is_some());
            rustix::net::connect(
                socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap(),
                &SocketAddrUnix::new(&path).unwrap(),
            )
            .unwrap();
            assert!(listener.accept().is_ok());
            let second = Listener::bind(&path, 0o600).unwrap_err();
            assert!(matches!(second, ServerError::Alive { .. }), "{second}");
        }
        fs::remove_file(&path).unwrap();
        let stranger = seqpacket_at(&path);
        rustix::net::listen(&stranger, 1).unwrap();
        let error = listener.restore().unwrap_err();
        assert!(matches!(error, ServerError::Foreign { .. }), "{error}");
        drop(listener);
        assert!(path.exists(), "what is not ours stays");
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_living_stranger_is_not() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kvrail.sock");
        drop(seqpacket_at(&path));
        assert!(path.exists(), "the dead server left its file");
        drop(Listener::bind(&path, 0o600).unwrap());

        let stranger = seqpacket_at(&path);
        rustix::net::listen(&stranger, 1).unwrap();
        let error = Listener::bind(&path, 0o600).unwrap_err();
        assert!(matches!(error, ServerError::Foreign { .. }), "{error}");
        let own = format!("not a kvrail sidecar listens there (pid {})", std::process::id());
        assert!(error.to_string().contains(&own), "{error}");
        drop(stranger);
        fs::remove_file(&path).unwrap();

        let _datagram = UnixDatagram::bind(&path).unwrap();
        let error = Listener::bind(&path, 0o600).unwrap_err();
        assert!(matches!(error, ServerError::Foreign { .. }), "{error}");
        assert!(!error.to_string().contains("pid 0"), "{error}");
    }

    /// The umask takes from the mode what the configuration gave, and chmod follows links.
    #[test]
    fn a_link_in_the_sockets_place_keeps_the_mode_of_what_it_leads_to() {
        let root = tempfile::tempdir().unwrap();
        let [path, other] = ["s", "other"].map(|name| root.path().join(name));
        fs::write(&other, "").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        undo_umask(&path, Mode::from_raw_mode(0o666)).unwrap_err();
        assert_eq!(fs::metadata(&other).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn other_files_and_long_paths_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("kvrail.sock");
        fs::write(&path, "precious").unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(ServerError::NotASocket { .. })));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let long = root.path().join("x".repeat(120));
        assert!(matches!(Listener::bind(&long, 0o600), Err(ServerError::PathTooLong { .. })));
    }
}
