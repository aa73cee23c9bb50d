//! A task: one operation of a device, from its admission to its completion, and whose it is.

use kvrail_device::{BUFFERS_MAX, BufferIndex, Durability, Operation, WINDOW_BYTES};
use kvrail_ring::slot::FLAG_DURABLE;
use kvrail_ring::{Class, Opcode, RegionId, RequestSnapshot, Status};
use kvrail_store::ReadId;

use crate::limits::{LANES_MAX, SIDECAR, SessionSlot};

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
/// class and region; in place of the lap, the kind of memory, whether the task is longer than its
/// device's window, whether a store's block is read, whether it makes space for a session, and
/// whether a store has it.
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

    /// Whether it is a client's read of a store's block.
    #[inline(always)]
    pub(crate) fn is_of_block(self) -> bool {
        self.byte(24) & 4 != 0
    }

    /// Whether a store does it for space that a session's requests wait for.
    #[inline(always)]
    pub(crate) fn is_for_space(self) -> bool {
        self.byte(24) & 8 != 0
    }

    /// Whether it is a client's request that a store has, or that waits for room there.
    #[inline(always)]
    pub(crate) fn is_with_store(self) -> bool {
        self.byte(24) & 16 != 0
    }

    #[inline(always)]
    fn durability(self) -> Durability {
        let durable = self.byte(8) & FLAG_DURABLE != 0;
        if durable { Durability::Durable } else { Durability::Visible }
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

/// Which client's lane, or which store, gets a task's completion. The number of the
/// lane decides between both, so that one look at the first of a lane's tasks serves for all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskOwner {
    /// A client's, or a store's name for it.
    tag: u64,
    /// Index in the lane table, or behind it that of the shard.
    lane: u16,
    session: SessionSlot,
    /// The shard whose block a client reads; 0 where it reads a volume.
    shard: u8,
    /// What the read of a block holds there.
    read: u32,
}

/// First lane number that is a shard's.
#[expect(clippy::cast_possible_truncation, reason = "1,024 lanes")]
const SHARD_LANES: u16 = LANES_MAX as u16;

/// A client's request, seen from its completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientRequest {
    pub(crate) user_data: u64,
    /// Index in the lane table.
    pub(crate) lane: u16,
    pub(crate) session: SessionSlot,
}

/// Requests of one session, lane and region that have ended alike; their completions are staged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedRequests {
    pub(crate) client: ClientRequest,
    pub(crate) status: Status,
    pub(crate) count: u32,
    /// Bytes that went to or from the client's memory.
    pub(crate) bytes: u64,
    /// Those that each has entered.
    pub(crate) regions: [Option<RegionId>; 2],
}

/// The read of a block, seen from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRead {
    /// Which of this poller's shards.
    pub(crate) shard: u8,
    /// What it holds there.
    pub(crate) id: ReadId,
}

/// What a store asked of its device, seen from its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreTask {
    /// Which of this poller's shards.
    pub(crate) shard: u8,
    /// The shard's name for it.
    pub(crate) tag: u64,
}

impl TaskOwner {
    /// A client's request.
    #[inline(always)]
    pub(crate) fn client(user_data: u64, lane: u16, session: SessionSlot) -> Self {
        Self { tag: user_data, lane, session, shard: 0, read: 0 }
    }

    /// A client's get that one read answers.
    #[inline(always)]
    pub(crate) fn getter(client: ClientRequest, BlockRead { shard, id }: BlockRead) -> Self {
        let ClientRequest { user_data: tag, lane, session } = client;
        Self { tag, lane, session, shard, read: id.number() }
    }

    /// A store's task, in the turn of the session that it is done for.
    pub(crate) fn store(task: StoreTask, session: Option<SessionSlot>) -> Self {
        let lane = SHARD_LANES + u16::from(task.shard);
        let session = session.unwrap_or(SIDECAR);
        Self { tag: task.tag, lane, session, shard: 0, read: 0 }
    }

    /// What the read of a block holds, of one that is.
    #[inline(always)]
    pub(crate) fn block_read(self) -> BlockRead {
        BlockRead { shard: self.shard, id: ReadId::of_number(self.read) }
    }

    /// The client's request, if it is one.
    #[inline(always)]
    pub(crate) fn as_client(self) -> Option<ClientRequest> {
        let Self { tag: user_data, lane, session, .. } = self;
        (lane < SHARD_LANES).then_some(ClientRequest { user_data, lane, session })
    }

    /// The same, for an owner that joins a client's.
    #[inline(always)]
    pub(crate) fn beside_client(self) -> ClientRequest {
        ClientRequest { user_data: self.tag, lane: self.lane, session: self.session }
    }

    /// The store's task, if it is one.
    pub(crate) fn as_store(self) -> Option<StoreTask> {
        let shard = u8::try_from(self.lane.checked_sub(SHARD_LANES)?).expect("256 shards");
        Some(StoreTask { shard, tag: self.tag })
    }

