//! What a queue knows of a volume: how to check a range, cut it, and where its pieces go.

use kvrail_layout::UNIT_BYTES;
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::{Geometry, Opcode};

use crate::gpu::GpuRange;
use crate::lease::Lease;
use crate::request::{CHECKSUM, Request, VERIFY};
use crate::submit_error_kind::SubmitErrorKind;
use crate::volume::Volume;

const PIECE_BYTES_MAX: u64 = REQUEST_LENGTH_MAX as u64;

/// A piece of a request: what one lane gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LanePiece {
    pub(crate) lane: u16,
    pub(crate) volume_offset: u64,
    pub(crate) length: u32,
}

/// A volume as a queue needs it, with divisions by powers of two turned into masks.
#[derive(Debug)]
pub(crate) struct VolumeRoute {
    geometry: Geometry,
    capacity: u64,
    block_mask: u64,
    memory_mask: u64,
    /// The lane of each member.
    lanes: Vec<u16>,
    /// The lane of the only member.
    only: Option<u16>,
    /// Requests name keys, not places: no range is one.
    content: RouteKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteKind {
    Raw,
    Store,
}

impl VolumeRoute {
    /// The geometry was checked at attach: units are powers of two, every member has a poller.
    pub(crate) fn new(volume: &Volume) -> Self {
        let geometry = volume.geometry;
        debug_assert!(geometry.logical_block.is_power_of_two(), "checked at attach");
        debug_assert!(geometry.memory_alignment.is_power_of_two(), "checked at attach");
        debug_assert_eq!(
            volume.info.pollers.len(),
            usize::from(geometry.members),
            "every member has a poller"
        );
        Self {
            geometry,
            // No range of a store is one: its blocks have keys.
            capacity: if volume.is_store() { 0 } else { geometry.capacity() },
            block_mask: u64::from(geometry.logical_block) - 1,
            memory_mask: u64::from(geometry.memory_alignment) - 1,
            only: match volume.info.pollers[..] {
                [lane] => Some(lane),
                _ => None,
            },
            lanes: volume.info.pollers.clone(),
            content: if volume.is_store() { RouteKind::Store } else { RouteKind::Raw },
        }
    }

    /// Checks what a range must fulfil.
    #[inline(always)]
    pub(crate) fn check_range(&self, request: &Request) -> Result<(), SubmitErrorKind> {
        let (offset, length) = (request.offset, request.length);
        if length == 0 {
            return Err(SubmitErrorKind::Empty);
        }
        if (offset | length) & self.block_mask != 0 {
            return Err(SubmitErrorKind::Misaligned { offset, length, block: self.block_mask + 1 });
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.capacity => Ok(()),
            _ if self.content == RouteKind::Store => Err(SubmitErrorKind::IsStore),
            _ => Err(SubmitErrorKind::BeyondEnd { offset, length, capacity: self.capacity }),
        }
    }

    /// Checks the memory that bytes go to or come from.
    #[inline(always)]
    pub(crate) fn check_memory(&self, request: &Request) -> Result<(), SubmitErrorKind> {
        match &request.lease {
            Some(lease) => self.check_lease(request, lease),
            None => self.check_gpu(request),
        }
    }

    /// As `check_memory`, for memory of the host.
    #[inline(always)]
    pub(crate) fn check_lease(
        &self,
        request: &Request,
        lease: &Lease,
    ) -> Result<(), SubmitErrorKind> {
        if lease.client() != request.client {
            return Err(SubmitErrorKind::Foreign { what: "lease" });
        }
        if request.length > lease.bytes() {
            return Err(SubmitErrorKind::LeaseTooShort {
                length: request.length,
                lease: lease.bytes(),
            });
        }
        let offset = lease.offset() as u64;
        if offset & self.memory_mask != 0 {
            return Err(SubmitErrorKind::BufferMisaligned {
                offset,
                alignment: self.memory_mask + 1,
            });
        }
        Ok(())
    }

    /// As `check_memory`, for memory of a GPU.
    #[inline(never)]
    fn check_gpu(&self, request: &Request) -> Result<(), SubmitErrorKind> {
        let Some(GpuRange { client, start, bytes, .. }) = request.gpu else {
            return Err(SubmitErrorKind::Empty);
        };
        if client != request.client {
            return Err(SubmitErrorKind::Foreign { what: "GPU region" });
        }
        if request.length > bytes {
            let (bytes, block_bytes) = (request.length, start + bytes);
            return Err(SubmitErrorKind::OutsideBlock { start, bytes, block_bytes });
        }
        let alignment = (self.memory_mask + 1).max(UNIT_BYTES);
        if !start.is_multiple_of(alignment) {
            return Err(SubmitErrorKind::BlockMisaligned { start, alignment });
        }
        if request.flags & (CHECKSUM | VERIFY) != 0 {
            return Err(SubmitErrorKind::GpuChecksum);
        }
        Ok(())
    }

    /// The piece of a checked request, if it is one.
    #[inline(always)]
    pub(crate) fn single(&self, request: &Request) -> Option<LanePiece> {
        if request.length > PIECE_BYTES_MAX {
            return None;
        }
        let lane = match self.only {
            Some(lane) => lane,
            None if request.opcode == Opcode::Flush => return None,
            None => {
                // Neither divisor is 0; like this, nothing here can panic (see `Submitter::stage`).
                let stripe = request.offset.checked_div(self.geometry.stripe_bytes)?;
                let inside = request.offset - stripe * self.geometry.stripe_bytes;
                if inside + request.length > self.geometry.stripe_bytes {
                    return None;
                }
                let member = stripe.checked_rem(u64::from(self.geometry.members))?;
                *self.lanes.get(usize::try_from(member).ok()?)?
            }
        };
        let length = u32::try_from(request.length).ok()?;
        Some(LanePiece { lane, volume_offset: request.offset, length })
    }

    /// All pieces of a checked request, in the order of its bytes. A flush has one for each
    /// member, at that member's first byte.
    pub(crate) fn pieces(&self, request: &Request) -> impl Iterator<Item = LanePiece> {
        let flush = request.opcode == Opcode::Flush;
        let members = if flush { self.geometry.members } else { 0 };
        let flushes = (0..members).map(|member| LanePiece {
            lane: self.lanes[usize::from(member)],
            volume_offset: u64::from(member) * self.geometry.stripe_bytes,
            length: 0,
        });
        let range = request.offset..request.offset + request.length;
        let moves = self.geometry.pieces(range).flat_map(|piece| {
            let lane = self.lanes[usize::from(piece.member)];
            let starts = (0..piece.length).step_by(REQUEST_LENGTH_MAX as usize);
            starts.map(move |start| LanePiece {
                lane,
                volume_offset: piece.volume_offset + start,
                length: u32::try_from((piece.length - start).min(PIECE_BYTES_MAX))
                    .expect("at most PIECE_BYTES_MAX"),
            })
        });
        flushes.chain(moves)
    }
}
