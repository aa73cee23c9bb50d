//! Clients with expensive wake-ups, and memory of lanes that clients change.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvrail_client::{Client, Queue, Request, Status, Volume};
use kvrail_device::FaultPlan;
use kvrail_memory::{MemoryError, Region, Sealing};
use kvrail_protocol::{ClientWaker, ControlReply, ControlRequest, SidecarMessage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::hostile::{Rude, still_serves};
use crate::sidecar::{Sidecar, eventually};

const LONG: Duration = Duration::from_secs(10);

/// Threads that wait for a bell, and how often each names it.
const WAITING: usize = 48;
const TIMES: usize = 1_000;

/// Waits for one bell very often at once, again and again.
fn watch(bell: &OwnedFd, stop: &AtomicBool) {
    let a_moment = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    // Relaxed: the flag orders nothing.
    while !stop.load(Ordering::Relaxed) {
        let mut all: Vec<_> = (0..TIMES).map(|_| PollFd::new(bell, PollFlags::IN)).collect();
        let _woken = poll(&mut all, Some(&a_moment));
    }
}

fn waker(client: &Client) -> ClientWaker {
    let mine = client.session().0;
    let report = client.status().unwrap();
    report.sessions.iter().find(|session| session.id == mine).unwrap().woken_by
}

/// A request that is waited for on the bell.
fn sleep_once(queue: &mut Queue, volume: &Volume) {
    queue.submit(Request::flush(volume)).unwrap();
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
}

#[test]
fn a_client_that_is_dear_to_wake_is_woken_by_the_ringer_and_so_is_its_user() {
    let (sidecar, _controls) =
        Sidecar::start_real(|config| config.spin.spin_ns = 0, |_| FaultPlan::default());
    let dear = Client::attach(sidecar.socket()).unwrap();
    let volume = dear.volume("kv").unwrap();
    let mut queue = dear.open_queue(8).unwrap();
    assert_eq!(waker(&dear), ClientWaker::Poller);
    let stop = AtomicBool::new(false);
    let bell = queue.wait_fd().try_clone_to_owned().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..WAITING {
            scope.spawn(|| watch(&bell, &stop));
        }
        eventually("the ringer wakes it", || {
            sleep_once(&mut queue, &volume);
            std::thread::sleep(Duration::from_millis(5)); // they all wait again
            waker(&dear) == ClientWaker::Ringer
        });
        (0..5).for_each(|_| sleep_once(&mut queue, &volume));
        stop.store(true, Ordering::Relaxed);
    });
    drop((queue, dear));
    let back = Client::attach(sidecar.socket()).unwrap();
    let mut queue = back.open_queue(8).unwrap();
    assert_eq!(waker(&back), ClientWaker::Ringer, "to attach again is no way back");
    (0..100).for_each(|_| sleep_once(&mut queue, &volume_of(&back)));
}

fn volume_of(client: &Client) -> Volume {
    client.volume("kv").unwrap()
}

fn punch(memory: &OwnedFd, bytes: u64) -> Result<(), Errno> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(memory.as_fd(), flags, 0, bytes)
}

fn answer(message: SidecarMessage) -> ControlReply {
    match message {
        SidecarMessage::Reply { answer, .. } => answer,
        other => panic!("{other:?}"),
    }
}

/// A poller that looks into a hole waits for a page.
#[test]
fn nobody_can_punch_holes_into_lanes_that_are_served() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    let (queue, memory, bytes) = rude.offered_queue();
    let copy = || memory.try_clone().unwrap();
    let mapping = Region::import_with(copy(), bytes, Sealing::Size).unwrap();
    punch(&memory, bytes).expect("no poller serves it yet");
    assert_eq!(
        answer(rude.ask(ControlRequest::QueueMapped { queue }, &[])),
        ControlReply::QueueServed { queue }
    );
    assert_eq!(punch(&memory, bytes), Err(Errno::PERM));
    assert_eq!(punch(&memory, 4096), Err(Errno::PERM));
    let again = Region::import_with(copy(), bytes, Sealing::Size);
    assert!(matches!(again, Err(MemoryError::Map { errno: Errno::PERM })), "{again:?}");
    let present = u64::try_from(rustix::fs::fstat(&memory).unwrap().st_blocks).unwrap() * 512;
    assert_eq!(present, mapping.bytes() as u64, "holes from before are filled");
    let twice = answer(rude.ask(ControlRequest::QueueMapped { queue }, &[]));
    assert!(matches!(twice, ControlReply::Error { status: Status::Invalid, .. }), "{twice:?}");
    still_serves(&sidecar);
}

#[test]
fn a_queue_that_is_never_mapped_is_closed_and_given_back() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    let (queue, _memory, _) = rude.offered_queue();
    assert_eq!(
        answer(rude.ask(ControlRequest::CloseQueue { queue }, &[])),
        ControlReply::QueueClosed { queue }
    );
    let late = answer(rude.ask(ControlRequest::QueueMapped { queue }, &[]));
    assert!(matches!(late, ControlReply::Error { status: Status::Invalid, .. }), "{late:?}");
    let (_queue, memory, _) = rude.offered_queue();
    drop((rude, memory));
    still_serves(&sidecar);
}
