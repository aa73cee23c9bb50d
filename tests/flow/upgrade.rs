//! One sidecar ends and the next one takes over, under clients that attach again by themselves.

use std::time::{Duration, Instant};

use kvrail_tests::SteadyTally;

use crate::rig::{Place, Sidecar, StoreShape, Told, VOLUME, can_pin};

const CLIENTS: usize = 2;
const UPGRADES: usize = 3;
/// Far above what it takes, for machines with other work.
const LONGEST_MS: u64 = 20_000;

#[test]
fn clients_go_on_over_an_upgrade() {
    if !can_pin(64 << 20) {
        return;
    }
    // Room for all of their blocks: nothing is evicted.
    let place = Place::with_shaped_store(
        2,
        &StoreShape { member_bytes: 256 << 20, segment_bytes: 8 << 20, block_mean: 16 << 10 },
    );
    let mut sidecar = Sidecar::start(&place);
    let socket = place.socket();
    let socket = socket.to_str().expect("a plain path");
    let mut clients: Vec<Told> = (0..CLIENTS)
        .map(|number| Told::start(&["steady", socket, VOLUME, &number.to_string()]))
        .collect();
    for client in &mut clients {
        client.expect("running");
    }
    for _ in 0..UPGRADES {
        std::thread::sleep(Duration::from_millis(500));
        let start = Instant::now();
        sidecar.stop();
        let stopped = start.elapsed();
        sidecar = Sidecar::start(&place);
        println!("upgrade: stopped after {stopped:?}, serving after {:?}", start.elapsed());
    }
    std::thread::sleep(Duration::from_secs(1));
    for client in clients {
        let tally: SteadyTally = serde_json::from_str(&client.end()).expect("a tally");
        println!("upgrade: {tally:?}");
        assert!(tally.wrong.is_empty(), "{:#?}", tally.wrong);
        assert!(tally.puts > 100 && tally.right > 0, "{tally:?}");
        assert_eq!(tally.interruptions_ms.len(), UPGRADES, "{tally:?}");
        assert!(tally.interruptions_ms.iter().all(|&ms| ms < LONGEST_MS), "{tally:?}");
        // A drain leaves nothing in doubt: what it cut off was not done.
        assert!(tally.cut_off.keys().all(|status| status == "DRAINING"), "{tally:?}");
        assert!(!tally.cut_off.is_empty(), "no upgrade under load: {tally:?}");
    }
    sidecar.stop();
}
