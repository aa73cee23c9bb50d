//! Requests that are not submitted: the reason names value and limit, the lease comes back.

use std::time::Duration;

use kvrail_ring::{Opcode, PollerIndex};

use super::rig::{LONG, Rig, geometry};
use crate::request::Request;
use crate::submit_error_kind::SubmitErrorKind;

#[test]
fn each_reason_names_what_is_wrong_and_gives_the_lease_back() {
    let mut rig = Rig::new(2, 4096, 2, 4);
    let other = Rig::new(2, 4096, 2, 4);
    let capacity = rig.volume.capacity();
    let volume = rig.volume.clone();
    let lease = |bytes: usize| rig.arena.lease(bytes).unwrap();
    let cases = [
        (Request::read(&volume, 100, lease(512)), "multiples"),
        (Request::read(&volume, 0, lease(100)), "multiples"),
        (Request::write(&volume, 0, lease(512)).length(0), "length is 0"),
        (Request::write(&volume, 0, lease(512)).length(1024), "the lease has 512"),
        (Request::read(&volume, capacity, lease(512)), "beyond"),
        (Request::read(&volume, u64::MAX - 511, lease(512)), "beyond"),
        (Request::read(&volume, 0, lease(512)).durable(), "durable means nothing for a read"),
        (Request::flush(&volume).checksum(), "checksum means nothing for a flush"),
        (Request::discard(&volume, 0, 0), "length is 0"),
        (Request::discard(&volume, 0, 5 * 4096), "more than 4 pieces"),
        (rig.client.nop_to(PollerIndex(2)), "poller 2 does not exist; there are 2"),
        (Request::read(&other.volume, 0, lease(512)), "volume belongs to another client"),
        (Request::read(&volume, 0, other.lease(512)), "lease belongs to another client"),
    ];
    for (request, words) in cases {
        let had = request.lease.is_some();
        let refused = rig.queue.submit(request).unwrap_err();
        let message = refused.to_string();
        assert!(message.contains(words), "{message:?} lacks {words:?}");
        assert_eq!(refused.into_lease().is_some(), had, "{message}");
    }
    assert!(rig.sidecar.take().is_empty(), "nothing reached the lanes");
    assert_eq!((rig.queue.outstanding(), rig.arena.leases()), (0, 0));
}

#[test]
fn a_lease_where_the_device_cannot_reach_is_refused() {
    let mut shape = geometry(1, 8192);
    shape.memory_alignment = 8192;
    // The rig's arena aligns at 4096, as an arena of other volumes would.
    let mut rig = Rig::spinning(shape, 1, 4, 0);
    let _first = rig.lease(4096);
    let second = rig.lease(4096);
    let refused = rig.queue.submit(Request::read(&rig.volume, 0, second)).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::BufferMisaligned { offset: 4096, alignment: 8192 });
}

#[test]
fn a_full_queue_gives_requests_back_until_there_is_room() {
    let mut rig = Rig::new(2, 4096, 2, 4);
    let mut tickets = Vec::new();
    let requests: Vec<_> = (0..6_u64)
        .map(|block| Request::write(&rig.volume, block * 4096, rig.arena.lease(4096).unwrap()))
        .collect();
    let mut requests = requests.into_iter();
    let refused = rig.queue.submit_all(&mut requests, &mut tickets).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::Full { outstanding: 4, capacity: 4 });
    assert_eq!((tickets.len(), requests.len()), (4, 1));
    assert_eq!(rig.sidecar.answer_all(), 4);
    let again = rig.queue.submit(refused.request).unwrap_err();
    assert!(matches!(again.reason, SubmitErrorKind::Full { .. }), "not polled yet");
    let mut done = Vec::new();
    assert_eq!(rig.queue.wait_for(4, &mut done, LONG).unwrap(), 4);
    rig.queue.submit(again.request).unwrap();
    assert_eq!(rig.queue.outstanding(), 1);
    let two = Request::read(&rig.volume, 0, rig.lease(4 * 4096));
    assert!(matches!(rig.queue.submit(two).unwrap_err().reason, SubmitErrorKind::Full { .. }));
}

#[test]
fn options_reach_the_slot() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    let request = Request::write(&rig.volume, 0, rig.lease(4096))
        .class(kvrail_ring::Class::Background)
        .durable()
        .length(512)
        .deadline(Duration::from_micros(5));
    rig.queue.submit(request).unwrap();
    let (_, slot) = rig.sidecar.take()[0];
    assert_eq!((slot.opcode, slot.class, slot.flags), (Opcode::Write as u8, 2, 0b001));
    assert_eq!((slot.length, slot.checksum, slot.deadline_ns), (512, 0, 5000));
    assert_eq!((slot.lap, slot.reserved_a, slot.reserved_b), (0, 0, 0));
}

#[test]
fn an_arena_adopts_leases_of_its_own_pool_alone() {
    let (rig, other) = (Rig::new(1, 4096, 1, 4), Rig::new(1, 4096, 1, 4));
    let lease = |rig: &Rig| rig.arena.pool().lease(512).unwrap();
    let adopted = rig.arena.adopt(lease(&rig)).unwrap();
    let mut queue = rig.queue;
    queue.submit(Request::read(&rig.volume, 0, adopted)).unwrap();
    let refused = rig.arena.adopt(lease(&other)).unwrap_err();
    assert!(matches!(refused, crate::error::ClientError::Memory(_)), "{refused}");
}
