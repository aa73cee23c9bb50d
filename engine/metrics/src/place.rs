//! A place to listen at: taken at once, or as soon as it is free.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::listen::Listen;

/// Connections that wait to be taken, at most.
const BACKLOG: i32 = 128;

/// A place that is to be listened at.
#[derive(Debug)]
pub(crate) enum ListenPlace {
    /// The socket is made in advance: once all is open, the sidecar's sandbox makes none of TCP.
    Tcp(OwnedFd, SocketAddr),
    /// A path, and the mode of the socket.
    Unix(PathBuf, u32),
}

/// A socket that listens.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, SocketName),
}

/// The name of a Unix socket, which goes with it.
#[derive(Debug)]
pub(crate) struct SocketName(PathBuf);

impl ListenPlace {
    /// Nothing where nothing is listened at.
    pub(crate) fn new(listen: &Listen, mode: u32) -> io::Result<Option<Self>> {
        let address = match listen {
            Listen::Off => return Ok(None),
            Listen::Unix(path) => return Ok(Some(Self::Unix(path.clone(), mode))),
            Listen::Tcp(address) => *address,
        };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        Ok(Some(Self::Tcp(socket, address)))
    }

    /// Listens, and returns the address: with the port that was free where any would do.
    ///
    /// # Errors
    /// The kernel's. It may be tried again.
    pub(crate) fn take(&self) -> io::Result<(Socket, Listen)> {
        match self {
            Self::Tcp(socket, address) => {
                match bind(socket, address) {
                    // An earlier try came this far, and another program was the first to listen.
                    Err(Errno::INVAL) => {}
                    outcome => outcome?,
                }
                listen(socket, BACKLOG)?;
                let socket = TcpListener::from(socket.try_clone()?);
                let at = Listen::Tcp(socket.local_addr()?);
                Ok((Socket::Tcp(socket), at))
            }
            Self::Unix(path, mode) => {
                let socket = bind_path(path, *mode)?;
                Ok((Socket::Unix(socket, SocketName(path.clone())), Listen::Unix(path.clone())))
            }
        }
    }
}

impl Drop for SocketName {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0); // another program may have been quicker
    }
}

/// Takes the place of a socket without a listener, and of nothing else.
fn bind_path(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let is_socket =
        fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).as_ref().is_err_and(refused) {
        fs::remove_file(path)?;
    }
    let socket = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
