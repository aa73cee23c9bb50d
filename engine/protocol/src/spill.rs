//! Messages that are longer than a packet: they travel in a sealed memory file.
//!
//! From the sidecar a status report of a large one; from a client a GPU layout of many fragments.
//! The client's is hostile: the file must be one in memory, so that reading it cannot hang, and is
//! read once.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, memfd_create};

use crate::channel::{Channel, Packet, decode, encode};
use crate::error::{ChannelError, PACKET_BYTES_MAX};
use crate::message::{ClientMessage, ControlRequest, SidecarMessage};

/// Bytes of a spilled message of the sidecar at most.
pub const SPILL_BYTES_MAX: u64 = 8 << 20;

/// Bytes of a spilled request at most: the largest layout, with 1,024 fragments and 256 legacy
/// handles, has less than a quarter of it.
pub const ASK_BYTES_MAX: u64 = 1 << 20;

/// The file of a message that is too long for a packet.
fn spill(text: &[u8], most: u64) -> Result<(u64, OwnedFd), ChannelError> {
    let bytes = text.len() as u64;
    if bytes > most {
        return Err(ChannelError::Oversize);
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("kvrail-message", flags).map_err(ChannelError::Socket)?);
    file.write_all_at(text, 0).map_err(|error| ChannelError::Malformed(error.to_string()))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    fcntl_add_seals(&file, seals).map_err(ChannelError::Socket)?;
    Ok((bytes, file.into()))
}

/// Content of a file.
fn read(file: OwnedFd, bytes: u64, most: u64) -> Result<Vec<u8>, ChannelError> {
    if bytes > most {
        return Err(ChannelError::Oversize);
    }
    let length = usize::try_from(bytes).map_err(|_| ChannelError::Oversize)?;
    let mut text = vec![0; length];
    File::from(file)
        .read_exact_at(&mut text, 0)
        .map_err(|error| ChannelError::Malformed(error.to_string()))?;
    Ok(text)
}

impl Channel {
    /// As `send`, for a message without descriptors that may be longer than a packet.
    ///
    /// # Errors
    /// As `send`; `Oversize` beyond `SPILL_BYTES_MAX`.
    pub fn send_any_length(&self, message: &SidecarMessage) -> Result<(), ChannelError> {
        let text = encode(message)?;
        if text.len() <= PACKET_BYTES_MAX {
            return self.send_bytes(&text, &[]);
        }
        let (bytes, file) = spill(&text, SPILL_BYTES_MAX)?;
        self.send(&SidecarMessage::Spilled { bytes }, &[file.as_fd()])
    }

    /// As `send`, for a request that may be longer than a packet.
    ///
    /// # Errors
    /// As `send`; `Oversize` beyond `ASK_BYTES_MAX`.
    pub fn send_ask(
        &self,
        message: &ClientMessage,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        let text = encode(message)?;
        if text.len() <= PACKET_BYTES_MAX {
            return self.send_bytes(&text, fds);
        }
        let (bytes, file) = spill(&encode(&message.ask)?, ASK_BYTES_MAX)?;
        let fds: Vec<_> = std::iter::once(file.as_fd()).chain(fds.iter().copied()).collect();
        self.send(&ClientMessage { seq: message.seq, ask: ControlRequest::Spilled { bytes } }, &fds)
    }
}

/// Replaces a `Spilled` message by the one in its memory file; passes every other through.
///
/// # Errors
/// `MissingFds`, `Oversize` or `Malformed` for a sidecar that does not speak this protocol.
pub fn unspill(packet: Packet<SidecarMessage>) -> Result<Packet<SidecarMessage>, ChannelError> {
    let SidecarMessage::Spilled { bytes } = packet.message else { return Ok(packet) };
    let (_, [file]): (_, [OwnedFd; 1]) = packet.exactly()?;
    match decode(&read(file, bytes, SPILL_BYTES_MAX)?)? {
        SidecarMessage::Spilled { .. } => Err(ChannelError::Malformed("spilled twice".into())),
        message => Ok(Packet { message, fds: Vec::new() }),
    }
}

/// Replaces a `Spilled` request by the one in its memory file; passes every other through.
///
/// # Errors
/// `MissingFds`, `Oversize`, or `Malformed`, also for a file that is not sealed memory: the client
/// does not keep to the protocol.
pub fn unspill_ask(packet: Packet<ClientMessage>) -> Result<Packet<ClientMessage>, ChannelError> {
    let Packet { message: ClientMessage { seq, ask }, mut fds } = packet;
    let ControlRequest::Spilled { bytes } = ask else {
        return Ok(Packet { message: ClientMessage { seq, ask }, fds });
    };
    if fds.is_empty() {
        return Err(ChannelError::MissingFds { present: 0, needed: 1 });
    }
    let file = fds.remove(0);
    // Only files in memory have seals; reading any other could wait for the server of its file
    // system.
    let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK | SealFlags::WRITE) {
        let wrong = "a spilled ask must be in a memory file with the seals SHRINK and WRITE";
        return Err(ChannelError::Malformed(wrong.into()));
    }
    match decode(&read(file, bytes, ASK_BYTES_MAX)?)? {
        ControlRequest::Spilled { .. } => Err(ChannelError::Malformed("spilled twice".into())),
        ask => Ok(Packet { message: ClientMessage { seq, ask }, fds }),
    }
}
