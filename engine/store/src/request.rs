//! Requests to a store, and its answers.

use kvrail_units::METADATA_BYTES_MAX;

use crate::config::StoreGeometry;
use crate::hint::Hint;
use crate::key::Key;
use crate::task::Outcome;

/// A namespace as requests name it. Becomes unknown when the namespace is cleared or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(u32);

impl SpaceId {
    /// Names no namespace.
    pub const NONE: Self = Self(u32::MAX);

    pub(crate) fn new(number: u16, generation: u16) -> Self {
        Self(u32::from(generation) << 16 | u32::from(number))
    }

    pub(crate) fn split(self) -> (u16, u16) {
        let [a, b, c, d] = self.0.to_le_bytes();
        (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
    }
}

/// When the caller's word counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Found again after a crash of the process, once its page is written (50 ms).
    #[default]
    Soon,
    /// Found again after power loss, when it is answered.
    Durable,
}

/// The present part of the chain of blocks that a put belongs to: of one request's prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chain {
    /// At least half, or unknown: the block is admitted as far as the write budget allows.
    #[default]
    Extends,
    /// Less than half: the chain is taken if it is worth more than the coldest blocks there are.
    Begins,
}

impl Chain {
    /// Of a chain of `blocks` blocks, of which the first `there` are present.
    #[must_use]
    pub fn of(there: usize, blocks: usize) -> Self {
        if there < blocks.div_ceil(2) { Self::Begins } else { Self::Extends }
    }
}

/// The kind of place that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// A block whose bytes are all in its put.
    Block,
    /// A block whose parts arrive one after the other.
    Incomplete,
    /// A later part.
    Part,
    /// A drop.
    Drop,
}

/// Puts a block, or one part of it.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// Comes back in the reply, and names the client's memory in the task.
    pub user: u64,
    /// The session that issued the put.
    pub owner: u16,
    /// Namespace.
    pub space: SpaceId,
    /// Key.
    pub key: Key,
    /// Bytes of the whole block.
    pub length: u32,
    /// First byte of the block that this part has. Parts come in order and without gaps; all but
    /// the last are multiples of the logical block. The block is there when all parts are.
    pub at: u32,
    /// Bytes of this part.
    pub bytes: u32,
    /// The block's check, the same in each part.
    pub check: u64,
    /// The present part of its chain.
    pub chain: Chain,
    /// How deep in its chain the block is: 0 is the head of a prompt.
    pub depth: u16,
    /// The client's hint about the block's worth.
    pub hint: Hint,
    /// When it is answered.
    pub durability: Durability,
    /// Up to 1 KiB that stay with the block; of the first part.
    pub metadata: &'a [u8],
}

impl Put<'_> {
    /// The kind of place that it needs.
    pub(crate) fn place(&self) -> PlaceKind {
        match (self.at, self.bytes < self.length) {
            (0, false) => PlaceKind::Block,
            (0, true) => PlaceKind::Incomplete,
            _ => PlaceKind::Part,
        }
    }

    /// Whether a store of this geometry can take it.
    pub(crate) fn check_against(&self, geometry: &StoreGeometry, owners: u16) -> Result<(), Fault> {
        let unit = geometry.logical_block;
        if self.length == 0 || self.length > geometry.block_max() {
            return Err(Fault::Length);
        }
        let end = self.at.checked_add(self.bytes).ok_or(Fault::Part)?;
        let aligned = self.at.is_multiple_of(unit)
            && (end == self.length || end.is_multiple_of(unit) && end < self.length);
        if self.bytes == 0 || !aligned {
            return Err(Fault::Part);
        }
        if self.metadata.len() > METADATA_BYTES_MAX {
            return Err(Fault::Metadata);
        }
        if self.owner >= owners { Err(Fault::Limit) } else { Ok(()) }
    }
}

/// Which bytes of a block to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All, into memory of that many bytes at least.
    Whole {
        /// Bytes of the caller's memory.
        capacity: u32,
    },
    /// A part of a block too large for one request. `at` is a multiple of the logical block. The
    /// block may be replaced between two parts: the check over all parts detects the change.
    Part {
        /// First byte.
        at: u32,
        /// Bytes.
        bytes: u32,
    },
}

/// Gets a block.
#[derive(Clone, Copy, Debug)]
pub struct Get {
    /// Namespace.
    pub space: SpaceId,
    /// Key.
    pub key: Key,
    /// Which bytes.
    pub extent: Extent,
}

