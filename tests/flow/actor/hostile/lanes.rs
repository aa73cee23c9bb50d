//! Attacks on lanes and bells.

use std::collections::HashSet;

use kvrail_client::{Request as Good, Status};
use kvrail_memory::{load, store};
use kvrail_protocol::ChannelError;
use kvrail_ring::{ClientLane, QueueSegment, Request};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use zerocopy::FromBytes;

use super::Target;
use crate::rude::{RawQueue, Rude, pause};

/// Offsets of the first lane, and of the client's and the sidecar's words in a lane: the layout
/// that `kvrail_ring::Segment` documents.
const LANE_AT: usize = 4096;
const REQUEST_HEAD: usize = LANE_AT;
const COMPLETION_HEAD: usize = LANE_AT + 128;
const POLLER_SLEEP: usize = LANE_AT + 256;
pub(super) const SLOTS: usize = LANE_AT + 384;
/// Offset of the lap in a slot.
pub(super) const LAP: usize = 11;
/// Pauses within which a batch is served, unless its session has ended.
const SERVED_WITHIN: u32 = 100;

pub(super) fn ring(queue: &RawQueue) {
    for doorbell in &queue.doorbells {
        let _rung = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
    }
}

fn read(queue: &RawQueue, at: usize) -> u32 {
    let mut word = [0; 4];
    load(queue.memory.as_ref(), at, &mut word);
    u32::from_ne_bytes(word)
}

/// 64 bytes of garbage, restricted so that no other client's block is written: writes and discards
/// name a region or a place that does not exist.
fn garbage(dice: &mut fastrand::Rng) -> Request {
    let mut bytes = [0; 64];
    dice.fill(&mut bytes);
    let mut request = Request::read_from_bytes(&bytes).expect("any bytes are a request");
    if dice.bool() {
        // Almost right, with one or two wrong fields.
        request = Request { user_data: request.user_data, ..Request::default() };
        request.opcode = dice.u8(..6);
        request.length = 512 * dice.u32(..4);
        request.volume_offset = 512 * dice.u64(..8);
        match dice.u8(..6) {
            0 => request.volume = dice.u16(..),
            1 => request.flags = dice.u8(..),
            2 => request.reserved_a = dice.u16(..),
            3 => request.region_offset = dice.u64(..),
            4 => request.length = dice.u32(..),
            _ => request.class = dice.u8(..),
        }
    }
    if matches!(request.opcode, 2 | 4) {
        request.region = u32::MAX;
        request.volume_offset = u64::MAX - dice.u64(..1 << 20);
    }
    request
}

/// Fills lanes with garbage. Each slot is answered once, with its own user data, and almost all are
/// INVALID (a flush or a no-op may come out right).
pub(crate) fn slots(target: &Target) -> u64 {
    let mut dice = fastrand::Rng::with_seed(11);
    let mut rude = Rude::attach(&target.socket);
    let queue = rude.queue(64);
    let segment = QueueSegment::open(queue.memory.clone()).expect("our own segment");
    let (mut lanes, _sleep) = segment.into_client();
    let mut rounds = 0;
    while target.time_is_left() {
        let mut open = HashSet::new();
        let mut invalid = 0;
        let count = dice.u32(1..64);
        for number in 0..count {
            let request = Request { user_data: u64::from(number), ..garbage(&mut dice) };
            let lane = &mut lanes[0];
            assert!(lane.free(1).expect("an honest sidecar") > 0, "a slot is free");
            lane.stage(request);
            open.insert(request.user_data);
        }
        let _asleep = lanes[0].publish();
        ring(&queue);
        while !open.is_empty() {
            invalid += collect(&mut lanes[0], &mut open);
        }
        assert!(invalid > 0 || count < 8, "none of {count} slots was INVALID");
        rounds += 1;
    }
    rounds
}

/// Takes all completions; returns how many were INVALID.
pub(super) fn collect(lane: &mut ClientLane, open: &mut HashSet<u64>) -> u32 {
    let mut invalid = 0;
    if !lane.is_ready().expect("an honest sidecar") {
        pause();
    }
    while let Some(completion) = lane.take().expect("an honest sidecar") {
        let completion = completion.fields();
        // A LATE notice is no completion.
        if completion.status() != Status::Late {
            assert!(open.remove(&completion.user_data), "ended twice: {completion:?}");
        }
        invalid += u32::from(completion.status() == Status::Invalid);
    }
    lane.release();
    invalid
}

/// Impossible laps and indices: that session ends with the reason, every time.
pub(crate) fn indices(target: &Target) -> u64 {
    let mut dice = fastrand::Rng::with_seed(12);
    let mut rounds = 0;
    while target.time_is_left() {
        let mut rude = Rude::attach(&target.socket);
        let depth = 1 << dice.u32(1..8);
        let queue = rude.queue(depth);
        let memory = queue.memory.as_ref();
        let word = |at, value: u32| store(memory, at, &value.to_ne_bytes());
        let lap = |slot: u32, lap: u8| store(memory, SLOTS + 64 * slot as usize + LAP, &[lap]);
        // Words that only the sidecar writes may have any value: it does not read them back.
        word(REQUEST_HEAD, dice.u32(..));
        word(POLLER_SLEEP, dice.u32(..));
        if dice.bool() {
            lap(0, dice.u8(2..));
        } else {
            // The sidecar reads this word when the completion ring may be full: in the third batch
            // at the latest. Until then it serves.
            word(COMPLETION_HEAD, dice.u32(depth * 2 + 1..));
            word(REQUEST_HEAD, 0);
            for batch in 1..=3 {
                (0..depth).for_each(|slot| lap(slot, batch));
                ring(&queue);
                let served = || read(&queue, REQUEST_HEAD) == depth * u32::from(batch);
                (0..SERVED_WITHIN).take_while(|_| !served()).for_each(|_| pause());
            }
        }
        let late = dice.u8(..);
        ring(&queue);
        let reason = rude.expelled();
        assert!(reason.contains("queue 0"), "{reason}");
        lap(0, late); // the poller reads it no more
        rounds += 1;
    }
    rounds
}

