//! Acceptance: from 64 hostile bytes to a request that may run, or a status that says why not.
//!
//! The copy was loaded from shared memory once; everything after looks at the copy only
//! (invariant 4).

use kvrail_device::{BufferIndex, Durability, Operation};
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::{FLAG_CHECKSUM, FLAG_DURABLE, FLAG_VERIFY, FLAGS_KNOWN};
use kvrail_ring::{Class, Opcode, RegionId, RequestWords, Status};

use crate::backend::{Place, Placement};
use crate::device_queue::Side;
use crate::mailbox::SessionSlot;
use crate::regions::{Regions, Spot};

/// What is to be done about checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// Nothing.
    Off,
    /// Compute and return it.
    Compute,
    /// Compute it and compare it with the one expected.
    Verify,
}

/// What the requests of a run have in common, in one word as it stood in their lane: opcode, flags,
/// class and region; where the lap was, the side their bytes are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kin(u64);

impl Kin {
    #[inline(always)]
    fn new(request: &RequestWords, side: Side) -> Self {
        Self(request.kinds() | (side as u64) << 24)
    }

    #[inline(always)]
    pub(crate) fn opcode(self) -> Opcode {
        Opcode::from_number(self.byte(0)).expect("of a sound request")
    }

    #[inline(always)]
    pub(crate) fn class(self) -> Class {
        Class::from_number(self.byte(16)).expect("of a sound request")
    }

    #[inline(always)]
    pub(crate) fn side(self) -> Side {
        if self.byte(24) == 0 { Side::Host } else { Side::Remote }
    }

    #[inline(always)]
    pub(crate) fn durability(self) -> Durability {
        let durable = self.byte(8) & FLAG_DURABLE != 0;
        if durable { Durability::Durable } else { Durability::Visible }
    }

    #[inline(always)]
    pub(crate) fn checksum(self) -> Checksum {
        match self.byte(8) & (FLAG_CHECKSUM | FLAG_VERIFY) {
            0 => Checksum::Off,
            FLAG_CHECKSUM => Checksum::Compute,
            _ => Checksum::Verify,
        }
    }

    /// The same without a checksum: it was computed.
    pub(crate) fn summed(self) -> Self {
        Self(self.0 & !(u64::from(FLAG_CHECKSUM | FLAG_VERIFY) << 8))
    }

    /// The region its bytes are in; `None` where no bytes move.
    #[inline(always)]
    pub(crate) fn region(self) -> Option<RegionId> {
        let moves = matches!(self.opcode(), Opcode::Read | Opcode::Write);
        moves.then_some(RegionId((self.0 >> 32) as u32))
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "takes eight bits out of a word")]
    fn byte(self, shift: u32) -> u8 {
        (self.0 >> shift) as u8
    }
}

const _: () = assert!(Side::Host as u8 == 0);

/// A request this poller answers for. Small, because it is stored and loaded for each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    pub(crate) user_data: u64,
    pub(crate) device_offset: u64,
    pub(crate) buffer_offset: u64,
    /// CRC of the bytes: the one expected, then the one computed.
    pub(crate) sum: u64,
    pub(crate) accepted_ns: u64,
    pub(crate) submitted_ns: u64,
    pub(crate) kin: Kin,
    pub(crate) length: u32,
    pub(crate) buffer: BufferIndex,
    /// Place in the lane table.
    pub(crate) lane: u16,
    pub(crate) session: SessionSlot,
    pub(crate) device: u8,
}

/// Whose request it is, and when it was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) session: SessionSlot,
    pub(crate) lane: u16,
    pub(crate) now_ns: u64,
}

/// What a sound request wants.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish {
    /// An answer.
    Nop,
    /// A device.
    Operation(Target),
}

/// Where a sound request goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    place: Place,
    spot: Spot,
}

impl Target {
    /// Where a simple read or write of host memory goes, if it is one and sound. A sound one is
    /// counted in at its region; `Regions::leave` counts it out.
    #[inline(always)]
    pub(crate) fn simple(
        request: &RequestWords,
        session: SessionSlot,
        placement: &Placement,
        regions: &mut Regions,
    ) -> Option<Self> {
        request.transfer()?;
        request.class()?;
        if !request.is_simple() {
            return None;
        }
        let (offset, length) = (request.region_offset(), request.length());
        let route = placement.volumes.get(usize::from(request.volume_id().0))?;
        let place = route.place_simple(request.volume_offset(), length)?;
        route.check_memory(offset).ok()?;
        let buffer = regions.enter_host(session, request.region_id(), offset, length)?;
        let spot = Spot { buffer, offset, side: Side::Host };
        Some(Self { place, spot })
    }
}