/// Drops a block.
#[derive(Clone, Copy, Debug)]
pub struct DropKey {
    /// Comes back in the reply.
    pub user: u64,
    /// The session that issued the request.
    pub owner: u16,
    /// Namespace.
    pub space: SpaceId,
    /// Key.
    pub key: Key,
    /// Drop only a block with this check.
    pub only: Option<u64>,
    /// When it is answered.
    pub durability: Durability,
}

/// Why nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeclineReason {
    /// All slots for puts are taken.
    Busy,
    /// The index is full; space is being made.
    IndexFull,
    /// The store is not serving: it has not read its heads yet, or did not start.
    Starting,
    /// No number is left for another segment: the store only reads.
    Broken,
    /// The drive refuses writes: the store only reads until it takes them again.
    Refused,
    /// Little is left of the write budget, and the key was not put before, as far as is known.
    FirstSight,
    /// Nothing is left of the write budget.
    Budget,
    /// The store has little of the block's chain, and what is there is used too often to make room
    /// for it.
    Colder,
}

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No such namespace, or it was cleared since.
    Space,
    /// The length is zero or above the largest block, or not that of the put's first part.
    Length,
    /// The part is misaligned, out of order, or outside of the block.
    Part,
    /// More than 1 KiB.
    Metadata,
    /// No such owner, or too many keys at once.
    Limit,
    /// The name or document is empty or too long, the uid was used before, or the name exists.
    Identity,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done. For a put: the block is there, all parts of it.
    Ok,
    /// This part is written; others are still missing.
    Part,
    /// Put: a block of that key is there already. Nothing was written.
    Present,
    /// Put: another put of that key is on its way. Nothing was written, nothing is promised.
    Pending,
    /// Put or drop: not taken; nothing is promised.
    Declined(DeclineReason),
    /// The block is not there.
    Miss,
    /// The block is not there yet: recovery has not seen everything.
    Warming,
    /// Get: the buffer is too small; the answer's length is the required size.
    TooSmall,
    /// Put: given up before it was complete, because of a drop, a clear, its owner's end, another
    /// part's failure, or the wait for the next part.
    Dropped,
    /// The device failed, with the caller's code.
    Failed(u16),
    /// The request is wrong; nothing was done.
    Invalid(Fault),
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// How it ended.
    pub status: Status,
    /// Bytes of the block, where there is one.
    pub length: u32,
    /// Its check, where there is one.
    pub check: u64,
}

impl From<Status> for Answer {
    fn from(status: Status) -> Self {
        Self { status, length: 0, check: 0 }
    }
}

/// The immediate result of a request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is answered.
    Done(Answer),
    /// A reply follows.
    Taken,
    /// The key of a durable put is there: a reply follows once that is durable.
    Confirms,
}

/// The result of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// It is answered.
    Done(Answer),
    /// The block is there: the caller reads it, and answers.
    Read(Reading),
}

/// A block that a get has found. It stays where it is until `Store::read_ended`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// For `Store::read_ended`.
    pub id: ReadId,
    /// First byte of the area; a multiple of the logical block.
    pub offset: u64,
    /// Bytes of the block. On the medium, padding up to a multiple of the logical block follows
    /// them, which must not reach the client's memory.
    pub exact: u32,
    /// The answer once all of them were read.
    pub answer: Answer,
}

impl Reading {
    /// The answer when it has ended so.
    #[must_use]
    pub fn ended(&self, outcome: Outcome) -> Answer {
        match outcome {
            Outcome::Done => self.answer,
            Outcome::Failed(code) => Answer { status: Status::Failed(code), ..self.answer },
        }
    }
}

/// The hold of a read: a segment. Reads of one segment have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadId(u32);

impl ReadId {
    pub(crate) fn new(segment: u32) -> Self {
        Self(segment)
    }

    pub(crate) fn segment(self) -> u32 {
        self.0
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

/// The answer to a request that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's.
    pub user: u64,
    /// The request's.
    pub owner: u16,
    /// The answer.
    pub answer: Answer,
}

/// The result of a lookup: bit n for the n-th key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FoundKeys {
    /// Bit mask of the keys with a present block.
    pub found: u64,
    /// Those of them that are held for the asker.
    pub held: u64,
    /// Keys that may yet turn up: recovery has not seen everything.
    pub warming: u64,
    /// Bytes of the present blocks together.
    pub bytes: u64,
}
