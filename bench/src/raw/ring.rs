//! The bare ring itself: buffers, submission, completion.
#![expect(unsafe_code, reason = "hands buffer addresses to the kernel and reads what it wrote")]
// UNSAFETY: a slot's bytes belong to the kernel from `stage` until its last completion, and to the
// caller otherwise; `OperationState::left` decides it, and every access checks it.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use io_uring::squeue::EntryMarker as _;
use io_uring::{CompletionQueue, SubmissionQueue, Submitter, cqueue};
use kvrail_device::ModeName;
use kvrail_memory::{PinLimit, Pinned, Region};
use kvrail_ring::Geometry;
use rustix::io::Errno;

use super::wire::{Wire, WireRequest};
use crate::port::{Direction, Done, Fault, HAND_OVER_AT, Operation, Port, PortShape, TurnWait};

/// Looks at a completion queue that a kernel thread fills, between two looks at whether that
/// thread sleeps.
const SPINS_PER_CHECK: u32 = 1 << 12;

/// Bytes of one registered buffer at most (io_uring).
const ENTRY_BYTES_MAX: usize = 1 << 30;

/// The buffers of a port: one region, one stretch of `stride` bytes for each slot.
#[derive(Debug)]
pub(crate) struct PortBuffers {
    region: Region,
    stride: usize,
    slots_per_entry: usize,
}

impl PortBuffers {
    pub(crate) fn new(shape: PortShape) -> Result<Self> {
        let stride = shape.buffer_bytes.next_multiple_of(4096) as usize;
        let bytes = stride * shape.slots as usize;
        // The reason for ordinary pages stands in the report's environment.
        let (region, _) = Region::create_best("kvrail-bench-raw", bytes)?;
        let slots_per_entry = ENTRY_BYTES_MAX / stride;
        Ok(Self { region, stride, slots_per_entry })
    }

    /// Registers the region as the ring's fixed buffers, in entries that no slot crosses; as far as
    /// this process may pin memory, like the sidecar.
    pub(super) fn register(&self, submitter: &Submitter<'_>) -> Result<BufferAddressing> {
        let entry_bytes = self.slots_per_entry * self.stride;
        let bytes = self.region.bytes();
        let vectors: Vec<libc::iovec> = (0..bytes)
            .step_by(entry_bytes)
            .map(|at| libc::iovec {
                iov_base: self.address(at).cast(),
                iov_len: entry_bytes.min(bytes - at),
            })
            .collect();
        // SAFETY: the vectors describe `region`, which the port that submits to this ring keeps
        // alive in an `Arc` until the ring has nothing in flight.
        let registered = unsafe { submitter.register_buffers(&vectors) };
        let limited = PinLimit::of_this_process() != PinLimit::Unlimited;
        match registered {
            Ok(()) => Ok(BufferAddressing::Registered),
            Err(error) if limited && error.raw_os_error() == Some(libc::ENOMEM) => {
                Ok(BufferAddressing::Addressed)
            }
            Err(error) => {
                Err(error).with_context(|| format!("the raw arm cannot register {bytes} bytes"))
            }
        }
    }

    fn address(&self, at: usize) -> *mut u8 {
        assert!(at < self.region.bytes(), "an address within the region");
        self.region.base().as_ptr().wrapping_add(at)
    }

    /// The bytes of a slot, for ports that do not share them with the kernel.
    pub(crate) fn slot_bytes(&mut self, slot: u32) -> &mut [u8] {
        let (base, _) = self.slot(slot);
        // SAFETY: `stride` bytes from a slot's base lie in the region, and `&mut self` proves
        // exclusive access: a port that gives addresses to the kernel holds an `Arc` instead.
        unsafe { std::slice::from_raw_parts_mut(base, self.stride) }
    }

    /// First byte of a slot, and the table entry it lies in.
    fn slot(&self, slot: u32) -> (*mut u8, usize) {
        (self.address(slot as usize * self.stride), slot as usize / self.slots_per_entry)
    }
}

/// How requests name the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferAddressing {
    /// By an entry of the ring's table.
    Registered,
    /// By address: RLIMIT_MEMLOCK is too low to pin the memory.
    Addressed,
}

/// The state of a slot.
#[derive(Clone, Copy, Debug)]
struct OperationState {
    /// Pieces in flight; 0 when the bytes are the caller's.
    left: u32,
    direction: Direction,
    fault: Option<Fault>,
}

/// One piece of a slot's operation, on one member.
#[derive(Clone, Copy, Debug, Default)]
struct MemberPiece {
    member: u32,
    device_offset: u64,
    /// First byte within the slot's buffer.
    at: u32,
    bytes: u32,
    moved: u32,
}

