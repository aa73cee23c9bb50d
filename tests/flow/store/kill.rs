//! `kill -9` of the sidecar, again and again, while clients put, get and drop.

use std::time::Duration;

use fastrand::Rng;
use kvrail_tests::{KeyedPlan, KeyedTally};
use rustix::time::{ClockId, clock_gettime};

use super::{counter, number, seed, shape};
use crate::rig::{Place, Sidecar, VOLUME, Worker, eventually};

const PROCESSES: u64 = 8;

fn process(place: &Place, process: u64, seed: u64) -> Worker {
    let plan = KeyedPlan {
        socket: place.socket(),
        volume: VOLUME.into(),
        process,
        processes: PROCESSES,
        seed: seed ^ process << 32,
    };
    Worker::start(&["keyed", &serde_json::to_string(&plan).expect("a plan is text")])
}

/// Every block that was acknowledged more than 100 ms before the kill is found with its bytes,
/// those in several parts as well; none is wrong, and no dropped block comes back.
#[test]
fn acknowledged_blocks_survive_kills() {
    let (seed, rounds) = (seed("kill"), number("KVRAIL_STORE_ROUNDS", 2));
    let mut dice = Rng::with_seed(seed);
    // The blocks of 8 processes take some 100 MB of it, and drops and new versions of 50 rounds the
    // rest: nothing is evicted between two starts, which is checked.
    let place = Place::with_shaped_store(2, &shape(4 << 30));
    let mut sidecar = Sidecar::start(&place);
    let processes = (0..PROCESSES).map(|number| process(&place, number, seed));
    let mut processes: Vec<Worker> = processes.collect();
    for round in 0..rounds {
        for process in &mut processes {
            process.send_line("go");
        }
        for process in &mut processes {
            process.expect("running");
        }
        std::thread::sleep(Duration::from_millis(dice.u64(50..800)));
        if round == 0 {
            // Some of each kind, however slow the machine.
            eventually("drops end", || counter(&sidecar, "drops") > 2);
        }
        assert_eq!(counter(&sidecar, "evicted"), 0, "the store is too small for this");
        let killed = clock_gettime(ClockId::Monotonic);
        sidecar.kill();
        let killed = Duration::try_from(killed).expect("after the machine's start").as_nanos();
        for process in &mut processes {
            process.expect("gone");
            process.send_line(&format!("killed {killed}"));
        }
        sidecar = Sidecar::start(&place);
        println!("kill: round {round}");
    }
    let mut all = KeyedTally::default();
    for process in &mut processes {
        process.send_line("check");
        process.expect("checked");
        process.send_line("end");
        let tally: KeyedTally = serde_json::from_str(&process.next_line()).expect("a tally");
        assert!(tally.wrong.is_empty(), "seed {seed}: {:#?}", tally.wrong);
        all.puts += tally.puts;
        all.large += tally.large;
        all.drops += tally.drops;
        all.right += tally.right;
        all.others += tally.others;
        all.young += tally.young;
        all.sessions += tally.sessions;
    }
    println!("kill: {all:?}");
    assert_eq!(all.sessions, PROCESSES * rounds);
    // On the slowest machine, too, each kind occurred.
    assert!(all.puts > 100 && all.right > 100 && all.drops > 0 && all.large > 0, "{all:?}");
}
