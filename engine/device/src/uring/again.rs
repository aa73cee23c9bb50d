//! Requests that the kernel hands back with EAGAIN are handed over again, unchanged. For disks the
//! kernel waits by itself for whatever it lacks, so the tests have a ring whose reads may not wait:
//! of a file that the page cache does not hold, the kernel says EAGAIN and begins to load it.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::Fixed;
use io_uring::{IoUring, cqueue, opcode, squeue};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::{Opcode, Status};
use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;
use rustix::io_uring::{IoringEnterFlags, IoringSetupFlags};

use crate::contract::{
    BufferIndex, Device, DirectIo, Durability, Event, Events, Finished, Operation,
};
use crate::error::DeviceError;
use crate::failure::Cause;
use crate::split::Outcome;
use crate::target::{Stream, Target, open_path};
use crate::uring::drive::{Drive, Interrupt};
use crate::uring::mode::ModeName;
use crate::uring::ring::{Completing, Ring, Setup, Submission};
use crate::uring::wire::{Block, Wire};
use crate::uring::{Uring, UringOptions};

const AT: BufferIndex = BufferIndex(0);
const READS: u32 = 64;
const READ_BYTES: u32 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(20);

thread_local! {
    /// Requests that came back with EAGAIN.
    static REFUSALS: Cell<u32> = const { Cell::new(0) };
}

/// Block requests that may not wait.
#[derive(Clone, Debug)]
struct Hasty(Block);

impl Wire for Hasty {
    type Entry = squeue::Entry;
    type Answer = cqueue::Entry;

    fn open(
        target: &Target,
        stream: Option<Stream>,
    ) -> Result<(Self, Option<OwnedFd>), DeviceError> {
        let (block, file) = Block::open(target, stream)?;
        Ok((Self(block), file))
    }

    fn make(setup: &Setup) -> Result<IoUring, Errno> {
        Block::make(setup)
    }

    fn request_bytes_max(&self, target: &Target) -> u32 {
        self.0.request_bytes_max(target)
    }

    fn read(&self, operation: &Operation, address: usize) -> squeue::Entry {
        let Operation { offset, length, .. } = *operation;
        let address = without_provenance_mut(address);
        let read = opcode::ReadFixed::new(Fixed(0), address, length, operation.buffer.0);
        read.offset(offset).rw_flags(libc::RWF_NOWAIT).build()
    }

    fn write(&self, operation: &Operation, address: usize) -> squeue::Entry {
        self.0.write(operation, address)
    }

    fn other(&self, operation: &Operation) -> squeue::Entry {
        self.0.other(operation)
    }

    fn moved_all(result: i32, asked: u32) -> bool {
        Block::moved_all(result, asked)
    }

    fn outcome(result: i32, asked: u32) -> Outcome {
        if result == -Errno::AGAIN.raw_os_error() {
            REFUSALS.set(REFUSALS.get() + 1);
        }
        Block::outcome(result, asked)
    }

    fn cause(result: i32) -> Cause {
        Block::cause(result)
    }
}

/// Mode interrupt with such requests.
#[derive(Debug)]
struct Impatient;

impl Drive for Impatient {
    const NAME: ModeName = ModeName::Interrupt;
    const SUBMISSION: Submission = Interrupt::SUBMISSION;
    const COMPLETING: Completing = Interrupt::COMPLETING;
    const FLAGS: IoringSetupFlags = Interrupt::FLAGS;
    type Wire = Hasty;

    fn submit(ring: &mut Ring<Hasty>) {
        if ring.queued() > 0 {
            ring.hand_over(IoringEnterFlags::empty());
        }
    }

    fn collect(ring: &mut Ring<Hasty>, _: u32) {
        if ring.is_empty() {
            ring.collect();
        }
    }
}

/// What the block of that number holds.
fn content(number: u32) -> Vec<u8> {
    (0..READ_BYTES).map(|at| (at / 4096 + number * 31).to_le_bytes()[0]).collect()
}

/// A file that the page cache does not hold. Beside this program: `/tmp` may be memory.
fn cold_file() -> tempfile::NamedTempFile {
    let program = std::env::current_exe().unwrap();
    let file = tempfile::NamedTempFile::new_in(program.parent().unwrap()).unwrap();
    for number in 0..READS {
        file.as_file().write_all_at(&content(number), u64::from(number * READ_BYTES)).unwrap();
    }
    file.as_file().sync_all().unwrap();
    fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
    file
}

fn read_all(device: &mut Uring<Impatient>) -> Vec<Finished> {
    for number in 0..READS {
        let read = Operation {
            tag: u64::from(number),
            opcode: Opcode::Read,
            durability: Durability::Visible,
            offset: u64::from(number * READ_BYTES),
            length: READ_BYTES,
            buffer: AT,
            buffer_offset: u64::from(number * READ_BYTES),
        };
        device.prepare(read).unwrap();
    }
    device.submit();
    let (mut events, mut ends) = (Events::new(), Vec::new());
    let start = Instant::now();
    while device.in_flight() > 0 {
        device.reap(&mut events);
        let finished = events.drain(..).map(|event| match event {
            Event::Finished(finished) => finished,
            Event::Detached(_) => unreachable!("nothing is detached here"),
        });
        ends.extend(finished);
        assert!(start.elapsed() < PATIENCE, "{} reads have ended", ends.len());
    }
    ends
}

#[test]
fn what_comes_back_with_eagain_is_handed_over_again_until_it_is_done() {
    let file = cold_file();
    let path = file.path().to_str().unwrap();
    let fd = open_path(path, DirectIo::Off).unwrap();
    let options = UringOptions { direct: DirectIo::Off, ..UringOptions::new(path, fd) };
    let mut device = Uring::<Impatient>::open(options).unwrap();
    let region = Arc::new(HeapBlock::new((READS * READ_BYTES) as usize));
    device.attach(AT, Arc::<HeapBlock>::clone(&region)).unwrap();
    let mut ends = read_all(&mut device);
    ends.sort_unstable_by_key(|end| end.tag);
    let expected = (0..READS).map(|number| Finished {
        tag: u64::from(number),
        status: Status::Ok,
        bytes: READ_BYTES,
    });
    assert!(ends.iter().copied().eq(expected), "{ends:?}");
    for number in 0..READS {
        let mut bytes = vec![0; READ_BYTES as usize];
        region.read_at((number * READ_BYTES) as usize, &mut bytes).unwrap();
        assert!(bytes == content(number), "block {number}");
    }
    let refusals = REFUSALS.get();
    println!("{refusals} times EAGAIN");
    assert!(refusals > 0, "no request was handed over twice: this shows nothing");
}
