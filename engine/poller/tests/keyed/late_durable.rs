//! Durable puts of keys whose blocks are in memory alone: those are written first.

use kvrail_device::{Clock, Fault, Rule, SimOptions};
use kvrail_poller::{OperationKind, TenantSlot};
use kvrail_ring::slot::{FLAG_DURABLE, FLAG_PRESENT};
use kvrail_ring::{Class, Completion, Opcode, Request, Side, Status};
use kvrail_store::Key;

use super::rig::{Asked, Client, Rig, block, config, keyed};

const MIB: u64 = 1 << 20;
const USER: TenantSlot = TenantSlot(0);

fn rig() -> Rig {
    Rig::late(config(4096, 120 * MIB, 8 * MIB), SimOptions::default(), 16 << 20)
}

fn key(number: u64) -> Key {
    Key::of(number, number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn plan(rig: &Rig, rule: Rule) {
    rig.own.sim.borrow_mut().plan().add(rule.on(Opcode::Write));
}

/// Late blocks of these numbers.
fn put_late(rig: &mut Rig, client: &mut Client, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert_eq!(rig.put(client, key(number), &block(number, 8192)).status(), Status::Ok);
    }
}

/// Asks for durable puts of these blocks, with other bytes and with metadata.
fn post_durable(rig: &Rig, client: &mut Client, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let request = rig.put_request(client, key(number), &block(number + 1000, 8192), (0, 0));
        let request = Request { flags: FLAG_DURABLE, ..request };
        let metadata = &number.to_le_bytes();
        let side = Some(Side { block_bytes: 8192, metadata, ..Side::default() });
        client.post(&Asked { request, side });
    }
}

fn all_present(ends: &[Completion]) {
    assert!(ends.iter().all(|end| (end.status(), end.flags) == (Status::Ok, FLAG_PRESENT)));
}

/// The write that a put waits for takes its time: other requests of its session and of its user do
/// not wait with it.
#[test]
fn a_durable_put_of_a_late_block_holds_no_other_request_back() {
    let mut rig = rig();
    let mut client = rig.client_of(0, USER);
    let mut other = rig.client_of(1, USER);
    put_late(&mut rig, &mut client, 0..2);
    let control = rig.own.sim.borrow().control();
    plan(&rig, Rule::once(Fault::Hang));
    post_durable(&rig, &mut client, 0..1);
    rig.until(|_| control.hung() == 1);
    let get = keyed(&client, key(77), (8192, 0), (0, 0)).slot(Opcode::Get);
    client.post(&Asked { request: get, side: None });
    let mut ends = Vec::new();
    rig.pass(5_000_000);
    ends.extend(client.collect());
    assert_eq!(ends.iter().map(Completion::status).collect::<Vec<_>>(), [Status::Miss]);
    assert_eq!(rig.put(&mut other, key(50), &block(50, 8192)).status(), Status::Ok);
    post_durable(&rig, &mut other, 60..61);
    rig.until(|_| other.collect().iter().any(|end| end.status() == Status::Ok));
    assert!(client.collect().is_empty(), "its block is not written yet");
    control.release();
    ends.clear();
    rig.until(|_| {
        ends.extend(client.collect());
        !ends.is_empty()
    });
    all_present(&ends);
    let stats = &rig.stats.devices[0];
    let written = |class| stats.latencies(OperationKind::Write, class).device.counted().count();
    assert!(written(Class::Demand) > 0 && written(Class::Background) == 0, "a client waits");
    assert_eq!(rig.get(&mut client, key(0), 8192).1, block(0, 8192), "the first one stays");
}

/// Blocks that a batch waits for are written together, not one after the other.
#[test]
fn a_batch_of_durable_puts_of_late_blocks_is_written_together() {
    const BLOCKS: u64 = 24;
    const WRITE_NS: u64 = 60_000_000;
    let mut rig = rig();
    let mut client = rig.client_of(0, USER);
    put_late(&mut rig, &mut client, 0..BLOCKS);
    plan(&rig, Rule::always(Fault::Delay { ns: WRITE_NS }));
    post_durable(&rig, &mut client, 0..BLOCKS);
    let (mut ends, begin_ns) = (Vec::new(), rig.clock.now_ns());
    rig.until(|_| {
        ends.extend(client.collect());
        ends.len() as u64 == BLOCKS
    });
    let took_ns = rig.clock.now_ns() - begin_ns;
    assert!(took_ns < WRITE_NS * BLOCKS / 2, "{took_ns} ns, {WRITE_NS} for a write");
    all_present(&ends);
}

/// More of them than have a place where they hold nothing back.
#[test]
fn many_durable_puts_of_late_blocks_are_all_answered() {
    let mut rig = rig();
    let mut clients: Vec<_> = (0..4).map(|session| rig.client_of(session, USER)).collect();
    put_late(&mut rig, &mut clients[0], 0..120);
    for (from, client) in (0..120).step_by(30).zip(&mut clients) {
        post_durable(&rig, client, from..from + 30);
    }
    let mut ends = Vec::new();
    rig.until(|_| {
        ends.extend(clients.iter_mut().flat_map(Client::collect));
        ends.len() == 120
    });
    all_present(&ends);
}

/// The block that is there goes meanwhile: the put is one of its own bytes and metadata then.
#[test]
fn a_put_that_waits_for_a_block_that_goes_is_written_itself() {
    let mut rig = rig();
    let mut client = rig.client_of(0, USER);
    put_late(&mut rig, &mut client, 0..1);
    plan(&rig, Rule::once(Fault::Error(Status::IoError)));
    post_durable(&rig, &mut client, 0..1);
    let mut ends = Vec::new();
    rig.until(|_| {
        ends.extend(client.collect());
        !ends.is_empty()
    });
    assert_eq!((ends[0].status(), ends[0].flags), (Status::Ok, 0));
    assert_eq!(rig.get(&mut client, key(0), 8192).1, block(1000, 8192));
}
