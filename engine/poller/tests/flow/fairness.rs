//! Fair shares of the device's time: no session and no class keeps another one out.

use kvrail_poller::InFlightBytes;
use kvrail_ring::{Class, Opcode, Request, Status};

use super::rig::{Client, Rig};

/// Nanoseconds that an operation takes, and each MiB of it.
const OPERATION_NS: u64 = 7_500;
const MIB_NS: u64 = 500_000;

fn device_ns(length: u64) -> u64 {
    OPERATION_NS + ((length * MIB_NS) >> 20)
}

/// The device works on its oldest operation and ends it; and the tick after it.
fn finish_one(rig: &mut Rig) {
    let length = rig.own.shelf.borrow().held[0].length;
    rig.clock.advance(device_ns(length.into()));
    rig.own.shelf.borrow_mut().finish(0, Status::Ok);
    rig.settle();
}

/// Lets the device end operations one by one, `rounds` of them, while every client posts anew
/// what was completed; returns the bytes each client got.
fn share(rig: &mut Rig, clients: &mut [(Client, Request)], rounds: u32) -> Vec<u64> {
    for (client, request) in &mut *clients {
        let free = client.lane.free(u32::MAX).unwrap();
        client.post(&vec![*request; free as usize]);
    }
    rig.settle();
    let mut bytes = vec![0; clients.len()];
    for _ in 0..rounds {
        finish_one(rig);
        for ((client, request), bytes) in clients.iter_mut().zip(&mut bytes) {
            let done = client.collect();
            *bytes += done.iter().map(|done| u64::from(done.bytes)).sum::<u64>();
            let free = client.lane.free(u32::MAX).unwrap();
            client.post(&vec![*request; (free as usize).min(done.len())]);
        }
    }
    bytes
}

#[test]
fn sessions_share_the_device_s_time_whatever_their_block_sizes_are() {
    let cases = [(4096, 1 << 20), (4096, 64 << 10), (512 << 10, 1 << 20), (64 << 10, 64 << 10)];
    for (small, large) in cases {
        let mut rig = Rig::new(8);
        let (one, two) = (rig.client(0, 256), rig.client(1, 256));
        let reads = (one.read(1, small), two.read(2, large));
        let each = 32 << 20;
        let bytes =
            share(&mut rig, &mut [(one, reads.0), (two, reads.1)], each / small + each / large);
        let time = |bytes: u64, length: u32| bytes / u64::from(length) * device_ns(length.into());
        let times = [time(bytes[0], small), time(bytes[1], large)];
        // What stands at the device, and a tenth because the tests' ticks take time too.
        let most = 8 * device_ns(large.into()) + times[0].max(times[1]) / 10;
        let apart = times[0].abs_diff(times[1]);
        assert!(apart <= most, "{small} and {large}: {times:?} are further apart than {most}");
    }
}

/// Who opens more sessions gets no more, and its sessions share what it gets.
#[test]
fn tenants_share_the_device_s_time_however_many_sessions_they_have() {
    for opcode in [Opcode::Read as u8, Opcode::Write as u8] {
        let mut rig = Rig::new(8);
        let seats = (0..8).map(|session| (5, session)).chain([(3, 8)]);
        let asking = |(tenant, session)| {
            let client = rig.client_of(tenant, session, 64);
            let request = Request { opcode, ..client.read(1, 64 << 10) };
            (client, request)
        };
        let mut clients: Vec<_> = seats.map(asking).collect();
        let bytes = share(&mut rig, &mut clients, 1600);
        let operations: Vec<_> = bytes.iter().map(|bytes| bytes >> 16).collect();
        let (many, one) = operations.split_at(8);
        assert!((780..=820).contains(&one[0]), "{one:?} of 1,600 are the other tenant's");
        assert!(many.iter().all(|it| (90..=110).contains(it)), "{many:?} are the sessions'");
    }
}

/// What the device holds is never more than the limit that is shown, which follows the device; a
/// limit that fell waits for what is held already.
#[test]
fn what_is_in_flight_stays_within_a_limit_that_follows_the_device() {
    let mut rig = Rig::with_bytes(256, InFlightBytes::Followed);
    let (mut one, mut two) = (rig.client(0, 256), rig.client(1, 256));
    let (large, small) = (one.read(1, 1 << 20), two.read(2, 4096));
    one.post(&[large; 256]);
    two.post(&[small]);
    rig.settle();
    let limit = |rig: &Rig| rig.stats.devices[0].counters.in_flight_bytes.get();
    let mut before = limit(&rig);
    for (mib_ns, expected) in [(100_000, 20 << 20), (250_000, 8 << 20), (2_000_000, 4 << 20)] {
        for _ in 0..6000 {
            let length = rig.own.shelf.borrow().held[0].length;
            rig.clock.advance(4_000 + ((u64::from(length) * mib_ns) >> 20));
            rig.own.shelf.borrow_mut().finish(0, Status::Ok);
            rig.settle();
            for (client, request) in [(&mut one, large), (&mut two, small)] {
                let done = client.collect().len();
                client.post(&vec![request; done]);
            }
            rig.settle();
            let held: u64 = rig.own.shelf.borrow().held.iter().map(|it| u64::from(it.length)).sum();
            let allowed = before.max(limit(&rig));
            assert!(held <= allowed, "{held} in flight, {allowed} allowed");
            before = if held <= limit(&rig) { limit(&rig) } else { allowed };
        }
        let now = limit(&rig) as f64 / f64::from(expected);
        assert!((0.8..1.25).contains(&now), "{} for {expected}", limit(&rig));
    }
}

