//! How requests end when the sidecar dies, lies, or is late.

use std::collections::HashMap;
use std::time::Duration;

use kvrail_memory::store;
use kvrail_protocol::{Hardware, SidecarMessage};
use kvrail_ring::slot::FLAG_NOTICE;
use kvrail_ring::{Completion, Status};
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use super::blocks::{self, goes_on, key};
use super::rig::{ARENA_BYTES, LONG, Rig};
use crate::block_request::BlockRequest;
use crate::error::ClientError;
use crate::lookup::Lookup;
use crate::request::Request;
use crate::submit_error_kind::SubmitErrorKind;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The sidecar is killed with some requests unseen, some taken, some completed: every ticket
    /// ends once, what was completed keeps its status, and memory that hardware may still write
    /// does not come back.
    #[test]
    fn a_killed_sidecar_ends_every_request_once(
        requests in proptest::collection::vec((any::<bool>(), 0_u64..20, 1_u64..6), 1..20),
        fates in proptest::collection::vec(0_u8..3, 100),
        asleep in any::<bool>(),
    ) {
        let mut rig = Rig::new(2, 1024, 2, 64);
        let mut expected = HashMap::new();
        for (write, from, count) in requests {
            let lease = rig.lease(usize::try_from(count * 512).unwrap());
            let request = if write {
                Request::write(&rig.volume, from * 512, lease)
            } else {
                Request::read(&rig.volume, from * 512, lease)
            };
            if let Ok(ticket) = rig.queue.submit(request) {
                expected.insert(ticket, (write, count * 512));
            }
        }
        let taken = rig.sidecar.take();
        for (request, fate) in taken.into_iter().zip(fates) {
            if fate > 0 {
                rig.sidecar.answer(request, Status::Ok);
            }
        }
        rig.sidecar.die();
        let mut done = Vec::new();
        if asleep {
            let count = expected.len();
            prop_assert_eq!(rig.queue.wait_for(count, &mut done, LONG).unwrap(), count);
        } else {
            while !expected.is_empty() && done.len() < expected.len() {
                rig.queue.poll(&mut done);
            }
        }
        let mut fenced = 0;
        for end in done.drain(..) {
            let (write, bytes) = expected.remove(&end.ticket).expect("ended twice");
            match end.status {
                Status::Ok => prop_assert!(end.lease.is_some() && end.bytes == bytes),
                Status::Restarted if write => prop_assert!(end.lease.is_some()),
                Status::Restarted => {
                    prop_assert!(end.lease.is_none(), "hardware may still write it");
                    fenced += bytes;
                }
                other => prop_assert!(false, "{other}"),
            }
        }
        prop_assert!(expected.is_empty(), "lost: {expected:?}");
        prop_assert_eq!(rig.queue.poll(&mut done), 0);
        prop_assert_eq!(rig.client.quarantined_bytes(), fenced);
    }
}

/// A program that looks for ends once a second has few polls to notice it with.
#[test]
fn a_killed_sidecar_is_noticed_by_the_first_poll_that_is_late() {
    let mut rig = Rig::new(1, 1024, 1, 64);
    let lease = rig.lease(512);
    let ticket = rig.queue.submit(Request::read(&rig.volume, 0, lease)).unwrap();
    rig.sidecar.die();
    std::thread::sleep(Duration::from_millis(150)); // longer than `LOOK_EVERY`
    let mut done = Vec::new();
    assert_eq!(rig.queue.poll(&mut done), 1);
    assert_eq!((done[0].ticket, done[0].status), (ticket, Status::Restarted));
}

#[test]
fn after_the_end_requests_are_refused_with_their_lease() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    let lease = rig.lease(4096);
    rig.queue.submit(Request::write(&rig.volume, 0, lease)).unwrap();
    rig.sidecar.die();
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!(done.status, Status::Restarted);
    let refused = rig.queue.submit(Request::write(&rig.volume, 0, done.lease.unwrap()));
    let refused = refused.unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::SidecarGone);
    assert!(refused.into_lease().is_some());
    assert!(rig.queue.wait(LONG).unwrap().is_none(), "nothing to wait for");
    assert!(matches!(rig.client.status(), Err(ClientError::SidecarGone { .. })));
    assert!(rig.client.ended().unwrap().contains("killed"));
}

#[test]
fn an_orderly_end_gives_all_memory_back() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    let lease = rig.lease(4096);
    rig.queue.submit(Request::read(&rig.volume, 0, lease)).unwrap();
    let closing = SidecarMessage::Closing { reason: "bye".into(), hardware: Hardware::Settled };
    rig.sidecar.socket.as_ref().unwrap().send(&closing, &[]).unwrap();
    rig.sidecar.die();
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((done.status, done.lease.is_some()), (Status::Draining, true), "never accepted");
    assert_eq!(rig.client.ended(), Some("bye"));
    assert_eq!(rig.client.quarantined_bytes(), 0);
}