    /// The session in whose turn the task goes to its device.
    #[inline(always)]
    pub(crate) fn session(self) -> SessionSlot {
        self.session
    }

    /// Whether completions of both go the same way.
    #[inline(always)]
    pub(crate) fn joins(self, other: Self) -> bool {
        (self.lane, self.shard) == (other.lane, other.shard)
    }
}

/// A task of this poller. Small, because it is stored and loaded for each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) owner: TaskOwner,
    device_offset: u64,
    buffer_offset: u64,
    pub(crate) accepted_ns: u64,
    pub(crate) submitted_ns: u64,
    pub(crate) header: RequestHeader,
    pub(crate) length: u32,
    buffer: BufferIndex,
    device: u8,
}

impl Task {
    /// The task of a sound request.
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
            owner: TaskOwner::client(user_data, lane, session),
            device_offset: extent.offset,
            buffer_offset: memory.offset,
            accepted_ns: now_ns,
            submitted_ns: now_ns,
            header: RequestHeader(request.kinds() | (kind as u64 | long << 1) << 24),
            length: request.length(),
            buffer: memory.buffer,
            device: extent.device,
        }
    }

    /// The read of a block that a get asks for.
    #[inline(always)]
    pub(crate) fn of_block(
        owner: TaskOwner,
        get: &RequestSnapshot,
        ((extent, memory, length), kind): ((DeviceExtent, BufferRef, u32), MemoryKind),
        now_ns: u64,
    ) -> Self {
        // Class and region; a get's flags are none of a read's.
        let kinds = get.kinds() & !0xffff | Opcode::Read as u64;
        let long = u64::from(length > WINDOW_BYTES);
        Self {
            owner,
            device_offset: extent.offset,
            buffer_offset: memory.offset,
            accepted_ns: now_ns,
            submitted_ns: now_ns,
            header: RequestHeader(kinds | (kind as u64 | long << 1 | 1 << 2) << 24),
            length,
            buffer: memory.buffer,
            device: extent.device,
        }
    }

    /// A client's request that its store has: no operation of the device yet.
    pub(crate) fn with_store(
        client: ClientRequest,
        (opcode, class): (Opcode, Class),
        device: u8,
        length: u32,
        now_ns: u64,
    ) -> Self {
        let kinds = opcode as u64 | (class as u64) << 16 | 16 << 24;
        Self {
            owner: TaskOwner::client(client.user_data, client.lane, client.session),
            device_offset: 0,
            buffer_offset: 0,
            accepted_ns: now_ns,
            submitted_ns: now_ns,
            header: RequestHeader(kinds),
            length,
            buffer: BufferIndex(0),
            device,
        }
    }

    /// A task of a store's. Its memory is entered and left by the caller.
    pub(crate) fn of_store(
        owner: TaskOwner,
        (opcode, class): (Opcode, Class),
        durability: Durability,
        (extent, memory, length): (DeviceExtent, BufferRef, u32),
        (accepted_ns, now_ns): (u64, u64),
    ) -> Self {
        let flags = if durability == Durability::Durable { FLAG_DURABLE } else { 0 };
        let moved = matches!(opcode, Opcode::Read | Opcode::Write);
        let long = u64::from(moved && length > WINDOW_BYTES);
        let kind = if moved { memory.kind() } else { MemoryKind::Host };
        let kinds = opcode as u64 | u64::from(flags) << 8 | (class as u64) << 16;
        Self {
            owner,
            device_offset: extent.offset,
            buffer_offset: memory.offset,
            accepted_ns,
            submitted_ns: now_ns,
            header: RequestHeader(kinds | (kind as u64 | long << 1) << 24),
            length,
            buffer: memory.buffer,
            device: extent.device,
        }
    }

    /// The same for space that this session's requests wait for, or that none waits for.
    pub(crate) fn making_space(self, session: Option<SessionSlot>) -> Self {
        let header = match session {
            Some(_) => self.header.0 | 8 << 24,
            None => self.header.0 & !(8 << 24),
        };
        let owner = TaskOwner { session: session.unwrap_or(SIDECAR), ..self.owner };
        Self { owner, header: RequestHeader(header), ..self }
    }

    /// In whose turn it goes to its device, and how urgently.
    pub(crate) fn turn(&self) -> (SessionSlot, Class) {
        let class = match self.header.is_for_space() {
            true => Class::Demand,
            false => self.header.class(),
        };
        (self.owner.session(), class)
    }

    /// Whether it writes a page, a head or a super of a store's: a write of the sidecar's own that
    /// a client may wait for.
    pub(crate) fn is_record(&self) -> bool {
        let demand = (self.header.opcode(), self.header.class()) == (Opcode::Write, Class::Demand);
        demand && self.owner.session() == SIDECAR
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
}
