//! Blocks that come into the memory tier, beside the gets of clients.

use kvrail_device::{Device, SimOptions};
use kvrail_ring::slot::{FLAG_DURABLE, FLAG_FETCH};
use kvrail_ring::{Opcode, Request, Status, keys_slot};
use kvrail_store::Key;

use super::rig::{Asked, Client, HANDLE, Rig, block, config, keyed};

/// A block comes in by a further read. While gets are being read one is under way, then several.
#[test]
fn reads_into_memory_leave_the_device_to_gets() {
    const BLOCKS: u64 = 24;
    let options = SimOptions { latency_ns: 2_000_000, ..SimOptions::default() };
    let mut rig = Rig::late(config(4096, 120 << 20, 8 << 20), options, 16 << 20);
    let mut client = rig.client(0);
    let key = |number: u64| Key::of(3, number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for number in 0..BLOCKS {
        let put = rig.put_request(&client, key(number), &block(number, 65_536), (0, 0));
        let durable = Request { flags: FLAG_DURABLE, ..put };
        assert_eq!(rig.ask_one(&mut client, durable).status(), Status::Ok);
        assert_eq!(rig.get(&mut client, key(number), 65_536).0.status(), Status::Ok);
    }
    rig.pass(200_000_000); // pages of records are written
    for number in 0..BLOCKS {
        let request = keyed(&client, key(number), (65_536, 0), (number << 16, 0)).slot(Opcode::Get);
        client.post(&Asked { request, side: None });
    }
    let (mut beside, mut alone, mut ended) = (0, 0, 0);
    for _ in 0..5_000 {
        rig.tick();
        ended += client.collect().len() as u64;
        let in_flight = u64::from(rig.own.sim.borrow().in_flight());
        match BLOCKS - ended {
            0 => alone = alone.max(in_flight),
            gets => beside = beside.max(in_flight.saturating_sub(gets)),
        }
    }
    assert_eq!(ended, BLOCKS);
    assert!(beside <= 1 && alone > 4, "{beside} reads beside gets, {alone} behind them");
    let filled = rig.stats.devices[0].store.counters.serving.tier_fills.get();
    assert_eq!(filled, BLOCKS, "all come in");
}

/// At most 64 wait for the device: the rest is counted, and a later lookup brings it in.
#[test]
fn fetches_that_find_no_place_are_counted() {
    const BLOCKS: u64 = 100;
    let options = SimOptions { latency_ns: 2_000_000, ..SimOptions::default() };
    let mut rig = Rig::late(config(4096, 120 << 20, 8 << 20), options, 16 << 20);
    let mut client = rig.client(0);
    let key = |number: u64| Key::of(3, number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for number in 0..BLOCKS {
        let put = rig.put_request(&client, key(number), &block(number, 5000), (0, 0));
        let durable = Request { flags: FLAG_DURABLE, ..put };
        assert_eq!(rig.ask_one(&mut client, durable).status(), Status::Ok);
    }
    rig.pass(200_000_000); // pages of records are written
    let lows: Vec<u64> = (0..BLOCKS).map(|number| key(number).lo()).collect();
    let fetch = |rig: &mut Rig, client: &mut Client| {
        for lows in lows.chunks(5) {
            let request =
                Request { flags: FLAG_FETCH, ..keys_slot(Opcode::Lookup, HANDLE, 0, lows) };
            client.post(&Asked { request, side: None });
        }
        rig.pass(500_000_000);
        let found: u32 = client.collect().iter().map(|done| done.bytes.count_ones()).sum();
        assert_eq!(u64::from(found), BLOCKS);
        let serving = &rig.stats.devices[0].store.counters.serving;
        (serving.tier_fills.get(), serving.tier_refused.get())
    };
    let (mut there, refused) = fetch(&mut rig, &mut client);
    assert!((64..BLOCKS).contains(&there), "{there} of {BLOCKS}: some find no place");
    assert_eq!(there + refused, BLOCKS, "each that does not come in is counted");
    for _ in 0..4 {
        (there, _) = fetch(&mut rig, &mut client);
    }
    assert_eq!(there, BLOCKS, "what is there needs no place");
}
