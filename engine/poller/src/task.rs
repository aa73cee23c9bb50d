//! A task: one operation of a device, from its admission to its completion, and whose it is.

use kvrail_device::{BUFFERS_MAX, BufferIndex, Durability, Operation, WINDOW_BYTES};
use kvrail_ring::slot::{FLAG_CHECKSUM, FLAG_DURABLE, FLAG_VERIFY};
use kvrail_ring::{Class, Opcode, RegionId, RequestSnapshot};

use crate::limits::SessionSlot;

/// Whose memory a task moves bytes of. Each kind waits and spends a budget of its own, so that a
/// GPU that hangs or has no staging slots holds up no request of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    Host,
    Gpu,
}

const _: () = assert!(MemoryKind::Host as u8 == 0);

impl MemoryKind {
    pub(crate) const ALL: [Self; 2] = [Self::Host, Self::Gpu];
}

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

/// Where on which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceExtent {
    /// The poller's own number of the device.
    pub(crate) device: u8,
    /// First byte on it.
    pub(crate) offset: u64,
}

/// Where in memory, seen from the devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BufferRef {
    pub(crate) buffer: BufferIndex,
    pub(crate) offset: u64,
}

impl BufferRef {
    /// Whose memory it is: entries of remote memory follow those of the host's.
    pub(crate) fn kind(self) -> MemoryKind {
        if self.buffer.0 < BUFFERS_MAX { MemoryKind::Host } else { MemoryKind::Gpu }
    }
}

/// What the tasks of a batch have in common, in one word as it stood in their lane: opcode, flags,
/// class and region; in place of the lap, the kind of memory, and whether the task is longer than
/// its device's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader(u64);

impl RequestHeader {
    #[inline(always)]
    pub(crate) fn opcode(self) -> Opcode {
        Opcode::from_number(self.byte(0)).expect("of a sound request")
    }

    #[inline(always)]
    pub(crate) fn class(self) -> Class {
        Class::from_number(self.byte(16)).expect("of a sound request")
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> MemoryKind {
        if self.byte(24) & 1 == 0 { MemoryKind::Host } else { MemoryKind::Gpu }
    }

    /// Whether the device has only `WINDOW_BYTES` of it at once.
    #[inline(always)]
    pub(crate) fn is_long(self) -> bool {
        self.byte(24) & 2 != 0
    }

    #[inline(always)]
    fn durability(self) -> Durability {
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

/// Who gets a task's completion. What the sidecar does for itself, such as a store's own reads and
/// writes, is another variant: it has no lane, and its completion goes elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// A request of a client.
    Client(ClientRequest),
}

/// A client's request, seen from its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientRequest {
    pub(crate) user_data: u64,
    /// Index in the lane table.
    pub(crate) lane: u16,
    pub(crate) session: SessionSlot,
}

impl Owner {
    /// The session in whose turn the task goes to its device.
    #[inline(always)]
    pub(crate) fn session(self) -> SessionSlot {
        let Self::Client(client) = self;
        client.session
    }

    /// Whether completions of both go the same way.
    #[inline(always)]
    pub(crate) fn joins(self, other: Self) -> bool {
        let (Self::Client(one), Self::Client(other)) = (self, other);
        one.lane == other.lane
    }
}

/// A task of this poller. Small, because it is stored and loaded for each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) owner: Owner,
    device_offset: u64,
    buffer_offset: u64,
    /// CRC of the bytes: the one expected, then the one computed.
    pub(crate) checksum: u64,
    pub(crate) accepted_ns: u64,
    pub(crate) submitted_ns: u64,
    pub(crate) header: RequestHeader,
    pub(crate) length: u32,
    buffer: BufferIndex,
    device: u8,
}

impl Task {
    /// The task of a sound request. The checksum it expects, if any, is set by the caller.
    #[inline(always)]
    pub(crate) fn new(
        request: &RequestSnapshot,
        (session, lane): (SessionSlot, u16),
        (extent, memory, kind): (DeviceExtent, BufferRef, MemoryKind),
        now_ns: u64,
    ) -> Self {
        let user_data = request.user_data();
        let long = u64::from(request.length() > WINDOW_BYTES);
        Self {
            owner: Owner::Client(ClientRequest { user_data, lane, session }),
            device_offset: extent.offset,
            buffer_offset: memory.offset,
            checksum: 0,
            accepted_ns: now_ns,
            submitted_ns: now_ns,
            header: RequestHeader(request.kinds() | (kind as u64 | long << 1) << 24),
            length: request.length(),
            buffer: memory.buffer,
            device: extent.device,
        }
    }

    /// The poller's own number of its device.
    #[inline(always)]
    pub(crate) fn device(&self) -> usize {
        usize::from(self.device)
    }

    /// What the device is asked.
    #[inline(always)]
    pub(crate) fn operation(&self, tag: u64) -> Operation {
        Operation {
            tag,
            opcode: self.header.opcode(),
            durability: self.header.durability(),
            offset: self.device_offset,
            length: self.length,
            buffer: self.buffer,
            buffer_offset: self.buffer_offset,
        }
    }

    /// First byte in its region, and their number.
    pub(crate) fn range(&self) -> (u64, u32) {
        (self.buffer_offset, self.length)
    }

    /// Notes the computed checksum; false when it is not the expected one, or could not be had.
    pub(crate) fn set_checksum(&mut self, computed: Option<u64>) -> bool {
        let expected = std::mem::replace(&mut self.checksum, computed.unwrap_or(0));
        let verify = self.header.checksum() == Checksum::Verify;
        self.header.0 &= !(u64::from(FLAG_CHECKSUM | FLAG_VERIFY) << 8);
        computed.is_some_and(|computed| !verify || computed == expected)
    }
}
