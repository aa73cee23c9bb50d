//! One end of a session socket: packets and the descriptors that travel with them.
//!
//! Never blocks: a caller that must wait polls the descriptor. Every descriptor that arrives is
//! owned from the moment the kernel installs it, so an early return closes it (the lesson of
//! CVE-2022-0669).
//!
//! The close of a descriptor from an untrusted process may wait for as long as that process likes,
//! so servers use `next` and `close`, which neither take nor drop a descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use kvrail_ring::limits::POLLERS_MAX;
use rustix::cmsg_space;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt::{Timeout, set_socket_passcred, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, connect, recv, recvmsg, sendmsg, shutdown, socket_with, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{ChannelError, PACKET_BYTES_MAX};
use crate::gpu::GPU_FDS_MAX;

/// Descriptors of one message at most: the kernel takes no more (SCM_MAX_FD). A queue needs a
/// segment, a bell, and one doorbell for each poller; a GPU region one for each memory.
pub const FDS_MAX: usize = 253;

const _: () = assert!(2 + POLLERS_MAX as usize <= FDS_MAX && GPU_FDS_MAX < FDS_MAX);

/// Control bytes for `FDS_MAX` descriptors.
const CONTROL_MANY: usize = cmsg_space!(ScmRights(FDS_MAX));

/// Control bytes where one descriptor is expected; the kernel drops what does not fit before it
/// takes numbers of our descriptor table.
const CONTROL_ONE: usize = cmsg_space!(ScmRights(1));

/// Room for one packet, made once.
#[derive(Debug)]
pub struct PacketBuffer(Box<[u8]>);

impl Default for PacketBuffer {
    fn default() -> Self {
        Self(vec![0; PACKET_BYTES_MAX].into_boxed_slice())
    }
}

/// A received message and what came with it.
#[derive(Debug)]
pub struct Packet<T> {
    /// The message.
    pub message: T,
    /// Descriptors, at most as many as were allowed.
    pub fds: Vec<OwnedFd>,
}

impl<T> Packet<T> {
    /// The descriptors, if they are exactly `N`.
    ///
    /// # Errors
    /// `MissingFds` or `SurplusFds`; all are closed then.
    pub fn exactly<const N: usize>(self) -> Result<(T, [OwnedFd; N]), ChannelError> {
        let present = self.fds.len();
        match <[OwnedFd; N]>::try_from(self.fds) {
            Ok(fds) => Ok((self.message, fds)),
            Err(_) if present < N => Err(ChannelError::MissingFds { present, needed: N }),
            Err(_) => Err(ChannelError::SurplusFds { allowed: N }),
        }
    }
}

/// A message that is next.
#[derive(Debug)]
pub enum Incoming<T> {
    /// Without descriptors, and taken.
    Bare(T),
    /// With descriptors. It still lies in the queue, and they with it.
    Laden(T),
}

/// One end of a session socket.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
}

impl Channel {
    /// Wraps a connected, non-blocking SEQPACKET socket.
    #[must_use]
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Connects to a sidecar's socket without waiting.
    ///
    /// # Errors
    /// `WouldBlock` while the sidecar's queue of connections is full; else the kernel's.
    pub fn connect(path: &Path) -> Result<Self, ChannelError> {
        let fd = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        let address = SocketAddrUnix::new(path).map_err(ChannelError::Socket)?;
        connect(&fd, &address)?;
        Ok(Self { fd })
    }

    /// As `connect`, but while the queue is full it waits in the kernel's order, where a flood of
    /// others is not always first.
    ///
    /// # Errors
    /// `WouldBlock` after this long, or when a signal came; else the kernel's.
    pub fn connect_within(path: &Path, patience: Duration) -> Result<Self, ChannelError> {
        let fd = seqpacket(SocketFlags::CLOEXEC)?;
        let address = SocketAddrUnix::new(path).map_err(ChannelError::Socket)?;
        // Not 0, which is for ever.
        let patience = patience.max(Duration::from_millis(1));
        set_socket_timeout(&fd, Timeout::Send, Some(patience)).map_err(ChannelError::Socket)?;
        connect(&fd, &address)?;
        ioctl_fionbio(&fd, true).map_err(ChannelError::Socket)?;
        Ok(Self { fd })
    }

