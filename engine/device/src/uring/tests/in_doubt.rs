//! Requests whose answer is in doubt are held and submitted again, until they are done or their
//! device is known to be gone.

use std::cell::Cell;
use std::fs::{self, File};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_memory::HeapBlock;
use kvrail_ring::Status;
use rustix::io::Errno;

use super::{AT, Fault, FaultyInterrupt, open, reap_all, submit_reads};
use crate::contract::{Device, Events, Finished, Wait};
use crate::controllers::Controllers;
use crate::failure::Cause;
use crate::removal::Removal;
use crate::split::Outcome;
use crate::uring::Uring;
use crate::uring::held::PAUSE_NS;
use crate::uring::sqe::{Block, SqeFormat};

const BYTES: u32 = 4096;
const READS: u32 = 16;

thread_local! {
    /// Answers that are still to be refusals.
    static REFUSALS: Cell<u32> = const { Cell::new(0) };
}

/// A drive that does not know its namespace, for a while.
#[derive(Clone, Debug)]
struct NoNamespace;

impl Fault for NoNamespace {
    const READ_FLAGS: i32 = 0;

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

/// A device that refuses `answers` answers, with the largest number of reads in flight, and the
/// state of its controller in a file.
fn refusing(answers: u32) -> (Uring<FaultyInterrupt<NoNamespace>>, tempfile::NamedTempFile) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(u64::from(READS * BYTES)).unwrap();
    let mut device = open::<NoNamespace>(&file);
    let state = tempfile::NamedTempFile::new().unwrap();
    fs::write(state.path(), "live\n").unwrap();
    device.removal = Removal::of(Controllers::One(File::open(state.path()).unwrap().into()));
    device.attach(AT, Arc::new(HeapBlock::new((READS * BYTES) as usize))).unwrap();
    REFUSALS.set(answers);
    submit_reads(&mut device, READS, BYTES);
    (device, state)
}

fn all(status: Status, bytes: u32) -> Vec<Finished> {
    (0..READS).map(|tag| Finished { tag: tag.into(), status, bytes }).collect()
}

#[test]
fn what_is_refused_is_asked_again_after_a_pause() {
    const ROUNDS: u32 = 4;
    let start = Instant::now();
    let (mut device, _state) = refusing(ROUNDS * READS);
    assert_eq!(reap_all(&mut device, || {}), all(Status::Ok, BYTES));
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
    assert_eq!(reap_all(&mut device, leave), all(Status::DeviceGone, 0));
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
    assert!(matches!(device.wait(), Wait::Poll));
    assert_eq!(device.longest_nap_ns(), PAUSE_NS);
    assert_eq!(reap_all(&mut device, || {}), all(Status::Ok, BYTES));
}