fn late(user_data: u64) -> Completion {
    Completion {
        user_data,
        status: Status::Late.number(),
        flags: FLAG_NOTICE,
        ..Completion::default()
    }
}

#[test]
fn a_late_notice_comes_once_and_is_no_end() {
    let mut rig = Rig::new(2, 4096, 2, 8);
    let lease = rig.lease(8192);
    let request = Request::read(&rig.volume, 0, lease).deadline(Duration::from_millis(1)).tag(4);
    let ticket = rig.queue.submit(request).unwrap();
    let pieces = rig.sidecar.take();
    assert_eq!(pieces.len(), 2);
    for (lane, slot) in &pieces {
        assert_eq!(slot.deadline_ns, 1_000_000);
        rig.sidecar.notify(*lane, late(slot.user_data));
    }
    let notice = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((notice.ticket, notice.tag), (ticket, 4));
    assert!(notice.is_notice() && notice.lease.is_none());
    assert!(rig.queue.wait(Duration::from_millis(5)).unwrap().is_none(), "one notice");
    assert_eq!(rig.queue.outstanding(), 2);
    pieces.into_iter().for_each(|piece| rig.sidecar.answer(piece, Status::Ok));
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((done.ticket, done.status, done.bytes), (ticket, Status::Ok, 8192));
    assert!(done.lease.is_some());
}

#[test]
fn a_completion_of_nothing_is_reported_and_loses_nothing() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    let lease = rig.lease(4096);
    rig.queue.submit(Request::read(&rig.volume, 0, lease)).unwrap();
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    let [read, nop] = rig.sidecar.take()[..] else { panic!("two requests") };
    for wrong in [1 << 32, 77, u64::MAX] {
        let user_data = nop.1.user_data ^ wrong;
        // The same slot with another generation, another slot, no slot at all.
        rig.sidecar.notify(0, late(user_data));
        let error = rig.queue.wait(LONG).unwrap_err();
        assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
        assert!(error.to_string().contains(&format!("{user_data:#x}")), "{error}");
    }
    assert!(rig.queue.is_broken());
    let lease = rig.lease(512);
    let refused = rig.queue.submit(Request::read(&rig.volume, 0, lease)).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::Broken);
    rig.sidecar.answer(read, Status::Ok);
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert!(done.status == Status::Ok && done.lease.is_some());
}

#[test]
fn a_completion_in_the_wrong_lane_or_posted_twice_is_not_believed() {
    let mut rig = Rig::new(2, 4096, 2, 4);
    let lease = rig.lease(8192);
    rig.queue.submit(Request::read(&rig.volume, 0, lease)).unwrap();
    let [first, second] = rig.sidecar.take()[..] else { panic!("two pieces") };
    rig.sidecar.answer((1, first.1), Status::Ok);
    assert!(matches!(rig.queue.wait(LONG), Err(ClientError::Protocol { .. })));
    rig.sidecar.answer(first, Status::Ok);
    assert!(rig.queue.wait(Duration::ZERO).unwrap().is_none());
    assert_eq!(rig.queue.outstanding(), 1, "the second piece is still in flight");
    assert_eq!(second.0, 1);
}

#[test]
fn ok_with_too_few_bytes_is_not_ok() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    let lease = rig.lease(4096);
    rig.queue.submit(Request::read(&rig.volume, 0, lease)).unwrap();
    let (lane, slot) = rig.sidecar.take()[0];
    let short = Completion { user_data: slot.user_data, bytes: 512, ..Completion::default() };
    rig.sidecar.complete(lane, short);
    let done = rig.queue.wait(LONG).unwrap().unwrap();
    assert_eq!((done.status, done.bytes, done.lease.is_some()), (Status::Internal, 512, true));
    assert_eq!(rig.queue.outstanding(), 0);
    assert!(matches!(rig.queue.wait(LONG), Err(ClientError::Protocol { .. })));
}

#[test]
fn an_impossible_lap_ends_everything_and_keeps_the_memory() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    for write in [true, false] {
        let lease = rig.lease(4096);
        let request = if write {
            Request::write(&rig.volume, 0, lease)
        } else {
            Request::read(&rig.volume, 0, lease)
        };
        rig.queue.submit(request).unwrap();
    }
    // The lap of the first completion, behind the request slots of a lane of four.
    let lap_at = 4096 + 384 + 4 * 64 + 11;
    store(rig.sidecar.segment.as_ref(), lap_at, &[77]);
    let mut done = Vec::new();
    assert_eq!(rig.queue.poll(&mut done), 2);
    assert!(done.iter().all(|done| done.status == Status::Internal), "{done:?}");
    assert_eq!(done.iter().filter(|done| done.lease.is_some()).count(), 1);
    assert_eq!(rig.client.quarantined_bytes(), 4096);
    assert!(matches!(rig.queue.wait(LONG), Err(ClientError::Protocol { .. })));
    assert!(rig.queue.wait(LONG).unwrap().is_none());
}

