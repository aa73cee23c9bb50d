//! The seat of an arm: what the drivers ask of anything that moves blocks.
//!
//! A [`Target`] is the way to a volume: a bare ring on its files, or a sidecar over lanes. A client
//! thread opens a [`Port`] on it, one that stays in that thread. The drivers know nothing else, so
//! every arm is driven by the same code with the same offsets.

use std::fmt;

use anyhow::{Result, bail, ensure};
use kvrail_ring::Status;
use rustix::io::Errno;

/// Whether bytes go from the volume to memory or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Volume to memory.
    Read,
    /// Memory to volume.
    Write,
}

/// One operation on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Which way.
    pub direction: Direction,
    /// First byte in the volume.
    pub offset: u64,
    /// Bytes to move, at most the buffer of a slot.
    pub bytes: u32,
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// By the kernel.
    Errno(Errno),
    /// By the sidecar.
    Status(Status),
    /// Fewer bytes than asked for, and no more to be had.
    Short {
        /// Bytes that were moved.
        moved: u32,
    },
    /// The CRC of the bytes is not the one that they were put with.
    Check,
    /// The store's ring may have come round since the block's put, or a cache, which may drop any
    /// block, has dropped it or not taken it. No error.
    Evicted,
    /// A lookup's answer for a key was wrong.
    Lookup {
        /// Length of the prefix of keys that the answer has as present.
        prefix: u32,
        /// Keys from the first on that are.
        expected: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => write!(f, "{errno}"),
            Self::Status(status) => write!(f, "status {status}"),
            Self::Short { moved } => write!(f, "ended after {moved} bytes"),
            Self::Check => f.write_str("its CRC is not that of what was put"),
            Self::Evicted => f.write_str("evicted"),
            Self::Lookup { prefix, expected } => {
                write!(f, "a lookup found a prefix of {prefix} keys, {expected} are there")
            }
        }
    }
}

/// The end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    /// The slot it ran in, free again.
    pub slot: u32,
    /// How it ended; OK means every byte.
    pub outcome: Result<(), Fault>,
}

/// How long a `turn` may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnWait {
    /// Only look.
    No,
    /// Until at least one operation has ended.
    ForOne,
}

/// The shape of a port.
#[derive(Clone, Copy, Debug)]
pub struct PortShape {
    /// Operations in flight at most, each with a buffer of its own.
    pub slots: u32,
    /// Bytes of each buffer.
    pub buffer_bytes: u32,
}

impl PortShape {
    /// # Errors
    /// When the buffers are not for blocks of the length that was put.
    pub fn check_blocks(self, put_bytes: u32) -> Result<()> {
        let wanted = self.buffer_bytes;
        ensure!(
            wanted == put_bytes,
            "blocks of {put_bytes} bytes were put, {wanted} are requested"
        );
        Ok(())
    }
}

/// One client thread's way to the volume.
pub trait Port {
    /// The buffer of a slot that is not in flight.
    ///
    /// # Panics
    /// If the slot is in flight: its bytes belong to the operation.
    fn buffer(&mut self, slot: u32) -> &mut [u8];

    /// Queues an operation on the slot's buffer; the next `turn` hands it over at the latest.
    ///
    /// # Errors
    /// When the arm cannot go on at all. What one operation meets comes back as its `Fault`.
    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()>;

    /// From here on reads only compare: a store does not count them as uses of its blocks, and does
    /// not limit writes in their favour.
    fn begin_read_back(&mut self) {}

    /// Hands over what was staged, and appends what has ended.
    ///
    /// # Errors
    /// When the arm cannot go on at all.
    fn turn(&mut self, wait: TurnWait, done: &mut Vec<Done>) -> Result<()>;

    /// Asks which blocks are there: `LOOKUP_KEYS`, from the one at this place on, and waits for the
    /// answer.
    ///
    /// # Errors
    /// When the arm cannot go on at all, or has no keys.
    fn lookup(&mut self, _offset: u64) -> Result<Result<(), Fault>> {
        bail!("a raw volume has no keys to look up")
    }
}

/// Operations that a port hands over without waiting for more of a batch. Handing over everything
/// at once lets all operations end together and the device idle while the next ones are prepared:
/// on a virtio disk at depth 32 that costs a fifth of the throughput (107k against 131k IOPS of 4
/// KiB; 4 was best of 1, 2, 4 and 8). The ceiling must not be lower than it could be.
pub const HAND_OVER_AT: u32 = 4;

/// Keys of one lookup. The last of them is of a block that was never put.
pub const LOOKUP_KEYS: u32 = 1000;

/// The work of a client thread with its port.
pub type Work<'a> = &'a mut dyn FnMut(&mut dyn Port) -> Result<()>;

/// Bytes of one operation of a sweep over a volume, about.
const SWEEP_BYTES: u32 = 1 << 20;

/// A way to a volume.
pub trait Target: Sync + fmt::Debug {
    /// The mode really used, as `kvrail status` calls it.
    fn mode(&self) -> String;

    /// Bytes of one operation of a sweep, a multiple of what one version is kept for.
    fn sweep_bytes(&self, unit_bytes: u32) -> u32 {
        (SWEEP_BYTES / unit_bytes).max(1) * unit_bytes
    }

    /// Opens a port, runs `work` with it, and closes it when nothing is in flight any more. Called
    /// in the client's own thread; several threads may be in it at once.
    ///
    /// # Errors
    /// When the port cannot be opened, with the remedy, or the error of `work`.
    fn with_port(&self, shape: PortShape, work: Work<'_>) -> Result<()>;
}

/// A way to blocks that have keys: a place stands for one, which is put and got as a whole.
pub trait KeyedTarget: Target {
    /// Most bytes of a block.
    fn block_bytes_max(&self) -> u32;

    /// Most operations that a client has in flight; none where that is up to the case.
    fn depth_max(&self) -> Option<u32>;

    /// Whether it can be asked which blocks are there.
    fn looks_up(&self) -> bool;

    /// Bytes that may be put before blocks that were put earlier may be gone.
    fn kept_bytes(&self) -> u64;

    /// Bytes put so far, where blocks can go.
    fn put_bytes(&self) -> u64;

    /// Forgets what was put, and makes room for blocks of this length.
    ///
    /// # Errors
    /// When nothing can be forgotten, or nothing made.
    fn begin(&self, block_bytes: u32, span_bytes: u64) -> Result<()>;

    /// Forgets all that was put, for good.
    ///
    /// # Errors
    /// As `begin`.
    fn remove(&self) -> Result<()>;
}