/// Submits and never reads a completion: the lane fills, without further effect.
pub(crate) fn deaf(target: &Target) -> u64 {
    let mut rude = Rude::attach(&target.socket);
    let queue = rude.queue(256);
    let memory = queue.memory.as_ref();
    let mut tail: u32 = 0;
    while target.time_is_left() {
        if tail.wrapping_sub(read(&queue, REQUEST_HEAD)) < 256 {
            let mut slot = [0; 64]; // a no-op
            slot[LAP] = u8::try_from(tail / 256 % 256).expect("below 256").wrapping_add(1);
            store(memory, SLOTS + 64 * (tail as usize % 256), &slot);
            tail = tail.wrapping_add(1);
            ring(&queue);
        } else {
            pause();
        }
    }
    // 512 completion slots, and 256 requests that find none.
    assert_eq!(tail, 768, "as many as fit were taken, not more");
    u64::from(tail)
}

/// Makes every descriptor blocking and full.
pub(crate) fn bells(target: &Target) -> u64 {
    let mut rude = Rude::attach(&target.socket);
    let queue = rude.queue(64);
    for fd in queue.doorbells.iter().chain([&queue.bell]) {
        let flags = fcntl_getfl(fd).expect("flags");
        fcntl_setfl(fd, flags - OFlags::NONBLOCK).expect("our descriptor");
    }
    // The counter of a doorbell at its maximum, so that one more write would block.
    for doorbell in &queue.doorbells {
        let flags = fcntl_getfl(doorbell).expect("flags");
        fcntl_setfl(doorbell, flags | OFlags::NONBLOCK).expect("our descriptor");
        let _full = rustix::io::write(doorbell, &(u64::MAX - 1).to_ne_bytes());
        fcntl_setfl(doorbell, flags).expect("our descriptor");
    }
    wake_over_and_over(target, &queue, reset)
}

/// Sleeps, or announces it, before each of its no-ops ends. A broken doorbell costs only this
/// client, which waits until the poller looks by itself; so `rings` is tried only.
fn wake_over_and_over(target: &Target, queue: &RawQueue, rings: impl Fn(&RawQueue)) -> u64 {
    let segment = QueueSegment::open(queue.memory.clone()).expect("our own segment");
    let (mut lanes, mut sleep) = segment.into_client();
    let mut rounds = 0;
    while target.time_is_left() {
        sleep.announce(); // the poller rings for every batch
        let mut open = HashSet::from([7]);
        lanes[0].free(1).expect("an honest sidecar");
        lanes[0].stage(Request { user_data: 7, ..Request::default() });
        if lanes[0].publish() == kvrail_ring::RingBell::Now {
            rings(queue);
        }
        while !open.is_empty() {
            collect(&mut lanes[0], &mut open);
        }
        sleep.retract();
        rounds += 1;
    }
    rounds
}

/// Reads the counters and writes them again, which is a ring.
fn reset(queue: &RawQueue) {
    for doorbell in &queue.doorbells {
        let _taken = rustix::io::read(doorbell, &mut [0; 8]);
        let _full = rustix::io::write(doorbell, &(u64::MAX - 1).to_ne_bytes());
    }
}

/// Registers the largest number of watchers on the bell, and is woken all the time: each watcher
/// costs the ringing thread.
pub(crate) fn watchers(target: &Target) -> u64 {
    let mut rude = Rude::attach(&target.socket);
    let queue = rude.queue(64);
    let copies: Vec<_> = (0..200).map(|_| queue.bell.try_clone().expect("a descriptor")).collect();
    let sets: Vec<_> =
        (0..500).map(|_| epoll::create(CreateFlags::CLOEXEC).expect("a set")).collect();
    let pairs = sets.iter().flat_map(|set| copies.iter().map(move |copy| (set, copy)));
    let watch = |set, copy| epoll::add(set, copy, EventData::new_u64(0), EventFlags::IN);
    let hung = pairs.map_while(|(set, copy)| watch(set, copy).ok()).count();
    assert!(hung <= 1000, "{hung} watchers hang on one bell");
    wake_over_and_over(target, &queue, ring)
}

/// Rings without a reason, as fast as it can.
pub(crate) fn flood(target: &Target) -> u64 {
    let mut rude = Rude::attach(&target.socket);
    let queue = rude.queue(64);
    let client = target.client();
    let volume = client.volume(&target.volume).expect("there is one");
    let mut own = client.open_queue(8).expect("a queue");
    let mut rounds = 0;
    while target.time_is_left() {
        for _ in 0..1000 {
            ring(&queue);
        }
        own.submit(Good::nop(&volume)).expect("room");
        let done = own.wait(std::time::Duration::from_secs(30)).expect("a session");
        assert_eq!(done.expect("an end").status, Status::Ok);
        let silent = rude.channel.receive::<kvrail_protocol::SidecarMessage>(
            &mut kvrail_protocol::PacketBuffer::default(),
            0,
        );
        assert!(matches!(silent, Err(ChannelError::WouldBlock)), "ringing is no offence");
        rounds += 1;
    }
    rounds
}
