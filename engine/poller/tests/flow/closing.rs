//! Leaving: regions, lanes and sessions go only when nothing can touch them any more.

use std::time::Instant;

use kvrail_poller::{Notice, PollerCommand, SleepOutcome, TickOutcome};
use kvrail_ring::{Request, Status};

use super::rig::Rig;

#[test]
fn a_region_is_detached_after_its_last_request() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    client.post(&[client.read(1, 4096), client.read(2, 4096)]);
    rig.settle();
    rig.carry_out(PollerCommand::Detach(client.session, client.region));
    client.post(&[client.read(3, 4096)]);
    rig.settle();
    assert_eq!(client.collect()[0].status(), Status::Invalid, "no new request may name it");
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    assert!(rig.notices().is_empty(), "one request is still in flight");
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    assert!(matches!(rig.notices()[..], [Notice::Detached(..)]));
    assert!(rig.own.shelf.borrow().attached.is_empty());
}

#[test]
fn a_refused_attach_says_so_and_leaves_nothing_behind() {
    let mut rig = Rig::new(8);
    let client = rig.client(0, 8);
    rig.carry_out(PollerCommand::Detach(client.session, client.region));
    rig.notices();
    rig.own.shelf.borrow_mut().refuse_attach = Some("no");
    let memory = std::sync::Arc::new(kvrail_memory::HeapBlock::new(4096));
    let (session, region) = (client.session, client.region);
    let buffer = kvrail_device::BufferIndex(3);
    rig.carry_out(PollerCommand::Attach { session, region, buffer, memory: memory.clone() });
    assert!(matches!(rig.notices()[..], [Notice::Attached(_, _, Err(_))]));
    assert_eq!(std::sync::Arc::strong_count(&memory), 1, "nobody holds the memory any more");
}

#[test]
fn a_dead_client_s_waiting_requests_are_dropped_and_the_rest_is_drained() {
    let mut rig = Rig::new(2);
    let mut dying = rig.client(0, 16);
    let mut other = rig.client(1, 16);
    let requests: Vec<Request> = (0..10).map(|at| dying.read(at, 4096)).collect();
    dying.post(&requests);
    rig.settle();
    other.post(&[other.read(77, 4096)]);
    rig.settle();
    rig.carry_out(PollerCommand::CloseSession(dying.session));
    assert!(rig.notices().is_empty(), "two operations are at the device");
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    let notices = rig.notices();
    let [first, second, Notice::SessionClosed(session)] = &notices[..] else {
        panic!("lane, region, session: {notices:?}");
    };
    assert_eq!(*session, dying.session);
    assert!([first, second].iter().any(|notice| matches!(notice, Notice::LaneClosed(..))));
    assert!([first, second].iter().any(|notice| matches!(notice, Notice::Detached(..))));
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    assert_eq!(other.collect()[0].user_data, 77, "the other client is served");
}

#[test]
fn a_lane_with_an_impossible_lap_is_closed_and_named() {
    let mut rig = Rig::new(8);
    let rogue = rig.client(0, 8);
    // A slot of a lap that is neither this one nor the one before: only a hostile client does that.
    kvrail_memory::store(&*rogue.memory, 4096 + 384 + 11, &[7]);
    rig.settle();
    let notices = rig.notices();
    assert!(matches!(notices[0], Notice::LaneFault(..)), "{notices:?}");
    assert!(matches!(notices[1], Notice::LaneClosed(..)), "{notices:?}");
    rig.carry_out(PollerCommand::CloseSession(rogue.session));
    assert!(matches!(rig.notices().last(), Some(Notice::SessionClosed(_))));
}

#[test]
fn a_closed_lane_returns_after_its_last_completion() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    client.post(&[client.read(1, 4096)]);
    rig.settle();
    rig.carry_out(PollerCommand::CloseLane(client.session, 7));
    assert!(rig.notices().is_empty());
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    assert!(matches!(rig.notices()[..], [Notice::LaneClosed(_, _)]));
    assert_eq!(client.collect()[0].status(), Status::Ok, "its completion was published");
}

/// To take a doorbell out of its set, a poller would wait for whoever rings it.
#[test]
fn the_doorbell_of_a_closed_lane_wakes_nobody() {
    let mut rig = Rig::new(8);
    let client = rig.client(0, 8);
    let rung = |rig: &mut Rig, longest_ns: u64| {
        client.doorbell.ring();
        let start = Instant::now();
        assert_eq!(rig.poller.sleep(longest_ns), SleepOutcome::Over);
        start.elapsed().as_nanos() < u128::from(longest_ns)
    };
    assert!(rung(&mut rig, 60_000_000_000), "woken while it is open");
    rig.carry_out(PollerCommand::CloseLane(client.session, 7));
    assert!(matches!(rig.notices()[..], [Notice::LaneClosed(..)]), "and our end is closed");
    let woken = (0..3).filter(|_| rung(&mut rig, 30_000_000)).count();
    assert!(woken <= 1, "what had rung before may be heard once");
}

#[test]
fn a_stopped_poller_ends_when_nothing_is_in_flight() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    client.post(&[client.read(1, 4096)]);
    rig.settle();
    rig.carry_out(PollerCommand::Stop);
    assert_ne!(rig.poller.tick(), TickOutcome::Stopped);
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    assert_eq!(rig.poller.tick(), TickOutcome::Stopped);
    assert_eq!(client.collect()[0].status(), Status::Ok);
}
