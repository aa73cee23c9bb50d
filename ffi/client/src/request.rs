//! Requests to volumes.

use std::time::Duration;

use kvrail_ring::slot::FLAG_DURABLE;
use kvrail_ring::{Class, Opcode, PollerIndex};

use crate::gpu::GpuRange;
use crate::lease::Lease;
use crate::tag::ClientTag;
use crate::volume::Volume;

/// Flag of this library: compute CRC-64/NVME of the bytes.
pub(crate) const CHECKSUM: u8 = 1 << 6;
/// Flag of this library: compare it, too.
pub(crate) const VERIFY: u8 = 1 << 7;

/// One request, built step by step and given to a [`crate::Queue`]. It owns its lease.
#[derive(Debug)]
#[must_use]
pub struct Request {
    pub(crate) opcode: Opcode,
    pub(crate) flags: u8,
    pub(crate) class: Class,
    pub(crate) volume: u16,
    /// For a nop: where it goes.
    pub(crate) lane: u16,
    pub(crate) client: ClientTag,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) checksum: u64,
    pub(crate) deadline_ns: u64,
    pub(crate) tag: u64,
    pub(crate) lease: Option<Lease>,
    /// In place of a lease.
    pub(crate) gpu: Option<GpuRange>,
}

impl Request {
    #[inline(always)]
    fn new(
        opcode: Opcode,
        volume: &Volume,
        offset: u64,
        length: u64,
        lease: Option<Lease>,
    ) -> Self {
        Self {
            opcode,
            flags: 0,
            class: Class::default(),
            volume: volume.id.0,
            lane: 0,
            client: volume.tag,
            offset,
            length,
            checksum: 0,
            deadline_ns: 0,
            tag: 0,
            lease,
            gpu: None,
        }
    }

    /// Fills the lease with the volume's bytes from `offset` on.
    #[inline]
    pub fn read(volume: &Volume, offset: u64, lease: Lease) -> Self {
        Self::new(Opcode::Read, volume, offset, lease.bytes(), Some(lease))
    }

    /// Writes the lease's bytes to the volume from `offset` on.
    #[inline]
    pub fn write(volume: &Volume, offset: u64, lease: Lease) -> Self {
        Self::new(Opcode::Write, volume, offset, lease.bytes(), Some(lease))
    }

    /// Fills the range of a block in GPU memory with the volume's bytes from `offset` on. Nothing
    /// may use that memory until the request has ended; after [`kvrail_ring::Status::Restarted`]
    /// not before the sidecar's process is gone.
    #[inline]
    pub fn read_gpu(volume: &Volume, offset: u64, range: GpuRange) -> Self {
        let request = Self::new(Opcode::Read, volume, offset, range.bytes, None);
        Self { gpu: Some(range), ..request }
    }

    /// Writes the range of a block in GPU memory to the volume from `offset` on. The kernels that
    /// made its bytes must have ended: the sidecar does not see the program's streams.
    #[inline]
    pub fn write_gpu(volume: &Volume, offset: u64, range: GpuRange) -> Self {
        let request = Self::new(Opcode::Write, volume, offset, range.bytes, None);
        Self { gpu: Some(range), ..request }
    }

    /// Makes every write to the volume that was completed before durable.
    pub fn flush(volume: &Volume) -> Self {
        Self::new(Opcode::Flush, volume, 0, 0, None)
    }

    /// Lets the devices forget a range. What a later read finds there is undefined.
    pub fn discard(volume: &Volume, offset: u64, length: u64) -> Self {
        Self::new(Opcode::Discard, volume, offset, length, None)
    }

    /// A round trip to the poller of the volume's first member, without the device.
    #[inline]
    pub fn nop(volume: &Volume) -> Self {
        let lane = volume.info.pollers.first().copied().unwrap_or(0);
        Self { lane, ..Self::new(Opcode::Nop, volume, 0, 0, None) }
    }

    /// A round trip to one poller, without a device.
    pub(crate) fn nop_to(client: ClientTag, poller: PollerIndex) -> Self {
        Self {
            opcode: Opcode::Nop,
            flags: 0,
            class: Class::default(),
            volume: 0,
            lane: poller.0,
            client,
            offset: 0,
            length: 0,
            checksum: 0,
            deadline_ns: 0,
            tag: 0,
            lease: None,
            gpu: None,
        }
    }

    /// A copy at another address: a cold path that gets it does not force this one to the stack.
    #[inline(always)]
    pub(crate) fn copied(self) -> Self {
        let bare = self.bare();
        Self { lease: self.lease, ..bare }
    }

    /// The request without its lease.
    #[inline(always)]
    pub(crate) fn bare(&self) -> Self {
        let Self { opcode, flags, class, volume, lane, client, .. } = *self;
        let Self { offset, length, checksum, deadline_ns, tag, gpu, .. } = *self;
        let lease = None;
        Self {
            opcode,
            flags,
            class,
            volume,
            lane,
            client,
            offset,
            length,
            checksum,
            deadline_ns,
            tag,
            lease,
            gpu,
        }
    }

    /// How urgent it is; by default [`Class::Demand`].
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// A name of the program's own, which comes back in [`crate::Completed::tag`].
    pub fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// Moves only the first `length` bytes of the lease or range.
    pub fn length(self, length: u64) -> Self {
        Self { length, ..self }
    }

    /// For a write: it is on stable media when it completes.
    pub fn durable(self) -> Self {
        Self { flags: self.flags | FLAG_DURABLE, ..self }
    }

    /// For a read or write: return CRC-64/NVME of the bytes moved. It is computed on the program's
    /// thread: before a write is submitted, and where the completion of a read is fetched.
    pub fn checksum(self) -> Self {
        Self { flags: self.flags | CHECKSUM, ..self }
    }

    /// As `checksum`; bytes whose CRC-64/NVME is not this one end as CORRUPT, and such a write is
    /// not started.
    pub fn verify(self, checksum: u64) -> Self {
        Self { flags: self.flags | VERIFY, checksum, ..self }
    }

    /// When the request takes longer than this from its acceptance, a notice with
    /// [`kvrail_ring::Status::Late`] comes; the request itself goes on, and its end comes later.
    pub fn deadline(self, after: Duration) -> Self {
        let ns = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        Self { deadline_ns: ns.max(1), ..self }
    }

    /// Takes the request apart.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.lease
    }
}
