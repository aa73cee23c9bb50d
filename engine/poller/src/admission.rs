//! Admission: from 64 hostile bytes to a range of a device and a range of memory, or the status
//! that says why not. The only check of what clients write.
//!
//! The copy was loaded from shared memory once; everything after looks at the copy only
//! (invariant 4). Most requests are a read or write of host memory without flags and deadline:
//! they pass the checks that every request passes, and skip the cold ones.

use kvrail_device::BufferIndex;
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::{FLAG_CHECKSUM, FLAG_DURABLE, FLAG_VERIFY, FLAGS_KNOWN};
use kvrail_ring::{DeviceIndex, Opcode, RequestWords, Status};

use crate::backend::{BackEnd, Route};
use crate::limits::SessionSlot;
use crate::regions::Regions;
use crate::task::{BufferRef, DeviceExtent, MemoryKind};

/// Whether requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    Open,
    /// New requests are answered DRAINING; `reported` once the control thread knows that all is
    /// done.
    Draining {
        reported: bool,
    },
}

/// What a sound request is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Admitted {
    /// Done: it asked for an answer.
    Nop,
    /// One for a device.
    Io(DeviceExtent, BufferRef),
}

/// The checks, and what they look at beside the session's regions.
#[derive(Debug)]
pub(crate) struct Admission {
    back_ends: Vec<BackEnd>,
    service: Service,
}

impl Admission {
    /// `devices` are the sidecar-wide numbers of this poller's devices, in local order.
    pub(crate) fn new(routes: &[Route], devices: &[DeviceIndex]) -> Self {
        let back_ends = routes.iter().map(|route| BackEnd::new(route, devices)).collect();
        Self { back_ends, service: Service::Open }
    }

    /// Answers DRAINING from now on.
    pub(crate) fn drain(&mut self) {
        self.service = Service::Draining { reported: false };
    }

    /// Once after `drain`: true.
    pub(crate) fn must_report_drained(&mut self) -> bool {
        let due = self.service == Service::Draining { reported: false };
        if due {
            self.service = Service::Draining { reported: true };
        }
        due
    }

    /// Checks a request against the volumes and the session's regions. A sound read or write is
    /// counted in at its region.
    ///
    /// # Errors
    /// The status that is its answer.
    #[inline(always)]
    pub(crate) fn check(
        &self,
        request: &RequestWords,
        session: SessionSlot,
        regions: &mut Regions,
    ) -> Result<Admitted, Status> {
        if self.service != Service::Open {
            return Err(Status::Draining);
        }
        request.class().ok_or(Status::Invalid)?;
        if !request.is_simple() {
            check_extras(*request)?;
        }
        if request.transfer().is_none() {
            return self.check_other(*request);
        }
        let (offset, length) = (request.region_offset(), request.length());
        let back_end = self.back_end(request)?;
        let extent = back_end.locate(request.volume_offset(), length)?;
        back_end.check_alignment(offset)?;
        let summed = request.flags() & (FLAG_CHECKSUM | FLAG_VERIFY) != 0;
        let range = (request.layout_block(), offset, length);
        let memory = regions.enter(session, request.region_id(), range, summed)?;
        Ok(Admitted::Io(extent, memory))
    }

    #[inline(always)]
    fn back_end(&self, request: &RequestWords) -> Result<&BackEnd, Status> {
        self.back_ends.get(usize::from(request.volume_id().0)).ok_or(Status::Invalid)
    }

    /// Checks a request that moves no bytes, or none that are known.
    #[cold]
    fn check_other(&self, request: RequestWords) -> Result<Admitted, Status> {
        let length = request.length();
        let extent = match request.opcode() {
            Some(Opcode::Nop) if length <= REQUEST_LENGTH_MAX => return Ok(Admitted::Nop),
            _ if request.flags() != 0 => return Err(Status::Invalid), // where no bytes move
            // A flush names a member by any offset on it.
            Some(Opcode::Flush) if length == 0 => {
                self.back_end(&request)?.device_at(request.volume_offset())?
            }
            Some(Opcode::Discard) => {
                self.back_end(&request)?.locate(request.volume_offset(), length)?
            }
            _ => return Err(Status::Invalid),
        };
        let none = BufferRef { buffer: BufferIndex(0), offset: 0, kind: MemoryKind::Host };
        Ok(Admitted::Io(extent, none))
    }
}

/// Checks what simple requests do not have: flags, a deadline, a layout block.
#[cold]
fn check_extras(request: RequestWords) -> Result<(), Status> {
    let moves = request.transfer().is_some();
    let durable_read =
        request.opcode() == Some(Opcode::Read) && request.flags() & FLAG_DURABLE != 0;
    let stray = request.layout_block() != 0 && !moves;
    let unknown = request.flags() & !FLAGS_KNOWN != 0;
    let sound = request.is_plain() && !(stray || unknown || durable_read);
    if sound { Ok(()) } else { Err(Status::Invalid) }
}
