//! What each namespace and each pool has in memory, and where its gets found their blocks.

use kvrail_client::Identity;
use kvrail_protocol::{NamespaceInfo, NamespaceMemory, PoolReport};

use crate::rig::{Sidecar, eventually, kvrail, run};
use crate::tier::{BYTES, User, place};

/// A user of a namespace of this name.
fn open(sidecar: &Sidecar, name: &str) -> User {
    let mut user = User::open(sidecar);
    let identity = Identity::new([("model", name)]).unwrap();
    user.0.space = user.0.client.store("kv").unwrap().namespace(name, &identity).unwrap();
    user
}

fn space(user: &User) -> NamespaceInfo {
    user.0.space.usage().unwrap()
}

fn memory(user: &User) -> NamespaceMemory {
    space(user).memory.unwrap()
}

/// The pools of all members together, with the gets that memory served.
fn of_pool(sidecar: &Sidecar, name: &str) -> (u64, u64, u64, u64) {
    let report = sidecar.status();
    let pools = report.shards.iter().flat_map(|shard| &shard.pools);
    let own: Vec<&PoolReport> = pools.filter(|pool| pool.name == name).collect();
    let sum = |of: fn(&PoolReport) -> Option<u64>| own.iter().map(|pool| of(pool).unwrap()).sum();
    let memory =
        report.memory_hits.iter().flatten().filter(|hits| hits.pool == name).map(|of| of.hits);
    (
        memory.sum(),
        sum(|pool| pool.counters.hits),
        sum(|pool| pool.counters.misses),
        sum(|pool| pool.counters.tier_blocks),
    )
}

#[test]
fn tenants_see_what_they_have_in_memory_and_what_it_served() {
    let mut place = place("32MiB");
    let pool = "[[volume.pool]]\nname = \"teams\"\nminimum = \"8MiB\"\nnamespaces = \"team*\"";
    place.configure_volume(pool);
    let sidecar = Sidecar::start(&place);
    let (mut team, mut other) = (open(&sidecar, "team a"), open(&sidecar, "other"));
    (0..6).for_each(|number| team.put(number, 0));
    other.put(0, 0);
    assert_eq!(other.get(50), None);
    eventually("blocks come into memory", || {
        (0..6).for_each(|number| team.has(number, 0));
        memory(&team).blocks == 6
    });
    let before = space(&team);
    assert!(before.hits >= Some(12) && before.misses == Some(0), "two gets each: {before:?}");
    for _ in 0..10 {
        (0..6).for_each(|number| team.has(number, 0));
    }
    eventually("gets from memory are counted", || {
        space(&team).memory_hits >= before.memory_hits.max(Some(60))
    });
    let (now, pages) = (space(&team), BYTES.div_ceil(4096) as u64 * 4096);
    assert_eq!(now.hits, before.hits, "no get reached the store");
    let there = now.memory.unwrap();
    assert_eq!((there.blocks, there.bytes), (6, 6 * pages));
    assert!(there.mean_age_s.is_some(), "{now:?}");
    let there = space(&other);
    assert_eq!((there.memory_hits, there.misses), (Some(0), Some(1)));
    assert_eq!(there.memory, Some(NamespaceMemory::default()));
    let served = now.memory_hits.unwrap();
    eventually("pools have what their namespaces have", || {
        of_pool(&sidecar, "teams") == (served, now.hits.unwrap(), 0, 6)
    });
    assert_eq!(of_pool(&sidecar, "default"), (0, there.hits.unwrap(), 1, 0));
    let socket = place.socket();
    let shown = |what: &str| run(kvrail().args(["store", what, "--socket"]).arg(&socket)).stdout;
    for text in [shown("namespaces"), shown("pools")] {
        assert!(text.contains("FROM MEMORY") && text.contains("UNWRITTEN"), "{text}");
        assert!(text.contains(&format!(" {served} ")), "{text}");
        assert!(text.lines().all(|line| line.trim_end().chars().count() <= 100), "{text}");
    }
    // What went with a removed namespace stays counted in its pool.
    drop(team);
    let remover = open(&sidecar, "other");
    remover.0.client.store("kv").unwrap().remove("team a").unwrap();
    assert_eq!(of_pool(&sidecar, "teams").0, served);
    let again = open(&sidecar, "team a");
    assert_eq!((space(&again).memory_hits, space(&again).hits), (Some(0), Some(0)));
    sidecar.stop();
}
