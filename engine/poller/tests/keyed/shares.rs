//! Places for puts are shared by users, and what waits for one is served by turns.

use kvrail_device::{Fault, Rule, SimOptions};
use kvrail_poller::TenantSlot;
use kvrail_ring::slot::FLAG_MORE;
use kvrail_ring::{Opcode, Side, Status};
use kvrail_store::{Key, check};

use super::rig::{Asked, Client, Rig, block, config, crc, keyed};

const BYTES: u32 = 16 << 10;
const HALF: u32 = BYTES / 2;

/// One of the halves of a block, whose bytes lie at the arena's begin.
fn half(client: &Client, key: Key, bytes: &[u8], at: u32) -> Asked<'static> {
    let sum = check(crc(bytes), 1_000, key, BYTES);
    let request = keyed(client, key, (HALF, sum), (at.into(), 0)).slot(Opcode::Put);
    Asked { request, side: Some(Side { block_bytes: BYTES, at, metadata: &[], ..Side::default() }) }
}

/// Made-up time stands for steps: 50 ms are 2,500 ticks, and a put waits for a second at most.
#[test]
fn who_begins_blocks_and_never_ends_them_keeps_nobody_from_putting() {
    let mut config = config(512, 120 << 20, 8 << 20);
    (config.puts, config.writes) = (32, 64);
    let mut rig = Rig::with(config, SimOptions::default());
    let (mut hostile, mut client) = (rig.client(0), rig.client(1));
    let bytes = block(1, BYTES as usize);
    let mut begun = 0;
    let mut beset = |rig: &mut Rig| {
        drop(hostile.collect());
        while hostile.lane.free(1).unwrap() > 0 {
            begun += 1;
            let first = half(&hostile, Key::of(7, begun), &bytes, 0);
            hostile.post(&first);
        }
        rig.tick();
    };
    (0..5_000).for_each(|_| beset(&mut rig));
    for number in 0..200 {
        let request = rig.put_request(&client, Key::of(8, number), &bytes, (0, 0));
        client.post(&Asked { request, side: None });
        let ended = (0..2_500).find_map(|_| {
            beset(&mut rig);
            client.collect().pop()
        });
        assert_eq!(ended.expect("a put ends in time").status(), Status::Ok, "put {number}");
    }
    assert!(begun > 32, "{begun} first halves, more than there are places");
}

#[test]
fn blocks_of_parts_wait_for_places_that_others_of_their_session_have() {
    let mut config = config(512, 120 << 20, 8 << 20);
    (config.puts, config.writes) = (8, 16);
    let options = SimOptions { latency_ns: 1_000_000, ..SimOptions::default() };
    let mut rig = Rig::with(config, options);
    let mut client = rig.client(0);
    let bytes = block(3, BYTES as usize);
    kvrail_memory::store(&*client.arena, 0, &bytes);
    for number in 0..30 {
        let first = half(&client, Key::of(9, number), &bytes, 0);
        client.post(&first);
    }
    let mut ended = 0;
    rig.until(|_| {
        for completion in client.collect() {
            assert_eq!(completion.status(), Status::Ok, "{completion:?}");
            if completion.flags & FLAG_MORE == 0 {
                ended += 1;
                continue;
            }
            let second = half(&client, Key::of(9, completion.user_data - 1), &bytes, HALF);
            client.post(&second);
        }
        ended == 30
    });
}

/// A user has one share, by however many sessions; a store that begins anew saw none of them come.
#[test]
fn a_users_sessions_have_one_share_of_a_store_that_began_anew() {
    let begun = [false, true].map(|anew| {
        let mut config = config(512, 120 << 20, 8 << 20);
        (config.puts, config.writes) = (8, 16);
        let mut rig = Rig::with(config, SimOptions::default());
        let mut clients = [0, 1].map(|session| rig.client_of(session, TenantSlot(0)));
        if anew {
            rig.begin_anew();
        }
        let first = rig.put(&mut clients[0], Key::of(9, 9), &block(1, 4096));
        assert_eq!(first.status(), Status::Ok);
        rig.pass(200_000_000); // what the store writes for itself is written
        rig.own.sim.borrow_mut().plan().add(Rule::always(Fault::Hang).on(Opcode::Write).times(64));
        for (session, client) in (0..).zip(&mut clients) {
            for number in 0..8 {
                let (key, bytes) = (Key::of(session, number), block(1, 4096));
                let request = rig.put_request(client, key, &bytes, (0, 0));
                client.post(&Asked { request, side: None });
            }
            rig.pass(1_000_000);
        }
        rig.own.sim.borrow().control().hung()
    });
    assert_eq!(begun, [6, 6], "three quarters of the places");
}
