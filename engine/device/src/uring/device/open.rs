//! Opens a device: the options, the limits of the target, a first read where a mode may not work
//! although its ring could be made, and the description of the result.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use kvrail_memory::HeapBlock;
use kvrail_ring::Status;

use crate::buffer_table::BufferTable;
use crate::contract::{BUFFERS_MAX, Description, Device, DirectIo};
use crate::error::DeviceError;
use crate::probe_reads;
use crate::queue::Polling;
use crate::removal::Removal;
use crate::split::{DeviceLimits, Flights};
use crate::target::{DiscardMethod, DriveStream, FileKind, Io, Target, WriteStream};
use crate::uring::device::Uring;
use crate::uring::held::HeldPieces;
use crate::uring::kernel_thread::KernelThread;
use crate::uring::registering::Registering;
use crate::uring::ring_mode::Mode;
use crate::uring::setup::{RingPlan, SIDE_ENTRIES, main_ring, side_ring};
use crate::uring::setup_hints;
use crate::uring::sqe::{Block, SqeFormat};

/// Most operations a device takes at once.
const DEPTH_MAX: u32 = 4096;

/// Pieces in flight are at least this many, so that a few large operations fill the device too.
/// With one entry to spare for the bell the submission queue has 128 then.
const PIECES_MIN: u32 = 127;

/// The file to open, and the way to drive it.
#[derive(Debug)]
pub struct UringOptions {
    /// Name for messages: the path as configured.
    pub path: String,
    /// The file or block device, open for reading and writing; its opener has claimed it.
    pub fd: OwnedFd,
    /// How O_DIRECT is to be treated.
    pub direct: DirectIo,
    /// Operations at once, 1 to 4096.
    pub depth: u32,
    /// Largest piece in bytes, if it must be smaller than the device's limit.
    pub transfer_bytes_max: Option<u32>,
    /// For modes with a kernel thread.
    pub thread: KernelThread,
    /// The stream that the drive is to place all writes by.
    pub write_stream: WriteStream,
    /// Unit of offsets and lengths that the opener has tried on a file; without one the unit is
    /// what the kernel promises.
    pub tried_block: Option<u32>,
    /// Which regions are registered with the ring.
    pub registering: Registering,
    /// Why this mode; printed at start.
    pub reason: String,
    /// Bytes a second in the device's trial, if there was one.
    pub bytes_per_second: Option<u64>,
    /// The writing end of a pipe, which each ring registers beside its file: the kernel closes what
    /// a ring has registered once all its requests have ended, also those of a killed process.
    pub tether: Option<Arc<OwnedFd>>,
}

impl UringOptions {
    /// O_DIRECT required, 128 operations at once, the device's own limits.
    #[must_use]
    pub fn new(path: impl Into<String>, fd: OwnedFd) -> Self {
        Self {
            path: path.into(),
            fd,
            direct: DirectIo::Required,
            depth: 128,
            transfer_bytes_max: None,
            thread: KernelThread::default(),
            write_stream: WriteStream::Unnamed,
            tried_block: None,
            registering: Registering::AsAllowed,
            reason: "configured".into(),
            bytes_per_second: None,
            tether: None,
        }
    }

    /// The same device once more, for a trial.
    pub(crate) fn duplicate(&self) -> Result<Self, DeviceError> {
        let fd = self.fd.try_clone().map_err(|error| DeviceError::Open {
            path: self.path.clone(),
            errno: crate::uring::ring::errno_of(error),
            remedy: "descriptors have run out: raise LimitNOFILE (ulimit -n)".into(),
        })?;
        let (path, reason, tether) = (self.path.clone(), self.reason.clone(), self.tether.clone());
        Ok(Self { path, fd, reason, tether, ..*self })
    }
}

impl<M: Mode> Uring<M> {
    /// Opens a device. For polled modes and passthrough one block is read to see that they work.
    ///
    /// # Errors
    /// `DeviceError` with the likely cause and the remedy.
    pub fn open(options: UringOptions) -> Result<Self, DeviceError> {
        if M::NAME.needs_direct() {
            Self::assemble(options.duplicate()?)?.check()?;
        }
        Self::assemble(options)
    }

