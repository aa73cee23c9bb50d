//! Spinning, sleeping, being woken.

use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use kvrail_ring::{Status, drain_doorbell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::rig::{LONG, Rig, geometry};
use crate::request::Request;
use crate::wait::Armed;

fn readable(fd: &impl AsFd, timeout: Duration) -> bool {
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

#[test]
fn a_wait_ends_at_its_time_and_at_once_when_nothing_is_under_way() {
    for spin_ns in [0, 50_000] {
        let mut rig = Rig::spinning(geometry(1, 4096), 1, 4, spin_ns);
        assert!(rig.queue.wait(Duration::MAX).unwrap().is_none());
        rig.queue.submit(Request::nop(&rig.volume)).unwrap();
        let start = Instant::now();
        let patience = Duration::from_millis(20);
        assert!(rig.queue.wait(patience).unwrap().is_none());
        assert!(start.elapsed() >= patience);
        assert!(rig.queue.wait(Duration::ZERO).unwrap().is_none());
        assert_eq!(rig.queue.outstanding(), 1);
    }
}

#[test]
fn a_sleeper_is_woken_by_every_completion() {
    for spin_ns in [0, 20_000] {
        let mut rig = Rig::spinning(geometry(3, 4096), 2, 16, spin_ns);
        let (mut sidecar, mut queue) = (rig.sidecar, rig.queue);
        let (stop, stopped) = channel::<()>();
        let server = std::thread::spawn(move || {
            let mut answered = 0;
            while stopped.try_recv().is_err() {
                for request in sidecar.take() {
                    if answered % 7 == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    answered += 1;
                    sidecar.answer(request, Status::Ok);
                }
                std::thread::yield_now();
            }
            answered
        });
        for round in 0..300_u64 {
            let lease = rig.arena.lease(8192).unwrap();
            let offset = round % 8 * 4096;
            let ticket = queue.submit(Request::write(&rig.volume, offset, lease)).unwrap();
            let done = queue.wait(LONG).unwrap().expect("woken");
            assert_eq!((done.ticket, done.status), (ticket, Status::Ok));
        }
        stop.send(()).unwrap();
        assert_eq!(server.join().unwrap(), 600, "two pieces each");
        rig.sidecar = Rig::new(1, 4096, 1, 2).sidecar;
    }
}

#[test]
fn who_waits_in_vain_stops_spinning() {
    let mut rig = Rig::spinning(geometry(1, 4096), 1, 4, 1_000);
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    for _ in 0..3 {
        assert!(rig.queue.should_spin(), "not after one or two");
        assert!(rig.queue.wait(Duration::from_millis(1)).unwrap().is_none());
    }
    assert!(!rig.queue.should_spin(), "three spins brought nothing");
}

#[test]
fn waiting_publishes_what_was_staged() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    let nop = Request::nop(&rig.volume);
    rig.queue.stage(nop).unwrap();
    assert!(rig.sidecar.take().is_empty());
    assert!(rig.queue.wait(Duration::ZERO).unwrap().is_none());
    assert_eq!(rig.sidecar.answer_all(), 1);
    assert!(rig.queue.wait(LONG).unwrap().is_some());
}

#[test]
fn only_a_sleeping_poller_is_rung() {
    let mut rig = Rig::new(1, 4096, 1, 8);
    let rung = |rig: &Rig| {
        let heard = readable(&rig.sidecar.doorbells[0], Duration::ZERO);
        drain_doorbell(rig.sidecar.doorbells[0].as_fd());
        heard
    };
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    assert!(!rung(&rig), "it is awake");
    rig.sidecar.lanes[0].announce_sleep();
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    assert!(rung(&rig));
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    assert!(!rung(&rig), "one ring for each sleep");
    rig.sidecar.lanes[0].retract_sleep();
    rig.sidecar.lanes[0].announce_sleep();
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    assert!(rung(&rig));
}

#[test]
fn an_armed_queue_wakes_an_event_loop() {
    let mut rig = Rig::new(1, 4096, 1, 8);
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    let first = rig.sidecar.take()[0];
    assert_eq!(rig.queue.arm(), Armed::Armed);
    assert_eq!(rig.queue.arm(), Armed::Armed, "twice does no harm");
    assert!(!readable(&rig.queue.wait_fd(), Duration::ZERO));
    rig.sidecar.answer(first, Status::Ok);
    assert!(readable(&rig.queue.wait_fd(), LONG));
    let mut done = Vec::new();
    assert_eq!(rig.queue.poll(&mut done), 1);
    assert!(!readable(&rig.queue.wait_fd(), Duration::ZERO), "silenced by poll");

    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    assert_eq!(rig.sidecar.answer_all(), 1);
    assert_eq!(rig.queue.arm(), Armed::Ready, "it ended before");
    assert!(!readable(&rig.queue.wait_fd(), Duration::ZERO), "awake: not rung");
    assert_eq!(rig.queue.poll(&mut done), 1);

    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    rig.sidecar.take();
    assert_eq!(rig.queue.arm(), Armed::Armed);
    rig.sidecar.die();
    let hung_up = [PollFlags::IN, PollFlags::HUP].into_iter().any(|_| {
        let timeout = Timespec::try_from(LONG).unwrap();
        poll(&mut [PollFd::new(&rig.queue.wait_fd(), PollFlags::IN)], Some(&timeout)) == Ok(1)
    });
    assert!(hung_up, "the bell closes with the sidecar");
    assert_eq!(rig.queue.poll(&mut done), 1, "the first poll after that looks");
    assert_eq!(done.pop().unwrap().status, Status::Restarted);
}

#[test]
fn a_sleeper_hears_of_the_end_of_the_sidecar() {
    let mut rig = Rig::new(1, 4096, 1, 8);
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    let mut sidecar = rig.sidecar;
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        sidecar.bell = None; // a dying process closes its descriptors one after the other
        std::thread::sleep(Duration::from_millis(20));
        sidecar.die();
    });
    let done = rig.queue.wait(Duration::MAX).unwrap().unwrap();
    assert_eq!(done.status, Status::Restarted);
    killer.join().unwrap();
}