/// A queue with all of its slots behind it, whose sidecar claims to have taken more than that.
fn with_an_impossible_request_lane() -> Rig {
    let mut rig = Rig::with_store(1, 4, ARENA_BYTES);
    for _ in 0..4 {
        rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    }
    assert_eq!(rig.sidecar.answer_all(), 4);
    let mut done = Vec::new();
    assert_eq!(rig.queue.poll(&mut done), 4);
    store(rig.sidecar.segment.as_ref(), 4096, &1000_u32.to_le_bytes()); // its request head
    rig
}

#[test]
fn every_request_for_an_impossible_lane_is_refused() {
    let mut rig = with_an_impossible_request_lane();
    let refused = rig.queue.submit(Request::nop(&rig.volume)).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::Broken);
    let mut rig = with_an_impossible_request_lane();
    let get = BlockRequest::get(&rig.space(3), key(), rig.lease(4096));
    let refused = rig.queue.submit(get).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::Broken);
    assert!(refused.into_lease().is_some());
    let mut rig = with_an_impossible_request_lane();
    let how = Lookup { timeout: LONG, ..Lookup::default() };
    let error = rig.queue.lookup(&rig.space(3), &[key()], &how).unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
    assert!(rig.queue.is_broken());
}

/// Its memory is the program's again, which may have other bytes there by then.
#[test]
fn what_has_ended_before_it_was_published_is_not_published_afterwards() {
    let mut rig = Rig::new(2, 4096, 2, 4);
    for _ in 0..4 {
        rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    }
    assert_eq!(rig.sidecar.answer_all(), 4);
    let mut done = Vec::new();
    assert_eq!(rig.queue.poll(&mut done), 4);
    let lease = rig.lease(4096);
    let staged = rig.queue.stage(Request::write(&rig.volume, 4096, lease)).unwrap();
    store(rig.sidecar.segment.as_ref(), 4096, &1000_u32.to_le_bytes()); // the other lane's head
    let refused = rig.queue.submit(Request::nop(&rig.volume)).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::Broken);
    done.clear();
    assert_eq!(rig.queue.poll(&mut done), 1);
    assert_eq!((done[0].ticket, done[0].status), (staged, Status::Internal));
    assert!(done[0].lease.is_some(), "nobody has seen it");
    rig.queue.publish();
    assert!(rig.sidecar.take().is_empty());
}

#[test]
fn a_block_goes_on_only_by_its_present_request() {
    let mut rig = blocks::rig();
    let get = BlockRequest::get(&rig.space(3), key(), rig.lease(4096));
    rig.queue.submit(get).unwrap();
    let first = blocks::taken(&mut rig);
    rig.queue.submit(Request::nop(&rig.volume)).unwrap();
    let _another = blocks::taken(&mut rig);
    let wrong = blocks::end(&first, Status::Ok, 4096);
    rig.sidecar.complete(0, Completion { checksum: 1, ..wrong });
    let second = goes_on(&mut rig);
    assert_ne!(second.user_data, first.user_data, "each slot has a name of its own");
    rig.sidecar.complete(0, Completion { checksum: 1, ..wrong });
    let error = rig.queue.wait(LONG).unwrap_err();
    assert!(matches!(error, ClientError::Protocol { .. }), "{error}");
    assert_eq!(rig.queue.outstanding(), 2, "the second reading is still in flight");
    rig.sidecar.complete(0, blocks::end(&second, Status::Miss, 0));
    assert_eq!(blocks::ended(&mut rig).status, Status::Miss);
}

#[test]
fn a_dropped_queue_waits_and_then_keeps_the_memory_from_reuse() {
    let mut rig = Rig::new(1, 4096, 1, 4);
    for block in 0..2 {
        let lease = rig.lease(4096);
        rig.queue.submit(Request::write(&rig.volume, block * 4096, lease)).unwrap();
    }
    let first = rig.sidecar.take()[0];
    rig.sidecar.answer(first, Status::Ok);
    drop(rig.queue);
    assert_eq!(rig.client.quarantined_bytes(), 4096, "one of two was still in flight");
    assert_eq!(rig.arena.leases(), 1);
}