type RingParts<'a, W> = (
    Submitter<'a>,
    SubmissionQueue<'a, <W as Wire>::Entry>,
    CompletionQueue<'a, <W as Wire>::Answer>,
);

/// A volume as the ring sees it.
#[derive(Debug)]
pub(super) struct Striped<'a, M> {
    pub(super) members: &'a [M],
    pub(super) geometry: Geometry,
    /// Largest request that every member takes, in bytes.
    pub(super) request_bytes_max: u32,
}

/// A ring with its buffers, driven by the thread that made it.
pub(super) struct RingPort<'a, W: Wire> {
    submitter: Submitter<'a>,
    sq: SubmissionQueue<'a, W::Entry>,
    cq: CompletionQueue<'a, W::Answer>,
    memory: Arc<PortBuffers>,
    buffers: BufferAddressing,
    volume: Striped<'a, W::Member>,
    mode: ModeName,
    slots: Vec<OperationState>,
    pieces: Vec<MemberPiece>,
    pieces_max: u32,
    /// Pieces handed to the ring and not come back.
    in_flight: u32,
}

impl<W: Wire> fmt::Debug for RingPort<'_, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingPort")
            .field("mode", &self.mode)
            .field("slots", &self.slots.len())
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

impl<'a, W: Wire> RingPort<'a, W> {
    pub(super) fn new(
        ends: RingParts<'a, W>,
        (memory, buffers): (Arc<PortBuffers>, BufferAddressing),
        volume: Striped<'a, W::Member>,
        mode: ModeName,
    ) -> Self {
        let (submitter, sq, cq) = ends;
        let (slots, pieces) = (Vec::new(), Vec::new());
        let (pieces_max, in_flight) = (0, 0);
        Self {
            submitter,
            sq,
            cq,
            memory,
            buffers,
            volume,
            mode,
            slots,
            pieces,
            pieces_max,
            in_flight,
        }
    }

    /// Makes room for `slots` operations of at most `pieces_max` pieces.
    pub(super) fn reserve(&mut self, slots: u32, pieces_max: u32) {
        let idle = OperationState { left: 0, direction: Direction::Read, fault: None };
        self.slots = vec![idle; slots as usize];
        self.pieces = vec![MemberPiece::default(); (slots * pieces_max) as usize];
        self.pieces_max = pieces_max;
    }

    /// Waits until nothing is in flight.
    pub(super) fn drain(&mut self) -> Result<()> {
        let mut done = Vec::new();
        while self.in_flight > 0 {
            self.turn(TurnWait::ForOne, &mut done)?;
        }
        Ok(())
    }

    /// Queues what is left of a piece.
    fn push(&mut self, index: u32) -> Result<()> {
        let slot = index / self.pieces_max;
        let MemberPiece { member, device_offset, at, bytes, moved } = self.pieces[index as usize];
        let (base, entry) = self.memory.slot(slot);
        let request = WireRequest {
            direction: self.slots[slot as usize].direction,
            member,
            offset: device_offset + u64::from(moved),
            address: base.wrapping_add((at + moved) as usize),
            bytes: bytes - moved,
            entry: match self.buffers {
                BufferAddressing::Registered => Some(u16::try_from(entry)?),
                BufferAddressing::Addressed => None,
            },
        };
        let mut sqe = W::entry(&self.volume.members[member as usize], request);
        sqe.set_user_data(index.into());
        if self.sq.is_full() {
            self.sq.sync();
        }
        // SAFETY: the buffer lies in `memory`, registered with this ring or not, held by this port
        // until `in_flight` is 0 (`drop`); no code touches the bytes while `left` is above 0.
        let pushed = unsafe { self.sq.push(&sqe) };
        ensure!(pushed.is_ok(), "the raw ring is full though it has an entry for each piece");
        self.in_flight += 1;
        Ok(())
    }

    /// Submits the queued operations; on request waits for a completion if none is there.
    fn hand_over(&mut self, wait: TurnWait) -> Result<()> {
        self.sq.sync();
        if !self.mode.has_kernel_thread() {
            return self.enter(wait);
        }
        self.submitter.submit().context("waking the ring's kernel thread")?;
        if wait == TurnWait::ForOne { self.spin() } else { Ok(()) }
    }

    fn enter(&mut self, wait: TurnWait) -> Result<()> {
        let want = usize::from(wait == TurnWait::ForOne);
        let polls = self.mode.polls_device();
        if want == 0 && !polls && self.sq.is_empty() && !self.sq.taskrun() {
            return Ok(());
        }
        match self.submitter.submit_and_wait(want) {
            Ok(_) => Ok(()),
            // A signal, or the kernel requires completions to be taken first: the caller does.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error).context("io_uring_enter in the raw arm"),
        }
    }

