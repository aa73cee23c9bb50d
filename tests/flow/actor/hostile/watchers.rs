//! A bell that costs its ringer: the client's end of the pipe hangs in thousands of epolls, and
//! each write wakes them one by one.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};

use kvrail_ring::{Request, Ring, Segment, hush};
use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create};

use super::Target;
use super::lanes::{collect, ring};
use crate::rude::{RawQueue, Rude};

/// Copies of the bell, and epolls that watch all of them: 158,404 watchers with fewer than 1,024
/// descriptors.
const SIDE: usize = 398;

/// Hangs on the bell and has it rung by one no-op after the other.
pub(crate) fn watchers(target: &Target) -> u64 {
    let mut rude = Rude::attach(&target.socket);
    let queue = rude.queue(64);
    let _watchers = hang(&queue);
    let segment = Segment::open(queue.memory.clone()).expect("our own segment");
    let (mut lanes, mut sleep) = segment.into_client();
    let mut rounds = 0;
    while target.time_is_left() {
        sleep.announce(); // the poller rings for every batch
        let mut open = HashSet::from([7]);
        assert!(lanes[0].free(1).expect("an honest sidecar") > 0, "a slot is free");
        lanes[0].stage(Request { user_data: 7, ..Request::default() });
        if lanes[0].publish() == Ring::Now {
            ring(&queue);
        }
        while !open.is_empty() {
            collect(&mut lanes[0], &mut open);
        }
        sleep.retract();
        hush(queue.hear.as_fd()); // a full pipe would ring no more
        rounds += 1;
    }
    rounds
}

/// As many watchers as the kernel allows this user.
fn hang(queue: &RawQueue) -> Vec<OwnedFd> {
    let copy = || queue.hear.try_clone().expect("a descriptor");
    let mut kept: Vec<OwnedFd> = (0..SIDE).map(|_| copy()).collect();
    for _ in 0..SIDE {
        let epoll = create(CreateFlags::CLOEXEC).expect("a descriptor");
        let bells = &kept[..SIDE];
        let watch = |bell| add(&epoll, bell, EventData::new_u64(0), EventFlags::IN).is_ok();
        let full = !bells.iter().all(watch);
        kept.push(epoll);
        if full {
            break;
        }
    }
    kept
}
