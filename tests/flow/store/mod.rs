//! Stores between real processes. Each scenario prints its seed; `KVRAIL_STORE_SEED` sets another
//! one, `KVRAIL_STORE_ROUNDS` the rounds of scenarios with rounds.

mod added;
mod budget;
mod colder;
mod death;
mod drives;
mod full;
mod hostile;
mod identity;
mod kill;
mod lost;
mod odd;
mod pools;
mod retired;
mod soak;
mod tenants;
mod twins;

use kvrail_protocol::ShardReport;
use kvrail_tests::{Seat, SeatOptions, role_seat};

use crate::rig::{Place, Sidecar, StoreShape, VOLUME};

/// A number from the environment, or the usual one.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().map_or(usual, |text| text.parse().expect(name))
}

/// The seed, printed before anything depends on it.
fn seed(scenario: &str) -> u64 {
    let seed = number("KVRAIL_STORE_SEED", u64::from(std::process::id()));
    println!("{scenario}: KVRAIL_STORE_SEED={seed}");
    seed
}

/// A store on one member.
fn small_store(member_bytes: u64) -> Place {
    Place::with_shaped_store(1, &shape(member_bytes))
}

fn shape(member_bytes: u64) -> StoreShape {
    StoreShape { member_bytes, segment_bytes: 4 << 20, block_mean: 8 << 10 }
}

/// The options of a client of a sidecar's store.
fn options(sidecar: &Sidecar, space: &str) -> SeatOptions {
    role_seat(sidecar.socket(), VOLUME, space)
}

fn seat(sidecar: &Sidecar, space: &str) -> Seat {
    Seat::attach(&options(sidecar, space)).expect("a session with a namespace")
}

fn shards(sidecar: &Sidecar) -> Vec<ShardReport> {
    sidecar.status().shards
}

/// A counter of all members.
fn counter(sidecar: &Sidecar, name: &str) -> u64 {
    let of = |shard: &ShardReport| {
        let mut counters = shard.counters.each();
        let found = counters.find(|(it, _)| it.name == name).and_then(|(_, count)| *count);
        found.unwrap_or_else(|| panic!("no counter {name} in {:?}", shard.counters))
    };
    shards(sidecar).iter().map(of).sum()
}
