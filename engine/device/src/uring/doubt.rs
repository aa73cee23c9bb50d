//! Requests whose answer is in doubt are held and asked again, until they are done or their device
//! is known to be gone. The tests have a ring that refuses what its file does.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, squeue};
use kvrail_memory::HeapBlock;
use kvrail_ring::{Opcode, Status};
use rustix::io::Errno;
use rustix::io_uring::{IoringEnterFlags, IoringSetupFlags};

use crate::contract::{
    BufferIndex, Device, DirectIo, Durability, Event, Events, Finished, Operation,
};
use crate::controllers::Controllers;
use crate::error::DeviceError;
use crate::failure::Cause;
use crate::removal::Removal;
use crate::split::Outcome;
use crate::target::{Stream, Target, open_path};
use crate::uring::drive::{Drive, Interrupt};
use crate::uring::held::PAUSE_NS;
use crate::uring::mode::ModeName;
use crate::uring::ring::{Completing, Ring, Setup, Submission};
use crate::uring::wire::{Block, Wire};
use crate::uring::{Uring, UringOptions};

const AT: BufferIndex = BufferIndex(0);
const BYTES: u32 = 4096;
const READS: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(20);

thread_local! {
    /// Answers that are still to be refusals.
    static REFUSALS: Cell<u32> = const { Cell::new(0) };
}

/// Block requests to a drive that does not know its namespace, for a while.
#[derive(Clone, Debug)]
struct Refused(Block);

impl Wire for Refused {
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
        self.0.read(operation, address)
    }

    fn write(&self, operation: &Operation, address: usize) -> squeue::Entry {
        self.0.write(operation, address)
    }

    fn other(&self, operation: &Operation) -> squeue::Entry {
        self.0.other(operation)
    }

    fn moved_all(result: i32, asked: u32) -> bool {
        REFUSALS.get() == 0 && Block::moved_all(result, asked)
    }

    fn outcome(result: i32, asked: u32) -> Outcome {
        match REFUSALS.get() {
            0 => Block::outcome(result, asked),
            left => {
                REFUSALS.set(left - 1);
                Outcome::Failed(Status::Unsupported)
            }
        }
    }

    fn cause(_: i32) -> Cause {
        Cause::Errno(Errno::OPNOTSUPP)
    }
}

/// Mode interrupt with such requests.
#[derive(Debug)]
struct Doubtful;

impl Drive for Doubtful {
    const NAME: ModeName = ModeName::Interrupt;
    const SUBMISSION: Submission = Interrupt::SUBMISSION;
    const COMPLETING: Completing = Interrupt::COMPLETING;
    const FLAGS: IoringSetupFlags = Interrupt::FLAGS;
    type Wire = Refused;

    fn submit(ring: &mut Ring<Refused>) {
        if ring.queued() > 0 {
            ring.hand_over(IoringEnterFlags::empty());
        }
    }

    fn collect(ring: &mut Ring<Refused>, _: u32) {
        if ring.is_empty() {
            ring.collect();
        }
    }
}

/// A device that refuses so many answers, with as many reads on their way as it can be asked, and
/// the state of its controller in a file.
fn refusing(answers: u32) -> (Uring<Doubtful>, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(u64::from(READS * BYTES)).unwrap();
    let path = file.path().to_str().unwrap();
    let fd = open_path(path, DirectIo::Off).unwrap();
    let options = UringOptions { direct: DirectIo::Off, ..UringOptions::new(path, fd) };
    let mut device = Uring::<Doubtful>::open(options).unwrap();
    let state = tempfile::NamedTempFile::new().unwrap();
    fs::write(state.path(), "live\n").unwrap();
    device.removal = Removal::of(Controllers::One(File::open(state.path()).unwrap().into()));
    device.attach(AT, Arc::new(HeapBlock::new((READS * BYTES) as usize))).unwrap();
    REFUSALS.set(answers);
    for number in 0..READS {
        let read = Operation {
            tag: number.into(),
            opcode: Opcode::Read,
            durability: Durability::Visible,
            offset: (number * BYTES).into(),
            length: BYTES,
            buffer: AT,
            buffer_offset: (number * BYTES).into(),
        };
        device.prepare(read).unwrap();
    }
    device.submit();
    (device, state)
}

/// Drives the device until nothing is in flight, and does that before each turn.
fn ends(device: &mut Uring<Doubtful>, mut turn: impl FnMut()) -> Vec<Finished> {
    let (mut events, mut ends) = (Events::new(), Vec::new());
    let start = Instant::now();
    while device.in_flight() > 0 {
        turn();
        device.reap(&mut events);
        ends.extend(events.drain(..).map(|event| match event {
            Event::Finished(finished) => finished,
            Event::Detached(_) => unreachable!("nothing is detached here"),
        }));
        assert!(start.elapsed() < PATIENCE, "{} reads have ended", ends.len());
    }
    ends.sort_unstable_by_key(|end| end.tag);
    ends
}

fn all(status: Status, bytes: u32) -> Vec<Finished> {
    (0..READS).map(|tag| Finished { tag: tag.into(), status, bytes }).collect()
}

#[test]
fn what_is_refused_is_asked_again_after_a_pause() {
    const ROUNDS: u32 = 4;
    let start = Instant::now();
    let (mut device, _state) = refusing(ROUNDS * READS);
    assert_eq!(ends(&mut device, || {}), all(Status::Ok, BYTES));
    assert!(start.elapsed() >= Duration::from_nanos(PAUSE_NS) * ROUNDS, "it did not pause");
    assert_eq!(device.take_failure(), None, "nothing has failed");
}

#[test]
fn what_is_held_is_gone_with_its_device() {
    let (mut device, state) = refusing(u32::MAX);
    let mut turns = 0;
    let leave = || {
        turns += 1;
        if turns == 100 {
            fs::write(state.path(), "deleting\n").unwrap();
        }
    };
    assert_eq!(ends(&mut device, leave), all(Status::DeviceGone, 0));
    assert!(turns > 100, "it was gone before its controller was");
}

/// However the poller waits, it comes back in time.
#[test]
fn nobody_sleeps_on_what_is_held() {
    let (mut device, _state) = refusing(READS);
    let mut events = Events::new();
    while device.held.is_empty() {
        device.reap(&mut events);
    }
    assert!(matches!(device.wait(), crate::contract::Wait::Poll));
    assert_eq!(device.longest_nap_ns(), PAUSE_NS);
    assert_eq!(ends(&mut device, || {}), all(Status::Ok, BYTES));
}
