//! A large region is attached in steps, and everybody else is served between them.

use std::sync::Arc;

use kvrail_device::BufferIndex;
use kvrail_memory::HeapBlock;
use kvrail_poller::{Notice, PollerCommand, TickOutcome};
use kvrail_ring::{RegionId, Request, Status};

use super::rig::{Client, Rig};

const ENTRIES: u32 = 100;

/// Sends for a region of many entries; returns its name and place.
fn begin(rig: &Rig, client: &Client) -> (RegionId, BufferIndex, Arc<HeapBlock>) {
    rig.own.shelf.borrow_mut().entries = ENTRIES;
    let (region, buffer) = (RegionId(17), BufferIndex(40));
    let memory = Arc::new(HeapBlock::new(4096));
    let session = client.session;
    rig.mailbox
        .send(PollerCommand::Attach { session, region, buffer, memory: memory.clone() })
        .unwrap();
    (region, buffer, memory)
}

#[test]
fn a_tick_attaches_one_entry_and_serves_the_others() {
    let mut rig = Rig::new(8);
    let (large, mut other) = (rig.client(0, 8), rig.client(1, 8));
    let (region, buffer, _memory) = begin(&rig, &large);
    rig.own.shelf.borrow_mut().prompt = true;
    for step in 1..ENTRIES {
        other.post(&[other.read(u64::from(step), 4096)]);
        assert_eq!(rig.poller.tick(), TickOutcome::Busy);
        assert_eq!(rig.own.shelf.borrow().attach_steps, step, "one entry a tick");
        let ends = other.collect();
        assert_eq!(ends.len(), 1, "served in the tick of step {step}");
        assert!(rig.notices().is_empty(), "not attached before the last step");
    }
    rig.settle();
    assert!(matches!(rig.notices()[..], [Notice::Attached(_, id, Ok(()))] if id == region));
    assert!(rig.own.shelf.borrow().attached.contains(&buffer));
}

#[test]
fn requests_may_not_name_a_region_that_is_attached_partly() {
    let mut rig = Rig::new(8);
    let mut large = rig.client(0, 8);
    let (region, _, _memory) = begin(&rig, &large);
    let early = Request { region: region.0, ..large.read(1, 4096) };
    rig.poller.tick();
    large.post(&[early]);
    rig.poller.tick();
    assert_eq!(large.collect()[0].status(), Status::Invalid);
    rig.settle();
    large.post(&[early]);
    rig.settle();
    assert_eq!(rig.own.shelf.borrow().held.len(), 1, "at the device, now that it is attached");
}

#[test]
fn a_client_that_dies_while_it_attaches_leaves_nothing() {
    let mut rig = Rig::new(8);
    let large = rig.client(0, 8);
    let (region, buffer, memory) = begin(&rig, &large);
    for _ in 0..ENTRIES / 2 {
        rig.poller.tick();
    }
    rig.carry_out(PollerCommand::CloseSession(large.session));
    let notices = rig.notices();
    let gone = |it: &Notice| matches!(it, Notice::Detached(_, id) if *id == region);
    assert!(notices.iter().any(gone), "{notices:?}");
    assert!(matches!(notices.last(), Some(Notice::SessionClosed(_))), "{notices:?}");
    assert!(!rig.own.shelf.borrow().attached.contains(&buffer));
    assert_eq!(Arc::strong_count(&memory), 1);
}

#[test]
fn a_small_region_does_not_wait_for_a_large_one() {
    let mut rig = Rig::new(8);
    let (large, small) = (rig.client(0, 8), rig.client(1, 8));
    let (region, ..) = begin(&rig, &large);
    rig.poller.tick();
    let (id, buffer) = (RegionId(18), BufferIndex(41));
    let memory = Arc::new(HeapBlock::new(4096));
    let command = PollerCommand::Attach { session: small.session, region: id, buffer, memory };
    // The device's steps are counted together here: the small one takes what is left of them.
    rig.own.shelf.borrow_mut().attach_steps = ENTRIES - 2;
    rig.mailbox.send(command).unwrap();
    for _ in 0..4 {
        rig.poller.tick();
    }
    let notices = rig.notices();
    assert!(
        matches!(notices[..], [Notice::Attached(_, first, Ok(()))] if first == id),
        "{notices:?}"
    );
    rig.settle();
    assert!(matches!(rig.notices()[..], [Notice::Attached(_, last, Ok(()))] if last == region));
}