    /// Two connected ends.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn pair() -> Result<(Self, Self), ChannelError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self { fd: one }, Self { fd: other }))
    }

    /// Sends one message as one packet.
    ///
    /// # Errors
    /// `WouldBlock` when the other side does not read, `Oversize` for a message that does not fit
    /// a packet, `Closed`, or the kernel's.
    pub fn send<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let text = encode(message)?;
        if text.len() > PACKET_BYTES_MAX {
            return Err(ChannelError::Oversize);
        }
        self.send_bytes(&text, fds)
    }

    pub(crate) fn send_bytes(
        &self,
        text: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let mut space = [MaybeUninit::uninit(); CONTROL_MANY];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(ChannelError::SurplusFds { allowed: FDS_MAX });
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = sendmsg(&self.fd, &[IoSlice::new(text)], &mut control, flags)?;
        if sent == text.len() { Ok(()) } else { Err(ChannelError::Oversize) }
    }

    /// Takes the next message if no descriptor came with it. No descriptor gets into this process.
    ///
    /// # Errors
    /// As `receive`; descriptors beside a packet in error stay in the queue.
    pub fn next<T: DeserializeOwned>(
        &self,
        buffer: &mut PacketBuffer,
    ) -> Result<Incoming<T>, ChannelError> {
        let (bytes, flags) = self.peek(&mut buffer.0)?;
        // Without room for control data this flag means one thing: there would have been some.
        let laden = flags.contains(ReturnFlags::CTRUNC);
        if !laden {
            // The packet that was seen: there is no other reader.
            recv(&self.fd, &mut [0; 0], RecvFlags::DONTWAIT)?;
        }
        if flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::Oversize);
        }
        if bytes == 0 && !laden {
            return Err(ChannelError::Closed); // or an empty packet, which no peer sends
        }
        let message = decode(&buffer.0[..bytes])?;
        Ok(if laden { Incoming::Laden(message) } else { Incoming::Bare(message) })
    }

    fn peek(&self, bytes: &mut [u8]) -> Result<(usize, ReturnFlags), Errno> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(bytes)];
        let mut look =
            || recvmsg(&self.fd, &mut parts, &mut RecvAncillaryBuffer::new(&mut []), flags);
        let seen = match look() {
            // As in `receive`.
            Err(Errno::CONNRESET) => look()?,
            seen => seen?,
        };
        Ok((seen.bytes, seen.flags))
    }

    /// Ends the connection for both sides. The socket comes back if descriptors lie in its queue,
    /// because the close of one of them may wait.
    #[must_use = "a socket that comes back must be closed where no client waits"]
    pub fn close(self) -> Option<OwnedFd> {
        // From here on nothing can be added to the queue.
        let _unconnected = shutdown(&self.fd, Shutdown::Both);
        loop {
            let flags = self.peek(&mut []).map_or(ReturnFlags::empty(), |(_, flags)| flags);
            if flags.contains(ReturnFlags::CTRUNC) {
                return Some(self.fd);
            }
            // An empty packet looks like the end.
            if !flags.contains(ReturnFlags::TRUNC) && !self.has_packet() {
                return None;
            }
            let _passed_over = recv(&self.fd, &mut [0; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Whether there is a packet, if only an empty one: each has the sender's credentials.
    fn has_packet(&self) -> bool {
        let _unwanted = set_socket_passcred(&self.fd, true);
        let seen = self.peek(&mut []);
        let _unwanted = set_socket_passcred(&self.fd, false);
        matches!(seen, Ok((_, flags)) if flags.contains(ReturnFlags::CTRUNC))
    }

    /// Receives one message with at most `fds_max` descriptors.
    ///
    /// # Errors
    /// `WouldBlock` when there is none; every other error means: close the socket. Descriptors
    /// that came with a packet in error are closed.
    pub fn receive<T: DeserializeOwned>(
        &self,
        buffer: &mut PacketBuffer,
        fds_max: usize,
    ) -> Result<Packet<T>, ChannelError> {
        let mut space = [MaybeUninit::uninit(); CONTROL_MANY];
        let room = if fds_max <= 1 { CONTROL_ONE } else { CONTROL_MANY };
        let mut control = RecvAncillaryBuffer::new(&mut space[..room]);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut parts = [IoSliceMut::new(&mut buffer.0)];
        let received = match recvmsg(&self.fd, &mut parts, &mut control, flags) {
            // The other side closed before it had read all of our packets. Its own earlier packets
            // are still there behind this error, which is reported once.
            Err(Errno::CONNRESET) => recvmsg(&self.fd, &mut parts, &mut control, flags)?,
            received => received?,
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|part| match part {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        if received.flags.contains(ReturnFlags::CTRUNC) || fds.len() > fds_max {
            return Err(ChannelError::SurplusFds { allowed: fds_max });
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::Oversize);
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed); // or an empty packet, which no peer sends
        }
        Ok(Packet { message: decode(&buffer.0[..received.bytes])?, fds })
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.fd
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, ChannelError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(ChannelError::Socket)
}

pub(crate) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, ChannelError> {
    serde_json::to_vec(message).map_err(|error| ChannelError::Malformed(error.to_string()))
}

pub(crate) fn decode<T: DeserializeOwned>(text: &[u8]) -> Result<T, ChannelError> {
    serde_json::from_slice(text).map_err(|error| ChannelError::Malformed(error.to_string()))
}
