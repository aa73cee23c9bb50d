//! Shares of device time, in simulated time.

use kvrail_device::SlotId;
use kvrail_ring::Class;

use super::{Among, QueuedRequest, Waiting, WaitingRequests, Way};
use crate::limits::{SessionSlot, TenantSlot};

/// A device that takes 8 us for an operation and 0.4 us for each KiB.
fn wanted(at: u64, session: u8, class: Class, length: u32) -> QueuedRequest {
    let cost_ns = 8_000 + u64::from(length) * 400 / 1024;
    let (id, way) = (SlotId::from_u64(at), Way::Read);
    QueuedRequest { id, session: SessionSlot(session), class, way, length, cost_ns }
}

fn drain(waiting: &mut Waiting, nodes: &WaitingRequests, count: usize) -> Vec<(u32, Class)> {
    drain_among(waiting, nodes, Among::All, count)
}

fn drain_among(
    waiting: &mut Waiting,
    nodes: &WaitingRequests,
    among: Among,
    count: usize,
) -> Vec<(u32, Class)> {
    (0..count)
        .map_while(|_| {
            let next = waiting.peek(nodes, Class::Background, among)?;
            waiting.take(nodes, next.class, among);
            Some((next.id.index(), next.class))
        })
        .collect()
}

#[test]
fn sessions_share_device_time_not_requests_and_not_bytes() {
    let (mut nodes, mut waiting) = (WaitingRequests::new(600), Waiting::new());
    for at in 0..8 {
        waiting.push(&mut nodes, wanted(at, 1, Class::Demand, 1 << 20));
    }
    for at in 8..600 {
        waiting.push(&mut nodes, wanted(at, 5, Class::Demand, 4096));
    }
    // 417.6 us for a large one, 9.6 us for a small one: 43.5 small ones for each large one.
    let order = drain(&mut waiting, &nodes, 178);
    let large = order.iter().filter(|(index, _)| *index < 8).count();
    assert!((4..=5).contains(&large), "{large} large ones beside {} small ones", 178 - large);
    assert_eq!(drain(&mut waiting, &nodes, 600).len(), 600 - 178);
    assert_eq!(waiting.count(), 0);
}

#[test]
fn who_comes_anew_passes_a_backlog_that_was_peeked_at_but_not_more_than_its_share() {
    let (mut nodes, mut waiting) = (WaitingRequests::new(600), Waiting::new());
    for at in 0..100 {
        waiting.push(&mut nodes, wanted(at, 0, Class::Demand, 64 << 20));
    }
    drain(&mut waiting, &nodes, 1);
    // The next long one has been looked at, and had no room.
    assert_eq!(waiting.peek(&nodes, Class::Background, Among::All).unwrap().id.index(), 1);
    for at in 100..110 {
        waiting.push(&mut nodes, wanted(at, 1, Class::Demand, 4096));
        assert_eq!(drain(&mut waiting, &nodes, 1)[0].0, u32::try_from(at).unwrap());
    }
    // A second client with a backlog of its own does not pass for ever.
    for at in 110..114 {
        waiting.push(&mut nodes, wanted(at, 2, Class::Demand, 64 << 20));
    }
    let order: Vec<_> =
        drain(&mut waiting, &nodes, 4).into_iter().map(|(index, _)| index).collect();
    assert!(order.contains(&1) && order.contains(&2), "{order:?}");
}

#[test]
fn background_is_late_but_never_starved() {
    let (mut nodes, mut waiting) = (WaitingRequests::new(200), Waiting::new());
    let length = 64 << 10;
    for at in 0..100 {
        waiting.push(&mut nodes, wanted(at, 0, Class::Demand, length));
    }
    for at in 100..200 {
        waiting.push(&mut nodes, wanted(at, 0, Class::Background, length));
    }
    let order = drain(&mut waiting, &nodes, 68);
    let background = order.iter().filter(|(_, class)| *class == Class::Background).count();
    assert!((3..=4).contains(&background), "one in seventeen, seen {background} of 68");
    assert_eq!(order[0].1, Class::Demand);
    assert_eq!(drain(&mut waiting, &nodes, 200).len(), 132);
}

