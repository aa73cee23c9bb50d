//! Acceptance: from 64 hostile bytes to a request that may run, or a status that says why not.
//!
//! The copy was loaded from shared memory once; everything after looks at the copy only
//! (invariant 4).

use kvrail_device::{BufferIndex, Durability, Operation};
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::{FLAG_CHECKSUM, FLAG_DURABLE, FLAG_VERIFY, FLAGS_KNOWN};
use kvrail_ring::{Class, Opcode, RegionId, Request, Status};

use crate::mailbox::SessionSlot;
use crate::placement::Placement;
use crate::region::Regions;
use crate::unit::Side;

/// What is to be done about checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// Nothing.
    Off,
    /// Compute and return it.
    Compute,
    /// Compute it and compare it with this.
    Verify(u64),
}

/// A request this poller answers for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    pub(crate) user_data: u64,
    pub(crate) opcode: Opcode,
    pub(crate) class: Class,
    pub(crate) durability: Durability,
    pub(crate) checksum: Checksum,
    /// CRC of the bytes, once computed.
    pub(crate) computed: u64,
    pub(crate) session: SessionSlot,
    /// Place in the lane table.
    pub(crate) lane: u16,
    pub(crate) device: u8,
    pub(crate) side: Side,
    pub(crate) length: u32,
    pub(crate) device_offset: u64,
    /// `None` where no bytes move.
    pub(crate) region: Option<RegionId>,
    pub(crate) buffer: BufferIndex,
    pub(crate) buffer_offset: u64,
    pub(crate) accepted_ns: u64,
    pub(crate) submitted_ns: u64,
    /// When a LATE notice is due; `u64::MAX` when none is (any more).
    pub(crate) late_at_ns: u64,
}

/// Whose request it is, and when it was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) session: SessionSlot,
    pub(crate) lane: u16,
    pub(crate) now_ns: u64,
}

impl Accepted {
    /// Checks a request against the volumes and the session's regions.
    #[inline(always)]
    pub(crate) fn check(
        request: &Request,
        origin: Origin,
        placement: &Placement,
        regions: &Regions,
    ) -> Result<Self, Status> {
        let opcode = Opcode::from_number(request.opcode).ok_or(Status::Invalid)?;
        let class = Class::from_number(request.class).ok_or(Status::Invalid)?;
        let moves = matches!(opcode, Opcode::Read | Opcode::Write);
        let reserved = request.reserved_a != 0
            || request.reserved_b != 0
            || request.reserved_c != 0
            || (request.layout_block != 0 && !moves);
        let too_long = request.length > REQUEST_LENGTH_MAX;
        if reserved || too_long || request.flags & !FLAGS_KNOWN != 0 {
            return Err(Status::Invalid);
        }
        let late_at_ns = match request.deadline_ns {
            0 => u64::MAX,
            after => origin.now_ns.saturating_add(after),
        };
        let mut accepted = Self {
            user_data: request.user_data,
            opcode,
            class,
            durability: Durability::Visible,
            checksum: Checksum::Off,
            computed: 0,
            session: origin.session,
            lane: origin.lane,
            device: 0,
            side: Side::Host,
            length: request.length,
            device_offset: 0,
            region: None,
            buffer: BufferIndex(0),
            buffer_offset: request.region_offset,
            accepted_ns: origin.now_ns,
            submitted_ns: origin.now_ns,
            late_at_ns,
        };
        match opcode {
            Opcode::Nop => Ok(accepted),
            Opcode::Read | Opcode::Write => {
                accepted.locate(request, placement)?;
                accepted.aim(request, placement, regions)?;
                Ok(accepted)
            }
            Opcode::Discard => {
                accepted.refuse_flags(request)?;
                accepted.locate(request, placement)?;
                Ok(accepted)
            }
            Opcode::Flush => {
                accepted.refuse_flags(request)?;
                accepted.locate_member(request, placement)?;
                Ok(accepted)
            }
        }
    }

    /// Flags that make sense only where bytes move.
    #[inline]
    fn refuse_flags(&self, request: &Request) -> Result<(), Status> {
        if request.flags == 0 { Ok(()) } else { Err(Status::Invalid) }
    }

    #[inline(always)]
    fn locate(&mut self, request: &Request, placement: &Placement) -> Result<(), Status> {
        let place = placement.place(request.volume_id(), request.volume_offset, request.length)?;
        (self.device, self.device_offset) = (place.device, place.device_offset);
        Ok(())
    }

    /// A flush names a member by any range on it: the first block at `volume_offset`.
    #[inline]
    fn locate_member(&mut self, request: &Request, placement: &Placement) -> Result<(), Status> {
        if request.length != 0 {
            return Err(Status::Invalid);
        }
        let geometry = placement.geometry(request.volume_id()).ok_or(Status::Invalid)?;
        let block = geometry.logical_block;
        let place = placement.place(request.volume_id(), request.volume_offset, block)?;
        self.device = place.device;
        Ok(())
    }

    /// Points the request at its bytes.
    #[inline(always)]
    fn aim(
        &mut self,
        request: &Request,
        placement: &Placement,
        regions: &Regions,
    ) -> Result<(), Status> {
        let geometry = placement.geometry(request.volume_id()).ok_or(Status::Invalid)?;
        let inside_unit = u64::from(geometry.memory_alignment) - 1; // a power of two
        if request.region_offset & inside_unit != 0 {
            return Err(Status::Invalid);
        }
        let target = regions.check(self.session, request)?;
        (self.region, self.side) = (Some(request.region_id()), target.side);
        (self.buffer, self.buffer_offset) = (target.buffer, target.offset);
        let durable = request.flags & FLAG_DURABLE != 0;
        if durable && self.opcode == Opcode::Read {
            return Err(Status::Invalid);
        }
        if durable {
            self.durability = Durability::Durable;
        }
        // Nothing on a poller reads the memory of a GPU.
        if self.side == Side::Remote && request.flags & (FLAG_VERIFY | FLAG_CHECKSUM) != 0 {
            return Err(Status::Unsupported);
        }
        self.checksum = if request.flags & FLAG_VERIFY != 0 {
            Checksum::Verify(request.checksum)
        } else if request.flags & FLAG_CHECKSUM != 0 {
            Checksum::Compute
        } else {
            Checksum::Off
        };
        Ok(())
    }

    /// What the device is asked.
    #[inline]
    pub(crate) fn operation(&self, tag: u64) -> Operation {
        Operation {
            tag,
            opcode: self.opcode,
            durability: self.durability,
            offset: self.device_offset,
            length: self.length,
            buffer: self.buffer,
            buffer_offset: self.buffer_offset,
        }
    }
}
