//! Slow requests are traced while somebody wants to know, and say where their time went.

use std::sync::Arc;

use kvrail_poller::{Notice, PollerCommand, TraceEvent, TraceRing, Traced, Tracer};
use kvrail_ring::{Opcode, Request, Status};

use super::rig::Rig;

const MS: u64 = 1_000_000;

/// Traces from now on.
fn trace(rig: &mut Rig, slow_ns: u64) -> Arc<TraceRing> {
    let (tracer, ring) = Tracer::new(slow_ns);
    rig.carry_out(PollerCommand::Trace(Box::new(tracer)));
    ring
}

fn events(ring: &TraceRing) -> Vec<TraceEvent> {
    std::iter::from_fn(|| ring.next()).collect()
}

/// The device ends its oldest operation after this time, while the poller turns.
fn finish_after(rig: &mut Rig, ns: u64) {
    for _ in 0..ns / MS {
        rig.clock.advance(MS);
        rig.poller.tick();
    }
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
}

#[test]
fn slow_requests_say_where_their_time_went_and_quick_ones_nothing() {
    let mut rig = Rig::new(1);
    let mut client = rig.client(3, 64);
    let ring = trace(&mut rig, 5 * MS);
    client.post(&[client.read(1, 4096)]);
    rig.settle();
    finish_after(&mut rig, 2 * MS);
    assert_eq!(events(&ring), [], "2 ms are not slow");

    client.post(&[client.read(2, 4096), client.read(3, 8192)]);
    rig.settle();
    finish_after(&mut rig, 7 * MS);
    finish_after(&mut rig, 2 * MS);
    let [first, second] = events(&ring)[..] else { panic!("two were slow") };
    let Traced::Batch(work) = first.what else { panic!("{first:?}") };
    assert_eq!((work.session, work.device, work.count), (Some(client.session), 0, 1));
    assert_eq!((work.opcode, work.bytes, work.status), (Opcode::Read, 4096, Status::Ok));
    let spent = first.spent;
    assert!(spent.device_ns >= 7 * MS && spent.queue_ns < MS && spent.lane_ns < MS, "{spent:?}");
    // The device has room for one.
    let spent = second.spent;
    assert!(spent.queue_ns >= 7 * MS && (2 * MS..4 * MS).contains(&spent.device_ns), "{spent:?}");
    assert_eq!(
        spent.total_ns(),
        spent.lane_ns + spent.queue_ns + spent.device_ns + spent.completion_ns
    );
}

#[test]
fn requests_that_end_together_are_one_event() {
    let mut rig = Rig::new(64);
    let mut client = rig.client(0, 64);
    let ring = trace(&mut rig, 5 * MS);
    client.post(&[client.read(1, 4096); 32]);
    rig.settle();
    for _ in 0..6 {
        rig.clock.advance(MS);
        rig.poller.tick();
    }
    for _ in 0..32 {
        rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    }
    rig.settle();
    let [event] = events(&ring)[..] else { panic!("one batch") };
    let Traced::Batch(work) = event.what else { panic!("{event:?}") };
    assert_eq!((work.count, work.bytes), (32, 32 * 4096));
}

#[test]
fn a_turn_that_takes_long_is_an_event_and_a_sleep_is_none() {
    let mut rig = Rig::new(8);
    let ring = trace(&mut rig, 5 * MS);
    rig.clock.advance(9 * MS);
    rig.settle();
    let [event] = events(&ring)[..] else { panic!("one turn") };
    assert_eq!(event.what, Traced::Turn);
    assert!(event.spent.completion_ns >= 9 * MS);
    rig.poller.sleep(20 * MS);
    rig.settle();
    assert_eq!(events(&ring), []);
}

#[test]
fn a_light_tracer_takes_the_place_of_a_full_one_and_keeps_its_own_threshold() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 64);
    let ring = trace(&mut rig, 0);
    client.post(&[
        client.read(1, 4096),
        Request { opcode: Opcode::Write as u8, ..client.read(2, 4096) },
    ]);
    rig.settle();
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
    assert_eq!(events(&ring).len(), 1, "everything is slow");
    let light = Tracer::light_ring(5 * MS);
    rig.carry_out(PollerCommand::Trace(Box::new(Tracer::light(Arc::clone(&light)))));
    let [Notice::Traced(before)] = &rig.notices()[..] else { panic!("it is given back") };
    assert!(!before.is_light());
    finish_after(&mut rig, 4 * MS);
    assert_eq!((events(&ring), ring.lost()), (Vec::new(), 0));
    assert_eq!(events(&light), [], "4 ms are not slow");
    client.post(&[client.read(3, 4096)]);
    rig.settle();
    finish_after(&mut rig, 7 * MS);
    let [event] = events(&light)[..] else { panic!("one was slow") };
    assert!(event.spent.device_ns >= 7 * MS, "{event:?}");
    light.set_slow(10 * MS);
    client.post(&[client.read(4, 4096)]);
    rig.settle();
    finish_after(&mut rig, 7 * MS);
    assert_eq!(events(&light), [], "from now on 7 ms are not slow");
}

#[test]
fn events_that_nobody_reads_are_counted() {
    let mut rig = Rig::new(8);
    let mut client = rig.client(0, 64);
    let ring = trace(&mut rig, 0);
    rig.own.shelf.borrow_mut().prompt = true;
    for _ in 0..5_000 {
        client.post(&[client.read(1, 512)]);
        rig.settle();
        client.collect();
    }
    let read = events(&ring).len() as u64;
    assert_eq!(read + ring.lost(), 5_000);
    assert!(ring.lost() > 0);
}
