//! Lookups: how long reads of what they find would take.

use kvrail_device::{Fault, Rule, SimOptions};
use kvrail_ring::{Completion, Opcode, Status, keys_slot};
use kvrail_store::Key;

use super::rig::{Asked, Client, HANDLE, Rig, block, config, keyed};

const MIB: u32 = 1 << 20;
const READ_NS: u64 = 400_000;
const BLOCKS: u64 = 30;

/// A drive that takes one read of 1 MiB after the other, and some blocks of that length.
fn rig() -> (Rig, Client) {
    let sizes = config(512, 120 << 20, 8 << 20);
    let options = SimOptions { latency_ns: READ_NS, ..SimOptions::default() };
    let mut rig = Rig::tight(sizes, options, 1);
    let mut client = rig.client(0);
    for number in 1..=BLOCKS {
        let put = rig.put(&mut client, Key::of(number, number), &block(number, MIB as usize));
        assert_eq!(put.status(), Status::Ok);
    }
    rig.pass(200_000_000); // pages are written
    (rig, client)
}

fn gets(client: &Client, numbers: std::ops::RangeInclusive<u64>) -> Vec<Asked<'static>> {
    let get = |number| {
        let at = (number * u64::from(MIB), 0);
        keyed(client, Key::of(number, number), (MIB, 0), at).slot(Opcode::Get)
    };
    numbers.map(|number| Asked { request: get(number), side: None }).collect()
}

fn look(rig: &mut Rig, client: &mut Client, lows: &[u64]) -> Completion {
    rig.ask_one(client, keys_slot(Opcode::Lookup, HANDLE, 0, lows))
}

/// Whether a time is within 30 % of what it should be.
fn is_near(ns: u64, should_ns: u64) -> bool {
    ns.abs_diff(should_ns) * 10 <= should_ns * 3
}

#[test]
fn a_lookup_returns_the_time_of_reads_of_what_it_finds() {
    let (mut rig, mut client) = rig();
    let first = look(&mut rig, &mut client, &[1, 2, 3]);
    assert_eq!(first.device_ns, 0, "nothing was read yet");
    for _ in 0..4 {
        let gets = gets(&client, 1..=BLOCKS);
        assert!(rig.ask(&mut client, &gets).iter().all(|end| end.status() == Status::Ok));
    }
    let idle = look(&mut rig, &mut client, &[1, 2, 3, 99, 4]);
    assert!(is_near(idle.device_ns.into(), 4 * READ_NS), "{idle:?}");
    assert_eq!(idle.queue_ns, 0, "nothing is ahead");
    let nothing = look(&mut rig, &mut client, &[98, 99]);
    assert_eq!(nothing.device_ns, 0, "nothing is there");

    // Twenty reads are ahead: the time until they and five more have ended.
    gets(&client, 1..=20).iter().for_each(|get| client.post(get));
    let lookup = keys_slot(Opcode::Lookup, HANDLE, 0, &[1, 2, 3, 4, 5]);
    client.post(&Asked { request: lookup, side: None });
    let answer = client.next - 1;
    gets(&client, 21..=25).iter().for_each(|get| client.post(get));
    let (mut ends, mut took_ns) = (Vec::new(), 0);
    rig.until(|_| {
        took_ns += 20_000;
        ends.extend(client.collect());
        ends.len() == 26
    });
    let busy = ends.iter().find(|end| end.user_data == answer).unwrap();
    let should_ns = u64::from(busy.device_ns) + u64::from(busy.queue_ns);
    assert!(is_near(should_ns, took_ns), "{busy:?} for {took_ns} ns");
    assert!(is_near(busy.queue_ns.into(), 20 * READ_NS), "{busy:?}");
}

#[test]
fn a_drive_that_is_silent_is_expected_to_stay_so() {
    let (mut rig, mut client) = rig();
    let gets = gets(&client, 1..=BLOCKS);
    rig.ask(&mut client, &gets);
    rig.own.sim.borrow_mut().plan().add(Rule::once(Fault::Hang).on(Opcode::Read));
    client.post(&gets[0]);
    for silent_ns in [50_000_000, 500_000_000] {
        rig.pass(silent_ns);
        let found = look(&mut rig, &mut client, &[1, 2, 3, 4, 5]);
        assert!(u64::from(found.queue_ns) >= silent_ns, "{found:?}");
    }
    let sim = rig.own.sim.borrow().control();
    sim.release();
    rig.until(|_| !client.collect().is_empty());
    let found = look(&mut rig, &mut client, &[1, 2, 3, 4, 5]);
    assert_eq!(found.queue_ns, 0, "it is back");
}

/// The store flushes behind a put, long after the drive's last read.
#[test]
fn a_flush_is_no_silence() {
    let (mut rig, mut client) = rig();
    let gets = gets(&client, 1..=BLOCKS);
    rig.ask(&mut client, &gets);
    rig.pass(1_000_000_000);
    rig.own.sim.borrow_mut().plan().add(Rule::once(Fault::Hang).on(Opcode::Flush));
    rig.put(&mut client, Key::of(99, 99), &block(99, MIB as usize));
    let sim = rig.own.sim.borrow().control();
    rig.until(|_| sim.hung() > 0);
    rig.pass(100_000_000);
    let found = look(&mut rig, &mut client, &[1, 2, 3]);
    assert!(found.queue_ns < 1_000_000, "{found:?}");
    sim.release();
}

#[test]
fn writes_of_a_drive_that_writes_slowly_do_not_count() {
    let (mut rig, mut client) = rig();
    for round in 1..4 {
        let gets = gets(&client, 1..=BLOCKS);
        rig.ask(&mut client, &gets);
        let slow = Fault::Delay { ns: 8 * READ_NS };
        rig.own.sim.borrow_mut().plan().add(Rule::always(slow).on(Opcode::Write));
        for number in round * 100..round * 100 + 12 {
            rig.put(&mut client, Key::of(number, number), &block(number, MIB as usize));
        }
    }
    let found = look(&mut rig, &mut client, &[1, 2, 3, 4, 5]);
    assert!(is_near(found.device_ns.into(), 5 * READ_NS), "{found:?}");
}
