//! Devices that break their contract: the poller's assertions must fire, or no test that relies on
//! them means anything.

use kvrail_device::{Event, Finished};
use kvrail_poller::PollerCommand;
use kvrail_ring::Status;

use super::rig::{Client, Rig};

/// A rig with one read of 4 KiB at the device.
fn one_read_in_flight() -> (Rig, Client) {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    client.post(&[client.read(1, 4096)]);
    rig.settle();
    (rig, client)
}

fn finished(rig: &Rig, status: Status, bytes: u32) -> Event {
    let tag = rig.own.shelf.borrow().held[0].tag;
    Event::Finished(Finished { tag, status, bytes })
}

#[test]
#[should_panic(expected = "invariant 1: finished twice, or never started")]
fn an_operation_that_ends_twice_is_seen() {
    let (mut rig, _client) = one_read_in_flight();
    let event = finished(&rig, Status::Ok, 4096);
    rig.own.shelf.borrow_mut().due.extend([event, event]);
    rig.settle();
}

#[test]
#[should_panic(expected = "invariant 1: finished twice, or never started")]
fn an_end_of_an_earlier_use_of_the_slot_is_seen() {
    let (mut rig, mut client) = one_read_in_flight();
    let late = finished(&rig, Status::Ok, 4096);
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    client.post(&[client.read(2, 4096)]);
    rig.settle();
    rig.own.shelf.borrow_mut().due.push(late);
    rig.settle();
}

#[test]
#[should_panic(expected = "invariant 1: finished twice, or never started")]
fn an_end_of_nothing_is_seen() {
    let (mut rig, _client) = one_read_in_flight();
    let status = Status::IoError;
    let event = Event::Finished(Finished { tag: u64::MAX, status, bytes: 0 });
    rig.own.shelf.borrow_mut().due.push(event);
    rig.settle();
}

#[test]
#[should_panic(expected = "invariant 3: OK with 3584 of 4096 bytes")]
fn ok_with_fewer_bytes_is_seen() {
    let (mut rig, _client) = one_read_in_flight();
    let event = finished(&rig, Status::Ok, 3584);
    rig.own.shelf.borrow_mut().due.push(event);
    rig.settle();
}

#[test]
#[should_panic(expected = "invariant 2: a device deregistered a region that it had to keep")]
fn a_region_forgotten_unasked_is_seen() {
    let (mut rig, client) = one_read_in_flight();
    rig.own.shelf.borrow_mut().due.push(Event::Detached(client.buffer()));
    rig.settle();
}

#[test]
#[should_panic(expected = "invariant 2: a device deregistered a region that it had to keep")]
fn a_region_forgotten_while_a_request_is_in_flight_is_seen() {
    let (mut rig, client) = one_read_in_flight();
    rig.carry_out(PollerCommand::Detach(client.session, client.region));
    rig.own.shelf.borrow_mut().due.push(Event::Detached(client.buffer()));
    rig.settle();
}
