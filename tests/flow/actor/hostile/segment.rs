//! Attacks on the memory of a queue, as fast as they go.

use std::os::fd::AsFd;
use std::time::Duration;

use kvrail_memory::store;
use rustix::fs::{FallocateFlags, fallocate};

use super::Target;
use super::lanes::{LAP, SLOTS, ring};
use crate::rude::{Rude, pause};

/// Longest wait for the end of a session that has to end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Holes between two checks whether the session lives.
const HOLES: u64 = 64;

/// Punches holes into the segment: the next access faults its pages in again.
pub(crate) fn holes(target: &Target) -> u64 {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    each_session(target, |rude| {
        let queue = rude.queue(64);
        let bytes = queue.memory.bytes() as u64;
        let mut rounds = 0;
        while target.time_is_left() && !rude.has_ended() {
            for _ in 0..HOLES {
                // A seal may forbid it: then only the ring is left.
                let _hole = fallocate(queue.segment.as_fd(), flags, 0, bytes);
                ring(&queue);
            }
            rounds += HOLES;
        }
        rounds
    })
}

/// Attaches, writes an impossible lap, is expelled, and attaches again at once.
pub(crate) fn scribble(target: &Target) -> u64 {
    each_session(target, |rude| {
        let queue = rude.queue(2);
        store(queue.memory.as_ref(), SLOTS + LAP, &[0xff]);
        ring(&queue);
        rude.wait_for_the_end(PATIENCE);
        1
    })
}

/// One session after the other, as soon as the sidecar accepts one.
fn each_session(target: &Target, mut attack: impl FnMut(&mut Rude) -> u64) -> u64 {
    let mut rounds = 0;
    while target.time_is_left() {
        match Rude::try_attach(&target.socket) {
            Some(mut rude) => rounds += attack(&mut rude),
            None => pause(),
        }
    }
    rounds
}
