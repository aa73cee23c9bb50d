//! Rings that answer otherwise than their file does: the rig, and what it shows.

mod eagain;
mod in_doubt;

use std::fmt::Debug;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::types::Fixed;
use io_uring::{IoUring, cqueue, opcode, squeue};
use kvrail_ring::Opcode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::io_uring::{IoringEnterFlags, IoringSetupFlags};

use crate::buffer_table::BufferPlace;
use crate::contract::{
    BufferIndex, Device, DirectIo, Durability, Event, Events, Finished, Operation,
};
use crate::error::DeviceResult;
use crate::failure::Cause;
use crate::split::Outcome;
use crate::target::{DriveStream, Target, open_path};
use crate::uring::mode::ModeName;
use crate::uring::ring::{Completing, Ring, RingSetup, Submission};
use crate::uring::ring_mode::{Interrupt, RingMode};
use crate::uring::sqe::{Block, SqeFormat};
use crate::uring::{Uring, UringOptions};

const AT: BufferIndex = BufferIndex(0);
const PATIENCE: Duration = Duration::from_secs(20);

/// How a ring departs from what its file does.
trait Fault: Clone + Debug + Send + 'static {
    /// Flags of each read, `RWF_...`.
    const READ_FLAGS: i32;

    fn moved_all(result: i32, asked: u32) -> bool;

    fn outcome(result: i32, asked: u32) -> Outcome;

    fn cause(result: i32) -> Cause;
}

/// Block requests with a fault.
#[derive(Clone, Debug)]
struct Faulty<F>(Block, PhantomData<F>);

impl<F: Fault> SqeFormat for Faulty<F> {
    type Entry = squeue::Entry;
    type Cqe = cqueue::Entry;

    fn open(target: &Target, stream: Option<DriveStream>) -> DeviceResult<(Self, Option<OwnedFd>)> {
        let (block, file) = Block::open(target, stream)?;
        Ok((Self(block, PhantomData), file))
    }

    fn make(setup: &RingSetup) -> Result<IoUring, Errno> {
        Block::make(setup)
    }

    fn request_bytes_max(&self, target: &Target) -> u32 {
        self.0.request_bytes_max(target)
    }

    fn read(&self, operation: &Operation, place: BufferPlace) -> squeue::Entry {
        let Operation { offset, length, .. } = *operation;
        let address = without_provenance_mut(place.address);
        let read = opcode::ReadFixed::new(Fixed(0), address, length, operation.buffer.0);
        read.offset(offset).rw_flags(F::READ_FLAGS).build()
    }

    fn write(&self, operation: &Operation, place: BufferPlace) -> squeue::Entry {
        self.0.write(operation, place)
    }

    fn other(&self, operation: &Operation) -> squeue::Entry {
        self.0.other(operation)
    }

    fn moved_all(result: i32, asked: u32) -> bool {
        F::moved_all(result, asked)
    }

    fn outcome(result: i32, asked: u32) -> Outcome {
        F::outcome(result, asked)
    }

    fn cause(result: i32) -> Cause {
        F::cause(result)
    }
}

/// Mode interrupt with such requests.
#[derive(Debug)]
struct FaultyInterrupt<F>(PhantomData<F>);

impl<F: Fault> RingMode for FaultyInterrupt<F> {
    const NAME: ModeName = ModeName::Interrupt;
    const SUBMISSION: Submission = Interrupt::SUBMISSION;
    const COMPLETING: Completing = Interrupt::COMPLETING;
    const FLAGS: IoringSetupFlags = Interrupt::FLAGS;
    type SqeFormat = Faulty<F>;

    fn submit(ring: &mut Ring<Faulty<F>>) {
        if ring.queued() > 0 {
            ring.hand_over(IoringEnterFlags::empty());
        }
    }

    fn collect(ring: &mut Ring<Faulty<F>>, _: u32) {
        if ring.is_empty() {
            ring.collect();
        }
    }
}

/// As a process that is killed: what its rings have registered goes with their last request.
#[test]
fn a_pipe_hangs_up_behind_the_last_ring() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let (watch, tether) = rustix::pipe::pipe().unwrap();
    let tether = Arc::new(tether);
    let devices = [(); 2].map(|()| {
        let path = file.path().to_str().unwrap();
        let fd = open_path(path, DirectIo::Off).unwrap();
        let tether = Some(Arc::clone(&tether));
        let options = UringOptions { direct: DirectIo::Off, tether, ..UringOptions::new(path, fd) };
        Uring::<Interrupt>::open(options).unwrap()
    });
    drop(tether);
    let hangs_up = || {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&watch, PollFlags::empty())], Some(&now)).unwrap() > 0
    };
    let [first, second] = devices;
    assert!(!hangs_up());
    drop(first);
    assert!(!hangs_up(), "another ring has it");
    drop(second);
    let start = Instant::now();
    while !hangs_up() {
        assert!(start.elapsed() < PATIENCE, "a ring still has it");
        std::thread::yield_now();
    }
}

/// The device of a file, through the page cache.
fn open<F: Fault>(file: &tempfile::NamedTempFile) -> Uring<FaultyInterrupt<F>> {
    let path = file.path().to_str().unwrap();
    let fd = open_path(path, DirectIo::Off).unwrap();
    let options = UringOptions { direct: DirectIo::Off, ..UringOptions::new(path, fd) };
    Uring::open(options).unwrap()
}

/// Submits `reads` reads of `bytes`, one behind the other in file and buffer.
fn submit_reads<F: Fault>(device: &mut Uring<FaultyInterrupt<F>>, reads: u32, bytes: u32) {
    for number in 0..reads {
        let read = Operation {
            tag: number.into(),
            opcode: Opcode::Read,
            durability: Durability::Visible,
            offset: (number * bytes).into(),
            length: bytes,
            buffer: AT,
            buffer_offset: (number * bytes).into(),
        };
        device.prepare(read).unwrap();
    }
    device.submit();
}

/// Reaps until nothing is in flight, `turn` before each time; by their tags.
fn reap_all<F: Fault>(
    device: &mut Uring<FaultyInterrupt<F>>,
    mut turn: impl FnMut(),
) -> Vec<Finished> {
    let (mut events, mut all) = (Events::new(), Vec::new());
    let start = Instant::now();
    while device.in_flight() > 0 {
        turn();
        device.reap(&mut events);
        all.extend(events.drain(..).map(|event| match event {
            Event::Finished(finished) => finished,
            Event::Detached(_) => unreachable!("nothing is detached here"),
        }));
        assert!(start.elapsed() < PATIENCE, "{} reads have completed", all.len());
    }
    all.sort_unstable_by_key(|completion| completion.tag);
    all
}