#[test]
fn reads_of_a_session_pass_its_writes_which_are_owed_a_sixteenth() {
    let (mut nodes, mut waiting) = (WaitingRequests::new(400), Waiting::new());
    let write = |at| QueuedRequest { way: Way::Write, ..wanted(at, 0, Class::Demand, 64 << 10) };
    (0..100).for_each(|at| waiting.push(&mut nodes, write(at)));
    (100..200).for_each(|at| {
        waiting.push(&mut nodes, wanted(at, 0, Class::Demand, 64 << 10));
    });
    let order = drain(&mut waiting, &nodes, 68);
    let writes = order.iter().filter(|(index, _)| *index < 100).count();
    assert!((3..=4).contains(&writes), "one in seventeen, seen {writes} of 68");
    assert!(order[0].0 >= 100);
    // Where writes have to wait, reads go on, and are all there is.
    let reads = drain_among(&mut waiting, &nodes, Among::Reads, 200);
    assert!(reads.len() == 100 - (68 - writes) && reads.iter().all(|(at, _)| *at >= 100));
    assert_eq!(waiting.count(), waiting.count_of(Way::Write));
    assert_eq!(drain(&mut waiting, &nodes, 200).len(), 100 - writes);
}

#[test]
fn sessions_share_the_time_whichever_way_their_bytes_go() {
    let (mut nodes, mut waiting) = (WaitingRequests::new(400), Waiting::new());
    for at in 0..200 {
        waiting.push(&mut nodes, wanted(at, 0, Class::Demand, 64 << 10));
    }
    for at in 200..300 {
        waiting.push(
            &mut nodes,
            QueuedRequest { way: Way::Write, ..wanted(at, 1, Class::Demand, 64 << 10) },
        );
    }
    // A session that reads and writes has no more than one that writes.
    for at in 300..400 {
        waiting.push(
            &mut nodes,
            QueuedRequest { way: Way::Write, ..wanted(at, 0, Class::Demand, 64 << 10) },
        );
    }
    let order = drain(&mut waiting, &nodes, 100);
    let second = order.iter().filter(|(at, _)| (200..300).contains(at)).count();
    assert!((49..=51).contains(&second), "{second} of 100");
}

#[test]
fn a_session_is_not_held_to_what_the_one_before_it_was_given() {
    let (mut nodes, mut waiting) = (WaitingRequests::new(400), Waiting::new());
    (0..200).for_each(|at| waiting.push(&mut nodes, wanted(at, 0, Class::Demand, 1 << 20)));
    drain(&mut waiting, &nodes, 200);
    waiting.seat(SessionSlot(0), TenantSlot(7));
    waiting.seat(SessionSlot(1), TenantSlot(7));
    for at in 200..400 {
        let session = u8::try_from(at % 2).unwrap();
        waiting.push(&mut nodes, wanted(at, session, Class::Demand, 1 << 20));
    }
    let order = drain(&mut waiting, &nodes, 100);
    let anew = order.iter().filter(|(at, _)| at % 2 == 0).count();
    assert!((49..=51).contains(&anew), "{anew} of 100");
}

#[test]
fn a_gone_session_is_swept() {
    let (mut nodes, mut waiting) = (WaitingRequests::new(8), Waiting::new());
    for at in 0..6_u64 {
        let session = u8::try_from(at % 2).unwrap();
        let class = Class::ALL[usize::try_from(at / 2).unwrap()];
        waiting.push(&mut nodes, wanted(at, session, class, 4096));
    }
    while waiting.take_of(&nodes, SessionSlot(1)).is_some() {}
    assert_eq!(waiting.count(), 3);
    assert!(drain(&mut waiting, &nodes, 8).iter().all(|(index, _)| index % 2 == 0));
}
