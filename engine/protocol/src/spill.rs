//! Messages from the sidecar that are longer than a packet: they travel in a sealed memory file.
//!
//! Only a status report of a large sidecar needs this. The sidecar never accepts a spilled
//! message.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::channel::{Channel, PACKET_BYTES_MAX, Packet, decode, encode};
use crate::error::ChannelError;
use crate::message::SidecarMessage;

/// Bytes of a spilled message at most.
pub const SPILL_BYTES_MAX: u64 = 8 << 20;

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
        let bytes = text.len() as u64;
        if bytes > SPILL_BYTES_MAX {
            return Err(ChannelError::Oversize);
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("kvrail-message", flags).map_err(ChannelError::Socket)?);
        file.write_all_at(&text, 0).map_err(|error| ChannelError::Malformed(error.to_string()))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(ChannelError::Socket)?;
        self.send(&SidecarMessage::Spilled { bytes }, &[file.as_fd()])
    }
}

/// Replaces a `Spilled` message by the one in its memory file; passes every other through.
///
/// # Errors
/// `MissingFds`, `Oversize` or `Malformed` for a sidecar that does not speak this protocol.
pub fn unspill(packet: Packet<SidecarMessage>) -> Result<Packet<SidecarMessage>, ChannelError> {
    let SidecarMessage::Spilled { bytes } = packet.message else { return Ok(packet) };
    let (_, [file]): (_, [OwnedFd; 1]) = packet.exactly()?;
    if bytes > SPILL_BYTES_MAX {
        return Err(ChannelError::Oversize);
    }
    let length = usize::try_from(bytes).map_err(|_| ChannelError::Oversize)?;
    let mut text = vec![0; length];
    File::from(file)
        .read_exact_at(&mut text, 0)
        .map_err(|error| ChannelError::Malformed(error.to_string()))?;
    match decode(&text)? {
        SidecarMessage::Spilled { .. } => Err(ChannelError::Malformed("spilled twice".into())),
        message => Ok(Packet { message, fds: Vec::new() }),
    }
}
