//! Drives one device and keeps the accounts: every tag comes back once, OK means every byte.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_device::{BufferIndex, Device, Durability, Finished, Operation, Wait};
use kvrail_memory::{HeapBlock, Pinned, load, store};
use kvrail_ring::{Opcode, Status};

use crate::accounts::{self, Accounts, Driven};

/// No operation on a healthy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a device gives back what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    /// It stores them.
    Kept,
    /// It drops them; the data are not compared.
    Ignored,
}

/// A device under test, with the resources that must outlive it.
pub(crate) struct Subject<D> {
    pub(crate) device: D,
    pub(crate) bytes: Bytes,
    /// Temporary files, loop devices: dropped after the device.
    pub(crate) keep: Box<dyn std::any::Any>,
}

/// A device with one attached region, and the accounts.
pub(crate) struct Rig<D: Device> {
    pub(crate) device: D,
    pub(crate) region: Arc<dyn Pinned>,
    bytes: Bytes,
    pub(crate) accounts: Accounts,
    _keep: Box<dyn std::any::Any>,
}

/// Where the rig's region is attached.
pub(crate) const AT: BufferIndex = BufferIndex(0);

impl<D: Device> Rig<D> {
    /// Attaches a region of that size.
    pub(crate) fn new(subject: Subject<D>, region_bytes: usize) -> Self {
        let Subject { mut device, bytes, keep } = subject;
        let region: Arc<dyn Pinned> = Arc::new(HeapBlock::new(region_bytes));
        device.attach(AT, Arc::clone(&region)).expect("a fresh device takes a region");
        Self { device, region, bytes, accounts: Accounts::default(), _keep: keep }
    }

    /// An operation with a fresh tag.
    pub(crate) fn operation(
        &mut self,
        opcode: Opcode,
        offset: u64,
        length: usize,
        buffer_offset: usize,
    ) -> Operation {
        Operation {
            tag: self.accounts.fresh_tag(),
            opcode,
            durability: Durability::Visible,
            offset,
            length: u32::try_from(length).expect("lengths are u32"),
            buffer: AT,
            buffer_offset: buffer_offset as u64,
        }
    }

    /// Prepares an operation; true when the device took it. A refused operation comes back
    /// unchanged.
    pub(crate) fn offer(&mut self, operation: Operation) -> bool {
        self.accounts.offer(&mut self.device, operation)
    }

    /// One `reap`, entered into the accounts.
    pub(crate) fn reap(&mut self) {
        self.accounts.reap(&mut self.device);
    }

    /// Reaps until the condition holds.
    pub(crate) fn reap_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "waited too long: {what} ({:?})", self.device);
            self.reap();
            std::thread::yield_now();
        }
    }

    /// Runs all operations, with the largest number in flight that the device takes; returns their
    /// results in order.
    pub(crate) fn run(&mut self, operations: &[Operation]) -> Vec<Finished> {
        accounts::run(self, operations)
    }

    /// Does one operation that must succeed.
    pub(crate) fn must(&mut self, operation: Operation) {
        let finished = self.run(&[operation])[0];
        assert_eq!(finished.status, Status::Ok, "{operation:?} ended with {finished:?}");
    }

    /// Writes the pattern of (device offset, version) into the region.
    pub(crate) fn fill(&self, buffer_offset: usize, offset: u64, length: usize, version: u64) {
        store(&*self.region, buffer_offset, &pattern(offset, length, version));
    }

    /// Whether the region holds that pattern. Always, for devices that keep nothing.
    pub(crate) fn holds(
        &self,
        buffer_offset: usize,
        offset: u64,
        length: usize,
        version: u64,
    ) -> bool {
        if self.bytes == Bytes::Ignored {
            return true;
        }
        let mut seen = vec![0; length];
        load(&*self.region, buffer_offset, &mut seen);
        seen == pattern(offset, length, version)
    }

    /// Overwrites a part of the region, so that a later read that moves no bytes is found.
    pub(crate) fn wipe(&self, buffer_offset: usize, length: usize) {
        store(&*self.region, buffer_offset, &vec![0xee; length]);
    }

    /// Writes a pattern, wipes the buffer, reads it back, compares.
    pub(crate) fn round_trip(
        &mut self,
        offset: u64,
        length: usize,
        buffer_offset: usize,
        version: u64,
    ) {
        self.fill(buffer_offset, offset, length, version);
        let write = self.operation(Opcode::Write, offset, length, buffer_offset);
        self.must(write);
        self.wipe(buffer_offset, length);
        let read = self.operation(Opcode::Read, offset, length, buffer_offset);
        self.must(read);
        assert!(self.holds(buffer_offset, offset, length, version), "{length} bytes at {offset}");
    }

    /// Sleeps with the device's own kind of wait until there may be something to reap.
    pub(crate) fn sleep(&self) {
        match self.device.wait() {
            Wait::Poll | Wait::ThreadWaker => std::thread::yield_now(),
            Wait::Readable(fd) => {
                let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let timeout = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
                let ready = rustix::event::poll(&mut polled, Some(&timeout));
                assert_eq!(ready, Ok(1), "nothing to wake for within 10 s");
            }
        }
    }
}

/// Bytes that identify their offset and the write that they came from.
fn pattern(offset: u64, length: usize, version: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut at = offset;
    while bytes.len() < length {
        let word = (at ^ version.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        bytes.extend_from_slice(&word.to_le_bytes());
        at += 8;
    }
    bytes.truncate(length);
    bytes
}

impl<D: Device> Driven for Rig<D> {
    fn accounts(&mut self) -> &mut Accounts {
        &mut self.accounts
    }

    fn offer(&mut self, operation: Operation) -> bool {
        Rig::offer(self, operation)
    }

    fn turn(&mut self) {
        self.device.submit();
        self.reap();
    }
}

impl<D: Device> Debug for Rig<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rig").field("device", &self.device).finish_non_exhaustive()
    }
}
