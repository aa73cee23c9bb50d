//! The contract of a GPU: the calls of the control thread and of a GPU poller, and the promises of
//! the GPU. CUDA and its stand-in keep it; the conformance suite runs over both.
//!
//! - a launch is done only when every byte of all its moves is where it belongs and nothing of
//!   it touches memory any more (invariant 2);
//! - nothing a poller calls blocks or allocates (invariant 6);
//! - after the first fault the GPU takes nothing more; launches in flight end as faults, once
//!   nothing of them can touch staging memory any more.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_layout::Fragment;
use serde::{Deserialize, Serialize};

use crate::error::GpuError;
use crate::handle::{GpuHandle, GpuUuid};
use crate::region::GpuRegion;
use crate::staging::Staging;

/// Moves one launch does at most; `JOBS_MAX` of `kernels/move.cu`.
pub const MOVES_MAX: usize = 64;

/// Which GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    /// The driver's number for it in this process.
    pub index: u32,
    /// The same everywhere.
    pub uuid: GpuUuid,
    /// Its name.
    pub name: String,
    /// Its PCIe address, lower case.
    pub pci_address: String,
    /// Bytes of its memory.
    pub memory_bytes: u64,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// Paged cache to staging memory: a write to a volume begins.
    Gather,
    /// Staging memory to paged cache: a read from a volume ends.
    Scatter,
}

/// One range of one block to be moved.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// The client's cache.
    pub region: &'a GpuRegion,
    /// Which block of it.
    pub block: u32,
    /// Number of the first byte within the block.
    pub start: u64,
    /// Bytes.
    pub length: u32,
    /// First byte in the staging memory.
    pub staged: usize,
}

/// One launch in flight, below the number the mover was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchId(pub u16);

/// How a launch stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchProgress {
    /// In flight.
    Running,
    /// Done, every byte of it.
    Done,
}

/// The GPU failed, for good: the first error, for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// A GPU, seen from the control thread. Calls may block.
pub trait Gpu: Debug + Send + Sync {
    /// Which one.
    fn identity(&self) -> &GpuIdentity;

    /// Opens a client's memory and checks the layout against it.
    ///
    /// # Errors
    /// `GpuError` names the memory or the fragment; nothing stays open then.
    fn import(
        &self,
        memories: Vec<GpuHandle>,
        fragments: Vec<Fragment>,
        blocks: u32,
    ) -> Result<Arc<GpuRegion>, GpuError>;

    /// Registers the staging memory with the GPU and prepares `launches` launches at once.
    ///
    /// # Errors
    /// `GpuError` when the GPU refuses.
    fn mover(&self, staging: &Arc<Staging>, launches: u16) -> Result<Box<dyn Mover>, GpuError>;

    /// Makes files and regions usable without staging. `None` where the GPU has no such way.
    fn direct(&self) -> Option<&dyn DirectGpu>;

    /// Memory of this process that can be exported: what a client has. For tests and benchmarks.
    ///
    /// # Errors
    /// `GpuError` when there is not that much.
    fn allocate(&self, bytes: u64) -> Result<Box<dyn OwnMemory>, GpuError>;
}

/// The GPU's copies, seen from its poller.
pub trait Mover: Debug + Send {
    /// The means of copying, and the reason for them, for people.
    fn description(&self) -> String;

    /// Called once on the thread that makes all other calls.
    ///
    /// # Errors
    /// `Fault` when the GPU cannot be used from this thread.
    fn begin(&mut self) -> Result<(), Fault>;

    /// Starts all moves, `1..=MOVES_MAX` of them, as one launch. `None` when no more launches fit.
    ///
    /// # Errors
    /// `Fault` when the GPU failed; nothing of these moves was started.
    fn launch(&mut self, way: Way, moves: &[Move<'_>]) -> Result<Option<LaunchId>, Fault>;

    /// How a launch stands; after `Done` its id names nothing.
    ///
    /// # Errors
    /// `Fault` when the GPU failed; no launch touches staging memory any more.
    fn progress(&mut self, launch: LaunchId) -> Result<LaunchProgress, Fault>;
}

/// Memory this process owns on a GPU.
pub trait OwnMemory: Debug + Send {
    /// Bytes.
    fn bytes(&self) -> u64;

    /// Names it for another process, or for this one.
    ///
    /// # Errors
    /// `GpuError` when it cannot be exported.
    fn export(&self) -> Result<GpuHandle, GpuError>;

    /// Copies in, waiting for the end.
    ///
    /// # Errors
    /// `GpuError` of the copy.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), GpuError>;

    /// Copies out, waiting for the end.
    ///
    /// # Errors
    /// `GpuError` of the copy.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), GpuError>;
}

/// Which way direct I/O goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectWay {
    /// Device to GPU.
    Read,
    /// GPU to device.
    Write,
}

/// A file registered for direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIndex(pub u16);

/// One transfer of a batch.
#[derive(Clone, Copy, Debug)]
pub struct DirectEntry<'a> {
    /// Which way.
    pub way: DirectWay,
    /// The file or device.
    pub file: FileIndex,
    /// First byte in it.
    pub file_offset: u64,
    /// The client's cache.
    pub region: &'a GpuRegion,
    /// Which of its memories.
    pub memory: u16,
    /// First byte in that memory.
    pub offset: u64,
    /// Bytes.
    pub bytes: u32,
}

/// How one entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectEnd {
    /// Its place in what was submitted.
    pub index: u32,
    /// Bytes moved when the storage was content with it, else why not.
    pub outcome: Result<u64, DirectFailure>,
}

/// An entry that moved nothing to rely on: the library's state and error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectFailure {
    /// State of the entry.
    pub state: u32,
    /// Its negative result.
    pub result: i64,
}

/// A GPU that reaches storage by itself. Calls are the control thread's and may block.
pub trait DirectGpu: Debug + Send + Sync {
    /// Whether it goes past host memory for this device, and why it thinks so.
    ///
    /// # Errors
    /// `GpuError` when the file cannot be registered at all.
    fn register(&self, file: OwnedFd, name: &str) -> Result<Registered, GpuError>;

    /// Makes a batch with room for that many entries.
    ///
    /// # Errors
    /// `GpuError` when there are no more.
    fn batch(&self, entries: u32) -> Result<Box<dyn BatchIo>, GpuError>;
}

/// The result of registering a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The file's name in entries.
    pub file: FileIndex,
    /// How bytes travel.
    pub path: DirectPath,
    /// Why that is known.
    pub reason: String,
}

/// How bytes travel in direct I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DirectPath {
    /// Between device and GPU, past host memory.
    Direct,
    /// Through buffers of the library in host memory.
    Compat,
}

/// A batch handle, seen from the poller.
pub trait BatchIo: Debug + Send {
    /// Whether it can take entries: all earlier ones ended and no call failed.
    fn is_ready(&self) -> bool;

    /// Whether a call failed: it takes nothing any more, and its open entries stay open.
    fn is_retired(&self) -> bool;

    /// Entries whose end is not known yet.
    fn open(&self) -> u32;

    /// Hands entries over.
    ///
    /// # Errors
    /// `Fault` when none was taken; the batch is retired.
    fn submit(&mut self, entries: &[DirectEntry<'_>]) -> Result<(), Fault>;

    /// Brings back what ended, without waiting.
    ///
    /// # Errors
    /// `Fault` when nothing is known about the open entries any more; the batch is retired, and
    /// they stay open.
    fn reap(&mut self, ended: &mut dyn FnMut(DirectEnd)) -> Result<(), Fault>;
}
