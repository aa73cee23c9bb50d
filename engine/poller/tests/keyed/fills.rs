//! Blocks that come into the memory tier, beside the gets of clients.

use kvrail_device::{Device, SimOptions};
use kvrail_ring::slot::FLAG_DURABLE;
use kvrail_ring::{Opcode, Request, Status};
use kvrail_store::Key;

use super::rig::{Asked, Rig, block, config, keyed};

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
