//! Requests: checked, run, completed exactly once; fair between sessions and classes.

use kvrail_poller::{PollerCommand, TickOutcome};
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::slot::{FLAG_NOTICE, FLAGS_KNOWN};
use kvrail_ring::{Class, Opcode, Request, Status};

use super::rig::{ARENA_BYTES, Rig};

#[test]
fn a_read_goes_to_the_device_and_comes_back_once() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    client.post(&[Request { volume_offset: 4096, ..client.read(42, 4096) }]);
    rig.settle();
    assert!(client.collect().is_empty(), "not before the device is done");
    let operation = rig.own.shelf.borrow().held[0];
    assert_eq!((operation.offset, operation.length), ((1 << 20) + 4096, 4096));
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    let done = client.collect();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].user_data, done[0].status(), done[0].bytes), (42, Status::Ok, 4096));
    rig.settle();
    assert!(client.collect().is_empty());
}

#[test]
fn operations_are_handed_over_in_fours() {
    let mut rig = Rig::new(32);
    let mut client = rig.client(0, 32);
    let reads: Vec<_> = (0..9).map(|number| client.read(number, 4096)).collect();
    client.post(&reads);
    rig.settle();
    assert_eq!(rig.own.shelf.borrow().batches, [4, 4, 1]);
}

#[test]
fn what_ends_on_submission_is_completed_in_the_same_tick() {
    let mut rig = Rig::new(32);
    let mut client = rig.client(0, 32);
    rig.own.shelf.borrow_mut().prompt = true;
    for count in 1..=9 {
        let reads: Vec<_> = (0..count).map(|number| client.read(number, 4096)).collect();
        client.post(&reads);
        assert_eq!(rig.poller.tick(), TickOutcome::Busy);
        assert_eq!(client.collect().len() as u64, count, "handed over in fours or not");
    }
}

#[test]
fn every_kind_of_garbage_is_invalid_and_touches_nothing() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 64);
    let good = client.read(1, 4096);
    let garbage = [
        Request { opcode: 5, ..good },
        Request { opcode: 255, ..good },
        Request { class: 3, ..good },
        Request { flags: !FLAGS_KNOWN, ..good },
        Request { reserved_a: 1, ..good },
        Request { reserved_b: 1, ..good },
        Request { layout_block: 1, ..good },
        Request { volume: 1, ..good },
        Request { region: 1, ..good },
        Request { region: u32::MAX, ..good },
        Request { region: good.region | 1 << 16, ..good },
        Request { length: 0, ..good },
        Request { length: 100, ..good },
        Request { length: !511, ..good },
        Request { volume_offset: 1, ..good },
        Request { volume_offset: 1 << 30, ..good },
        Request { volume_offset: !511, ..good },
        Request { region_offset: 2, ..good },
        Request { region_offset: ARENA_BYTES as u64, ..good },
        Request { region_offset: !511, ..good },
        Request { flags: 1, ..good },
        Request { opcode: Opcode::Flush as u8, ..good },
        Request { opcode: Opcode::Flush as u8, length: 0, flags: 1, ..good },
        Request { opcode: Opcode::Discard as u8, flags: 4, ..good },
        Request { opcode: Opcode::Discard as u8, length: REQUEST_LENGTH_MAX + 512, ..good },
    ];
    client.post(&garbage);
    rig.settle();
    let done = client.collect();
    assert_eq!(done.len(), garbage.len());
    for (request, completion) in garbage.iter().zip(&done) {
        assert_eq!(completion.status(), Status::Invalid, "{request:?}");
    }
    assert!(rig.own.shelf.borrow().held.is_empty());
}

#[test]
fn another_session_s_region_is_invalid() {
    let mut rig = Rig::new(8);
    let (victim, mut thief) = (rig.client(0, 8), rig.client(1, 8));
    thief.post(&[Request { region: victim.region.0, ..thief.read(1, 4096) }]);
    rig.settle();
    assert_eq!(thief.collect()[0].status(), Status::Invalid);
}

#[test]
fn errors_reach_the_request_they_belong_to() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    client.post(&[client.read(1, 4096), client.read(2, 4096), client.read(3, 4096)]);
    rig.settle();
    rig.own.shelf.borrow_mut().finish(1, Status::IoError);
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.own.shelf.borrow_mut().finish(0, Status::DeviceGone);
    rig.settle();
    let mut done: Vec<_> =
        client.collect().iter().map(|done| (done.user_data, done.status(), done.bytes)).collect();
    done.sort_by_key(|done| done.0);
    let expected = [(1, Status::Ok, 4096), (2, Status::IoError, 0), (3, Status::DeviceGone, 0)];
    assert_eq!(done, expected);
}

