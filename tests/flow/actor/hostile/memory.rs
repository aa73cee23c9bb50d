//! Attacks on shared memory: holes and truncation.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvrail_client::{Arena, Queue, Request, Status, Volume};
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::{QueueSegment, Request as Slot};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;

use super::Target;
use crate::rude::Rude;

const ARENA_BYTES: u64 = 4 << 20;
const LONG: Duration = Duration::from_secs(60);

fn sealed() -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("hostile", flags).expect("a memfd");
    ftruncate(&fd, ARENA_BYTES).expect("room");
    fallocate(&fd, FallocateFlags::empty(), 0, ARENA_BYTES).expect("room");
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("sealable");
    fd
}

/// Punches holes into its arena while requests, some with checksums, move its bytes. Every request
/// ends once, with any status. No other client's block is touched: the attack writes to the end of
/// the volume only.
pub(crate) fn holes(target: &Target) -> u64 {
    let memory = sealed();
    let ours = memory.try_clone().expect("a descriptor");
    let client = target.client();
    let arena = client.import_arena(memory, ARENA_BYTES).expect("good memory");
    let volume = client.volume(&target.volume).expect("there is one");
    let mut queue = client.open_queue(32).expect("a queue");
    let stop = AtomicBool::new(false);
    let mut rounds = 0;
    std::thread::scope(|scope| {
        // Relaxed: the flag orders nothing, it only ends the loop.
        scope.spawn(|| {
            let mut dice = fastrand::Rng::with_seed(3);
            while !stop.load(Ordering::Relaxed) {
                punch(ours.as_fd(), 4096 * dice.u64(..1024), 4096 * dice.u64(1..64), ARENA_BYTES);
            }
        });
        while target.time_is_left() {
            move_bytes(&mut queue, &volume, &arena);
            rounds += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    arena.detach().expect("detached");
    segment_with_holes(target);
    rounds
}

fn punch(memory: BorrowedFd<'_>, at: u64, bytes: u64, whole: u64) {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let at = at.min(whole - 4096);
    fallocate(memory, flags, at, bytes.min(whole - at)).expect("no seal forbids holes");
}

/// Sixteen blocks at the end of the volume, written and read, with every option.
fn move_bytes(queue: &mut Queue, volume: &Volume, arena: &Arena) {
    let block = 64 << 10;
    let stripe = volume.geometry().stripe_bytes;
    let last = volume.capacity() / stripe * stripe - stripe;
    for number in 0..16_u64 {
        let lease = arena.lease(block).expect("room");
        let offset = last + number % 2 * block as u64;
        let request = match number % 4 {
            0 => Request::write(volume, offset, lease).checksum(),
            1 => Request::read(volume, offset, lease).checksum(),
            2 => Request::write(volume, offset, lease).verify(0x1234),
            _ => Request::read(volume, offset, lease),
        };
        queue.submit(request).expect("room");
    }
    let mut done = Vec::new();
    let count = queue.wait_for(16, &mut done, LONG).expect("a session");
    assert_eq!(count, 16, "every request ends");
    let ends = [Status::Ok, Status::Corrupt, Status::IoError, Status::Invalid];
    assert!(done.iter().all(|done| ends.contains(&done.status)), "{done:?}");
}

/// The segment of a queue is memory too, and pollers look into it: no holes once it is served.
fn segment_with_holes(target: &Target) {
    for _ in 0..20 {
        let mut rude = Rude::attach(&target.socket);
        let queue = rude.queue(64);
        let segment = QueueSegment::open(queue.memory.clone()).expect("our own segment");
        let (mut lanes, _sleep) = segment.into_client();
        lanes[0].free(8).expect("an honest sidecar");
        for user_data in 0..8 {
            lanes[0].stage(Slot { user_data, ..Slot::default() });
        }
        let _asleep = lanes[0].publish();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes = queue.memory.bytes() as u64;
        for length in [bytes, 4096] {
            let hole = fallocate(&queue.segment, flags, 0, length);
            assert_eq!(hole, Err(Errno::PERM), "of {length} bytes");
        }
        for doorbell in &queue.doorbells {
            let _rung = rustix::io::write(doorbell, &1_u64.to_ne_bytes());
        }
        // The sidecar answers, whatever the segment holds.
        let _received = rude.send(ControlRequest::Status, &[]).map(|()| rude.receive());
    }
}

/// Shrinks, grows and unseals: the seals refuse each.
pub(crate) fn truncate(target: &Target) -> u64 {
    let mut rounds = 0;
    while target.time_is_left() {
        let mut rude = Rude::attach(&target.socket);
        let queue = rude.queue(64);
        refuses_every_size(queue.segment.as_fd(), queue.memory.bytes() as u64);
        let pages = kvrail_protocol::Pages::Base;
        let (answer, fds) = rude.ask(ControlRequest::CreateArena { bytes: 1 << 20, pages }, &[]);
        assert!(matches!(answer, ControlReply::Arena { .. }), "{answer:?}");
        refuses_every_size(fds[0].as_fd(), 1 << 20);
        let own = sealed();
        let (answer, _) =
            rude.ask(ControlRequest::ImportArena { bytes: ARENA_BYTES }, &[own.as_fd()]);
        assert!(matches!(answer, ControlReply::Arena { .. }), "{answer:?}");
        refuses_every_size(own.as_fd(), ARENA_BYTES);
        rounds += 1;
    }
    rounds
}

fn refuses_every_size(fd: BorrowedFd<'_>, bytes: u64) {
    for size in [0, 4096, bytes - 4096, bytes + 4096] {
        if size != bytes {
            assert_eq!(ftruncate(fd, size), Err(Errno::PERM), "to {size} of {bytes}");
        }
    }
    assert_eq!(fcntl_add_seals(fd, SealFlags::WRITE), Err(Errno::PERM), "no seal more");
}