/// One session alone may give the device twice as much; when another waits beside it, no longer.
#[test]
fn a_session_alone_gives_the_device_more() {
    let mut rig = Rig::with_bytes(256, InFlightBytes::Followed);
    let (mut one, mut two) = (rig.client(0, 256), rig.client(1, 8));
    let (large, small) = (one.read(1, 1 << 20), two.read(2, 4096));
    one.post(&[large; 64]);
    rig.settle();
    // The limit in MiB after so many reads of 0.25 ms each.
    let limit_after = |rig: &mut Rig, one: &mut Client, reads: u32| {
        for _ in 0..reads {
            rig.clock.advance(250_000);
            rig.own.shelf.borrow_mut().finish(0, Status::Ok);
            rig.settle();
            let done = one.collect().len();
            one.post(&vec![large; done]);
            rig.settle();
        }
        rig.stats.devices[0].counters.in_flight_bytes.get() >> 20
    };
    let alone = limit_after(&mut rig, &mut one, 3000);
    assert!((13..=19).contains(&alone), "{alone} MiB alone");
    two.post(&[small]);
    rig.settle();
    let shared = limit_after(&mut rig, &mut one, 100);
    assert!((6..=10).contains(&shared), "{shared} MiB beside another");
    let again = limit_after(&mut rig, &mut one, 1000);
    assert!((13..=19).contains(&again), "{again} MiB when it is alone again");
}

/// Operations that end before the victim's one read does, behind this flood of a hog's.
fn operations_before_the_victim(flood: impl Fn(&Client) -> Request) -> u32 {
    let mut rig = Rig::new(8);
    let (mut hog, mut victim) = (rig.client(0, 4096), rig.client(1, 8));
    hog.post(&vec![flood(&hog); 4096]);
    rig.settle();
    victim.post(&[victim.read(77, 4096)]);
    rig.settle();
    for ended in 1..10_000 {
        finish_one(&mut rig);
        let done = hog.collect().len();
        hog.post(&vec![flood(&hog); done]);
        if !victim.collect().is_empty() {
            return ended;
        }
    }
    panic!("the victim was never served");
}

#[test]
fn a_hog_delays_another_session_by_one_round_and_what_is_at_the_device() {
    let discard = Opcode::Discard as u8;
    let flush = Request { opcode: Opcode::Flush as u8, ..Request::default() };
    // Each kind with the operations that make a round's credit of 1 MiB; none counts as less
    // than 4 KiB.
    type Flood = Box<dyn Fn(&Client) -> Request>;
    let floods: [(&str, Flood, u32); 5] = [
        ("4 KiB", Box::new(|hog: &Client| hog.read(1, 4096)), 256),
        ("512 bytes", Box::new(|hog: &Client| hog.read(1, 512)), 256),
        ("1 MiB", Box::new(|hog: &Client| hog.read(1, 1 << 20)), 1),
        ("discards", Box::new(move |hog| Request { opcode: discard, ..hog.read(1, 4096) }), 256),
        ("flushes", Box::new(move |_| flush), 256),
    ];
    for (name, flood, round) in floods {
        let ended = operations_before_the_victim(flood);
        assert!(ended <= round + 8 + 1, "{name}: {ended} operations before the victim's");
    }
}

#[test]
fn background_has_its_share_beside_demand_that_never_ends() {
    for depth in [1, 4, 32] {
        let mut rig = Rig::new(depth);
        let (eager, patient) = (rig.client(0, 64), rig.client(1, 64));
        let demand = eager.read(1, 64 << 10);
        let class = Class::Background as u8;
        let background =
            Request { class, opcode: Opcode::Write as u8, ..patient.read(2, 64 << 10) };
        let bytes = share(&mut rig, &mut [(eager, demand), (patient, background)], 3400);
        let operations = bytes[1] >> 16;
        // One in seventeen of 3,400 is 200.
        assert!((180..=232).contains(&operations), "depth {depth}: {operations} of 3,400");
    }
}

#[test]
fn a_large_background_write_is_not_passed_forever_by_small_reads() {
    let mut rig = Rig::with_budget(8, 1 << 20);
    let (eager, patient) = (rig.client(0, 64), rig.client(1, 2));
    let demand = eager.read(1, 64 << 10);
    let class = Class::Background as u8;
    let background = Request { class, opcode: Opcode::Write as u8, ..patient.read(2, 4 << 20) };
    let bytes = share(&mut rig, &mut [(eager, demand), (patient, background)], 3400);
    assert!(bytes[1] >= 2 * (4 << 20), "{bytes:?}");
}