#[test]
fn a_client_that_never_reads_is_held_back_and_loses_nothing() {
    let mut rig = Rig::new(64);
    let mut client = rig.client(0, 4);
    let mut posted = 0_u64;
    for _ in 0..20 {
        while client.lane.free(1).unwrap() > 0 {
            posted += 1;
            client.post(&[client.read(posted, 512)]);
        }
        rig.settle();
        while !rig.own.shelf.borrow().held.is_empty() {
            rig.own.shelf.borrow_mut().finish(0, Status::Ok);
        }
        rig.settle();
    }
    assert_eq!(posted, 8 + 4, "eight completions wait unread, four requests in their lane");
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.extend(client.collect().iter().map(|done| done.user_data));
        rig.settle();
        while !rig.own.shelf.borrow().held.is_empty() {
            rig.own.shelf.borrow_mut().finish(0, Status::Ok);
        }
        rig.settle();
    }
    assert_eq!(seen, (1..=posted).collect::<Vec<_>>());
}

#[test]
fn demand_goes_before_background_that_came_first() {
    let mut rig = Rig::new(4);
    let mut client = rig.client(0, 64);
    let background: Vec<_> = (0..8)
        .map(|at| Request { class: Class::Background as u8, ..client.read(100 + at, 4096) })
        .collect();
    client.post(&background);
    client.post(&[client.read(1, 4096), client.read(2, 4096)]);
    rig.settle();
    assert_eq!(rig.own.shelf.borrow().held.len(), 4, "three of background and one of demand");
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    let mut order = Vec::new();
    while !rig.own.shelf.borrow().held.is_empty() {
        rig.own.shelf.borrow_mut().finish(0, Status::Ok);
        rig.settle();
        order.extend(client.collect().iter().map(|done| done.user_data));
    }
    let of_demand = |id: u64| order.iter().position(|seen| *seen == id);
    assert!(of_demand(1) < of_demand(105) && of_demand(2) < of_demand(105), "{order:?}");
    assert_eq!(order.len(), 10);
}

#[test]
fn a_deadline_gives_one_notice_and_no_early_completion() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    client.post(&[Request { deadline_ns: 3_000_000, ..client.read(9, 4096) }]);
    rig.settle();
    let mut notices = Vec::new();
    for _ in 0..200 {
        rig.clock.advance(100_000);
        rig.settle();
        notices.extend(client.collect());
    }
    assert_eq!(notices.len(), 1);
    assert_eq!((notices[0].user_data, notices[0].status()), (9, Status::Late));
    assert_eq!(notices[0].flags, FLAG_NOTICE);
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    let done = client.collect();
    assert_eq!((done.len(), done[0].status(), done[0].flags), (1, Status::Ok, 0));
}

#[test]
fn deadlines_of_completed_requests_leave_room_for_those_in_flight() {
    let mut rig = Rig::new(64);
    let (mut eager, mut other) = (rig.client(0, 64), rig.client(1, 8));
    let hour = Request { deadline_ns: 3_600_000_000_000, ..eager.read(1, 512) };
    for _ in 0..1000 {
        eager.post(&[hour; 64]);
        rig.settle();
        while !rig.own.shelf.borrow().held.is_empty() {
            rig.own.shelf.borrow_mut().finish(0, Status::Ok);
        }
        rig.settle();
        assert_eq!(eager.collect().len(), 64);
    }
    other.post(&[Request { deadline_ns: 1_000_000, ..other.read(2, 512) }]);
    rig.settle();
    rig.clock.advance(3_000_000);
    rig.settle();
    assert_eq!(other.collect().first().map(|done| done.status()), Some(Status::Late));
}

#[test]
fn a_draining_poller_finishes_what_it_took_and_refuses_the_rest() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    client.post(&[client.read(1, 4096)]);
    rig.settle();
    rig.carry_out(PollerCommand::Drain);
    client.post(&[client.read(2, 4096)]);
    rig.settle();
    assert_eq!(client.collect()[0].status(), Status::Draining);
    assert!(rig.notices().is_empty(), "one is still at the device");
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    assert_eq!(client.collect()[0].status(), Status::Ok);
    assert!(matches!(rig.notices()[..], [kvrail_poller::Notice::Drained]));
}

#[test]
fn the_reason_of_a_failure_is_told_and_a_storm_of_them_is_not() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 8);
    let mut told = Vec::new();
    let pauses = [(1, 0), (2, 0), (3, 200_000_000), (4, 150_000_000), (5, 100_000_000)];
    for (user_data, pause_ns) in pauses.into_iter().chain([(6, 70_000_000_000), (7, 150_000_000)]) {
        rig.clock.advance(pause_ns);
        client.post(&[Request { volume_offset: 4096, ..client.read(user_data, 4096) }]);
        rig.settle();
        rig.own.shelf.borrow_mut().fail(0, Status::IoError);
        rig.settle();
        assert_eq!(client.collect()[0].status(), Status::IoError);
        told.extend(rig.mailbox.next_failure());
    }
    let text: Vec<String> = told.iter().map(|one| one.failure.to_string()).collect();
    let expected = "Read of 4096 bytes at 1052672 ended with IO_ERROR: fewer bytes than requested";
    assert_eq!(text, [expected; 5]);
    assert_eq!(
        told.iter().map(|one| (one.device, one.errors)).collect::<Vec<_>>(),
        [(0, 1), (0, 3), (0, 5), (0, 6), (0, 7)]
    );
}