    fn assemble(options: UringOptions) -> Result<Self, DeviceError> {
        let UringOptions { path, fd, direct, depth, transfer_bytes_max, .. } = options;
        if depth == 0 || depth > DEPTH_MAX {
            let what = format!("depth {depth} is out of range");
            let remedy = format!("choose 1 to {DEPTH_MAX}");
            return Err(DeviceError::Unfit { path, what, remedy });
        }
        let target = Target::examine_in(&path, fd, direct, options.tried_block)?;
        if M::NAME.needs_direct() && target.io == Io::Buffered {
            let what = format!("mode {} needs O_DIRECT", M::NAME);
            return Err(DeviceError::unfit(
                &path,
                &what,
                "set direct = \"required\", or use mode interrupt",
            ));
        }
        let stream = target.stream(options.write_stream)?;
        let (wire, file) = M::SqeFormat::open(&target, stream)?;
        let limits = limits::<M>(&target, &wire, depth, transfer_bytes_max);
        let entries = (M::NAME.queue_entries(limits.pieces) + 1).next_power_of_two();
        let file = file.as_ref().map_or(target.fd(), AsFd::as_fd);
        let tether = options.tether.as_deref().map(AsFd::as_fd);
        let plan = RingPlan { path: &path, file, entries, thread: options.thread, tether };
        let made = main_ring::<M>(&plan, wire)?;
        let side = if M::NAME.has_side_ring() {
            let plan = RingPlan { file: target.fd(), ..plan };
            Some(side_ring(&plan, Block::open(&target, stream)?.0)?)
        } else {
            None
        };
        let features = features::<M>(&target, made.features, options.write_stream, stream);
        let description = Description {
            bytes_per_second: options.bytes_per_second,
            ..describe::<M>(&target, &limits, options.reason, features)
        };
        let pieces = limits.pieces as usize;
        Ok(Self {
            ring: made.ring,
            side,
            aside: 0,
            flights: Flights::new(limits),
            table: BufferTable::new(),
            staged: Vec::with_capacity(pieces),
            staged_aside: Vec::with_capacity(SIDE_ENTRIES as usize),
            held: HeldPieces::new(pieces),
            emptying: VecDeque::with_capacity(usize::from(BUFFERS_MAX)),
            forgetting: 0,
            registering: options.registering,
            removal: Removal::watch(&target),
            failure: None,
            target,
            description,
            mode: PhantomData,
        })
    }

    /// Makes sure that the mode works: sysfs must mark the device as polled (a read alone proves
    /// nothing, it may meet a hole in a file and never reach the device), and a first read must
    /// succeed.
    fn check(&mut self) -> Result<(), DeviceError> {
        let unpolled = self.target.queue.as_ref().map(|queue| queue.polling) == Some(Polling::No);
        if M::NAME.polls_device() && unpolled {
            return Err(self.refuse_polling());
        }
        self.removal.believe();
        let block = self.description.logical_block;
        self.attach(probe_reads::AT, Arc::new(HeapBlock::new(block as usize)))?;
        match probe_reads::read_once(self, 0, block, 0) {
            Some(Status::Ok) => Ok(()),
            Some(Status::Unsupported) if M::NAME.polls_device() => Err(self.refuse_polling()),
            other => {
                let how = match self.take_failure() {
                    Some(failure) => failure.to_string(),
                    None => other.map_or("no answer", Status::name).to_owned(),
                };
                let what = format!("a first read in mode {} failed: {how}", M::NAME);
                let remedy = "check the device (dmesg), or use mode interrupt";
                Err(DeviceError::unfit(&self.target.path, &what, remedy))
            }
        }
    }

    fn refuse_polling(&self) -> DeviceError {
        let what = format!("mode {} does not work here", M::NAME);
        let remedy = setup_hints::no_poll_queues(self.target.queue.as_ref());
        DeviceError::unfit(&self.target.path, &what, &remedy)
    }
}

fn limits<M: Mode>(
    target: &Target,
    wire: &M::SqeFormat,
    depth: u32,
    transfer_bytes_max: Option<u32>,
) -> DeviceLimits {
    let most = wire.request_bytes_max(target).min(transfer_bytes_max.unwrap_or(u32::MAX));
    let block = target.logical_block;
    let transfer_bytes_max = (most - most % block).max(block);
    // Only interrupts come for the parts of a request that the block layer had to split.
    let unsplit = M::NAME.needs_direct();
    let paged_bytes_max = if unsplit { target.paged_bytes_max() } else { u32::MAX };
    let granule = if target.io == Io::Direct { block } else { 1 };
    let pieces = depth.max(PIECES_MIN);
    DeviceLimits { transfer_bytes_max, paged_bytes_max, granule, depth, pieces }
}

/// Features in force, in addition to the ring's.
fn features<M: Mode>(
    target: &Target,
    mut features: Vec<String>,
    wanted: WriteStream,
    stream: Option<DriveStream>,
) -> Vec<String> {
    if M::NAME.has_side_ring() {
        features.push("second ring for flush and discard".into());
    }
    if target.kind == FileKind::Block {
        features.push(target.cache().text().into());
        features.push(match target.discard() {
            DiscardMethod::Deallocate => "discard: deallocate".into(),
            DiscardMethod::PunchHole => "discard: write zeroes".into(),
        });
        let why = if wanted == WriteStream::Apart { "auto: a store's own" } else { "configured" };
        features.push(match (stream, target.streams()) {
            (None, 0) => "write streams: none here".into(),
            (None, there) => format!("write streams: {there} here, none used"),
            (Some(used), there) => format!("write streams: {} of {there} ({why})", used.0),
        });
    }
    features
}

fn describe<M: Mode>(
    target: &Target,
    limits: &DeviceLimits,
    reason: String,
    features: Vec<String>,
) -> Description {
    Description {
        name: target.path.clone(),
        kind: match target.kind {
            FileKind::File => "file".into(),
            FileKind::Block => "block".into(),
        },
        mode: M::NAME.to_string(),
        reason,
        features,
        io: match target.io {
            Io::Direct => "direct".into(),
            Io::Buffered => "buffered".into(),
        },
        capacity_bytes: target.capacity_bytes,
        logical_block: target.logical_block,
        memory_alignment: target.memory_alignment,
        transfer_bytes_max: limits.transfer_bytes_max.min(limits.paged_bytes_max),
        depth: limits.depth,
        bytes_per_second: None,
    }
}