    /// Waits for the kernel's thread to bring something, without entering the kernel.
    fn spin(&mut self) -> Result<()> {
        for spins in 1_u32.. {
            self.cq.sync();
            if !self.cq.is_empty() {
                break;
            }
            std::hint::spin_loop();
            if spins.is_multiple_of(SPINS_PER_CHECK) {
                self.submitter.submit().context("waking the ring's kernel thread")?;
                // With one core the kernel's thread needs this one.
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn reap(&mut self, done: &mut Vec<Done>) -> Result<()> {
        self.cq.sync();
        while let Some(cqe) = self.cq.next() {
            let cqe: cqueue::Entry = cqe.into();
            let index = u32::try_from(cqe.user_data()).context("a completion without a request")?;
            self.in_flight -= 1;
            if let Some(ended) = self.settle(index, cqe.result())? {
                done.push(ended);
            }
        }
        self.cq.sync();
        Ok(())
    }

    /// Takes in what one piece brought; the operation's end if it was the last.
    fn settle(&mut self, index: u32, result: i32) -> Result<Option<Done>> {
        let number = index / self.pieces_max;
        let piece = &mut self.pieces[index as usize];
        let fault = match W::moved(result, piece.bytes - piece.moved) {
            Ok(0) => Some(Fault::Short { moved: piece.moved }),
            Ok(moved) => {
                piece.moved += moved;
                None
            }
            Err(errno) => Some(Fault::Errno(Errno::from_raw_os_error(errno))),
        };
        let again = matches!(fault, Some(Fault::Errno(Errno::AGAIN | Errno::INTR)))
            || (fault.is_none() && piece.moved < piece.bytes);
        if again {
            self.push(index)?;
            return Ok(None);
        }
        let slot = &mut self.slots[number as usize];
        slot.fault = slot.fault.or(fault);
        slot.left -= 1;
        let ended = Done { slot: number, outcome: slot.fault.map_or(Ok(()), Err) };
        Ok((slot.left == 0).then_some(ended))
    }
}

impl<W: Wire> Port for RingPort<'_, W> {
    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        assert_eq!(self.slots[slot as usize].left, 0, "the slot's bytes are the kernel's");
        let (base, _) = self.memory.slot(slot);
        // SAFETY: `stride` bytes from a slot's base lie in the region; the kernel has nothing under
        // way on them (asserted), and `&mut self` keeps `stage` away while the slice lives.
        unsafe { std::slice::from_raw_parts_mut(base, self.memory.stride) }
    }

    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()> {
        let Operation { direction, offset, bytes } = operation;
        assert_eq!(self.slots[slot as usize].left, 0, "a slot has one operation at a time");
        assert!(bytes as usize <= self.memory.stride, "an operation fits into its slot");
        let first = slot * self.pieces_max;
        let mut count = 0;
        let end = offset + u64::from(bytes);
        for part in self.volume.geometry.pieces(offset..end) {
            let extent = self.volume.geometry.locate(part.volume_offset, part.length)?;
            let length = u32::try_from(part.length)?;
            let most = self.volume.request_bytes_max;
            for from in (0..length).step_by(most as usize) {
                if count == self.pieces_max {
                    bail!("an operation of {bytes} bytes falls into more than {count} pieces");
                }
                self.pieces[(first + count) as usize] = MemberPiece {
                    member: extent.member.into(),
                    device_offset: extent.device_offset + u64::from(from),
                    at: u32::try_from(part.volume_offset - offset)? + from,
                    bytes: most.min(length - from),
                    moved: 0,
                };
                count += 1;
            }
        }
        self.slots[slot as usize] = OperationState { left: count, direction, fault: None };
        (first..first + count).try_for_each(|index| self.push(index))?;
        if self.sq.len() >= HAND_OVER_AT as usize { self.hand_over(TurnWait::No) } else { Ok(()) }
    }

    fn turn(&mut self, wait: TurnWait, done: &mut Vec<Done>) -> Result<()> {
        let before = done.len();
        loop {
            let wait = if self.in_flight == 0 { TurnWait::No } else { wait };
            self.hand_over(wait)?;
            self.reap(done)?;
            if wait == TurnWait::No || done.len() > before {
                return Ok(());
            }
        }
    }
}

impl<W: Wire> Drop for RingPort<'_, W> {
    fn drop(&mut self) {
        // After `drain` this does nothing. If the client's work failed or panicked, wait here.
        if self.drain().is_err() {
            // Memory that the kernel may still write to must not be freed.
            std::mem::forget(Arc::clone(&self.memory));
        }
    }
}
