//! Slow requests to a store, traced.

use kvrail_device::SimOptions;
use kvrail_poller::{PollerCommand, TraceEvent, Traced, Tracer};
use kvrail_ring::slot::FLAG_DURABLE;
use kvrail_ring::{Opcode, Request, Status};
use kvrail_store::Key;

use super::rig::{Rig, block, config};

#[test]
fn a_request_to_a_store_says_its_key_and_what_it_waited_for() {
    let options = SimOptions { latency_ns: 1_000_000, ..SimOptions::default() };
    let mut rig = Rig::with(config(512, 120 << 20, 8 << 20), options);
    let mut client = rig.client(2);
    let (tracer, ring) = Tracer::new(1);
    assert!(rig.mailbox.send(PollerCommand::Trace(Box::new(tracer))).is_ok());
    rig.tick();
    let (key, bytes) = (Key::of(7, 7), block(7, 5000));
    let put = rig.put_request(&client, key, &bytes, (0, 0));
    let put = Request { flags: FLAG_DURABLE, ..put };
    assert_eq!(rig.ask_one(&mut client, put).status(), Status::Ok);
    assert_eq!(rig.get(&mut client, key, 8192).0.status(), Status::Ok);
    let (whole, bytes) = (Key::of(8, 8), block(8, 8192));
    assert_eq!(rig.put(&mut client, whole, &bytes).status(), Status::Ok);
    let before: Vec<_> = std::iter::from_fn(|| ring.next()).collect();
    assert_eq!(rig.get(&mut client, whole, 8192).0.status(), Status::Ok);
    let after: Vec<_> = std::iter::from_fn(|| ring.next()).collect();
    let of_block = |event: &TraceEvent| match event.what {
        Traced::Batch(work) => Some((work.opcode, work.session, work.count, work.bytes)),
        _ => None,
    };
    let read: Vec<_> = after.iter().filter_map(of_block).collect();
    assert_eq!(read, [(Opcode::Get, Some(client.session), 1, 8192)], "one read, no tail");
    let keyed = |event: TraceEvent| match event.what {
        Traced::Keyed(work, key) => Some((work, key, event.spent)),
        _ => None,
    };
    let events: Vec<_> = before.into_iter().filter_map(keyed).collect();
    let [(put, put_key, written), (get, get_key, read), _] = events[..] else {
        panic!("a put, a get and a put: {events:?}")
    };
    assert_eq!([put_key, get_key], [key, key]);
    assert_eq!([put.opcode, get.opcode], [Opcode::Put, Opcode::Get]);
    assert_eq!([put.session, get.session], [Some(client.session); 2]);
    assert_eq!([put.bytes, get.bytes], [5000, 5000], "of a get, those of the block");
    for spent in [written, read] {
        assert!((1_000_000..1_100_000).contains(&spent.device_ns), "{spent:?}");
        assert!(spent.lane_ns < 100_000 && spent.queue_ns < 100_000, "{spent:?}");
    }
    assert!(written.answer_ns >= 1_000_000, "its record is written before the answer: {written:?}");
    assert!(read.answer_ns < 100_000, "{read:?}");
}
