//! Tasks of a store, and where their bytes are.

/// Names a task; comes back with its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(u32);

/// Which table a task belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A part of a put.
    Part,
    /// An image of the store's own.
    Image,
    /// A buffer: moves, recovery.
    Buffer,
    Flush,
    Discard,
    /// A page of a listing.
    List,
}

const ORIGINS: [Origin; 6] =
    [Origin::Part, Origin::Image, Origin::Buffer, Origin::Flush, Origin::Discard, Origin::List];
const SLOT_BITS: u32 = 28;

impl TaskId {
    pub(crate) fn new(origin: Origin, slot: u32) -> Self {
        debug_assert!(slot >> SLOT_BITS == 0, "tables have at most 2^20 rows");
        let code = match origin {
            Origin::Part => 0,
            Origin::Image => 1,
            Origin::Buffer => 2,
            Origin::Flush => 3,
            Origin::Discard => 4,
            Origin::List => 5,
        };
        Self(code << SLOT_BITS | slot)
    }

    pub(crate) fn split(self) -> (Origin, u32) {
        (ORIGINS[(self.0 >> SLOT_BITS) as usize], self.0 & ((1 << SLOT_BITS) - 1))
    }

    /// The name that has this number.
    #[must_use]
    pub const fn of_number(number: u32) -> Self {
        Self(number)
    }

    /// The number for a word of the caller's.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

/// The operation of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Medium to memory.
    Read,
    /// Memory to medium; may be lost with the power until a flush.
    Write,
    /// Memory to medium; on stable media when it is done.
    WriteDurable,
    /// All writes that were done before this began are on stable media when it is done.
    Flush,
    /// The range is not needed any more.
    Discard,
}

/// Where the bytes come from or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskMemory {
    /// No bytes move.
    None,
    /// Memory of the put with this token. The transfer is `MemberTask::length` bytes on the medium,
    /// of which the put has `exact`: the rest is padding with arbitrary content.
    Client {
        /// The request's.
        user: u64,
        /// Bytes that are the block's.
        exact: u32,
    },
    /// The store's own buffer with this number, from this byte on.
    Pool {
        /// Below `Store::pool_buffers`.
        buffer: u16,
        /// Bytes from its begin.
        at: u32,
    },
}

/// Requests that wait for the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A client.
    Client,
    /// Puts and drops, for the space that it makes; it is done for this owner.
    Space {
        /// Of a request that waits for space.
        owner: u16,
    },
    /// None: moves ahead of time, and recovery.
    Background,
}

/// One operation on the member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberTask {
    /// Its name.
    pub id: TaskId,
    /// The operation.
    pub verb: Verb,
    /// First byte of the area; a multiple of the logical block.
    pub offset: u64,
    /// Bytes; a multiple of the logical block.
    pub length: u64,
    /// Memory of the bytes.
    pub memory: TaskMemory,
    /// Requests that wait for the task.
    pub urgency: Urgency,
}

/// How a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every byte was moved.
    Done,
    /// It failed in part or in full; the code is the caller's and comes back in answers.
    Failed(u16),
}

/// The store's own buffers: memory that the device reaches. The caller owns it; the store copies
/// pages in and out.
pub trait Pool {
    /// Copies bytes out of a buffer.
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]);

    /// Copies bytes into a buffer.
    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]);
}