impl Wish {
    /// Checks a request against the volumes and the session's regions. A read or write that is
    /// sound is counted in at its region; `Regions::leave` counts it out.
    pub(crate) fn check(
        request: &RequestWords,
        session: SessionSlot,
        placement: &Placement,
        regions: &mut Regions,
    ) -> Result<Self, Status> {
        let unknown = request.flags() & !FLAGS_KNOWN;
        let moves = matches!(request.opcode(), Some(Opcode::Read | Opcode::Write));
        let stray = request.layout_block() != 0 && !moves;
        if stray || !request.is_plain() || unknown != 0 || request.length() > REQUEST_LENGTH_MAX {
            return Err(Status::Invalid);
        }
        request.class().ok_or(Status::Invalid)?;
        let opcode = request.opcode().ok_or(Status::Invalid)?;
        match opcode {
            Opcode::Read | Opcode::Write => {
                let (id, length) = (request.region_id(), request.length());
                let route = placement.route(request.volume_id())?;
                let place = route.place(request.volume_offset(), length)?;
                route.check_memory(request.region_offset())?;
                let durable = request.flags() & FLAG_DURABLE != 0;
                if durable && opcode == Opcode::Read {
                    return Err(Status::Invalid);
                }
                let at = (request.layout_block(), request.region_offset());
                let spot = regions.enter(session, id, at, length)?;
                // Nothing on a poller reads the memory of a GPU.
                let summed = request.flags() & (FLAG_CHECKSUM | FLAG_VERIFY) != 0;
                if summed && spot.side == Side::Remote {
                    let _never_last = regions.leave(id, 1); // the region is live, seen just now
                    return Err(Status::Unsupported);
                }
                Ok(Self::Operation(Target { place, spot }))
            }
            Opcode::Nop => Ok(Self::Nop),
            Opcode::Flush | Opcode::Discard => {
                let place = locate_range(request, opcode, placement)?;
                let spot = Spot { buffer: BufferIndex(0), offset: 0, side: Side::Host };
                Ok(Self::Operation(Target { place, spot }))
            }
        }
    }
}

/// Where a request without bytes goes. A flush names a member by any place on it: the first block
/// at `volume_offset`.
#[inline(never)]
fn locate_range(
    request: &RequestWords,
    opcode: Opcode,
    placement: &Placement,
) -> Result<Place, Status> {
    if request.flags() != 0 {
        return Err(Status::Invalid); // flags make sense only where bytes move
    }
    let route = placement.route(request.volume_id())?;
    match (opcode, request.length()) {
        (Opcode::Flush, 0) => {
            let place = route.place(request.volume_offset(), route.logical_block())?;
            Ok(Place { device_offset: 0, ..place }) // all of the member
        }
        (Opcode::Flush, _) => Err(Status::Invalid),
        (_, length) => route.place(request.volume_offset(), length),
    }
}

impl Accepted {
    /// What is kept of a sound request that expects no checksum.
    #[inline(always)]
    pub(crate) fn simple(request: &RequestWords, origin: Origin, target: Target) -> Self {
        let Target { place, spot } = target;
        Self {
            user_data: request.user_data(),
            device_offset: place.device_offset,
            buffer_offset: spot.offset,
            sum: 0,
            accepted_ns: origin.now_ns,
            submitted_ns: origin.now_ns,
            kin: Kin::new(request, spot.side),
            length: request.length(),
            buffer: spot.buffer,
            lane: origin.lane,
            session: origin.session,
            device: place.device,
        }
    }

    /// What is kept of any sound request.
    pub(crate) fn new(request: &RequestWords, origin: Origin, target: Target) -> Self {
        let simple = Self::simple(request, origin, target);
        let verify = simple.kin.checksum() == Checksum::Verify;
        Self { sum: if verify { request.checksum() } else { 0 }, ..simple }
    }

    /// As `operation`, for a request without flags.
    #[inline(always)]
    pub(crate) fn simple_operation(&self, tag: u64) -> Operation {
        Operation { durability: Durability::Visible, ..self.operation(tag) }
    }

    /// What the device is asked.
    #[inline(always)]
    pub(crate) fn operation(&self, tag: u64) -> Operation {
        Operation {
            tag,
            opcode: self.kin.opcode(),
            durability: self.kin.durability(),
            offset: self.device_offset,
            length: self.length,
            buffer: self.buffer,
            buffer_offset: self.buffer_offset,
        }
    }

    /// Notes the computed checksum; false when it is not the expected one, or could not be had.
    pub(crate) fn settle_checksum(&mut self, sum: Option<u64>) -> bool {
        let expected = std::mem::replace(&mut self.sum, sum.unwrap_or(0));
        sum.is_some_and(|sum| self.kin.checksum() != Checksum::Verify || sum == expected)
    }
}
