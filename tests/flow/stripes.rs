//! A volume striped over three members: requests that cross borders, restart, read back.

use kvrail_bench::pattern::Pattern;
use kvrail_client::{Client, Pages, Request, Status};
use kvrail_tests::{Acknowledged, Tally, span_bytes, verify};

use crate::rig::{Actor, LONG, Loops, Place, Sidecar};

const THREADS: u32 = 4;

/// Offset and length of requests: within a stripe, over one border, over all members and more,
/// each once aligned to nothing but the logical block.
const RANGES: [(u64, usize); 7] = [
    (0, 4096),
    ((256 << 10) - 512, 1024),
    ((512 << 10) - 4096, 8192),
    (1_000_448, 1_124_352),
    (3 << 20, 768 << 10),
    ((4 << 20) + 512, 4 << 20),
    ((9 << 20) - 512, 512),
];

fn write_all(client: &Client, version: u32) -> Vec<Acknowledged> {
    let volume = client.volume("kv").unwrap();
    let pattern = Pattern::new(volume.uuid());
    let arena = client.create_arena(16 << 20, Pages::Auto).unwrap();
    let mut queue = client.open_queue(128).unwrap();
    for (offset, bytes) in RANGES {
        let mut lease = arena.lease(bytes).unwrap();
        pattern.fill(&mut lease, offset, version);
        queue.submit(Request::write(&volume, offset, lease).durable()).unwrap();
    }
    let mut done = Vec::new();
    assert_eq!(queue.wait_for(RANGES.len(), &mut done, LONG).unwrap(), RANGES.len());
    assert!(done.iter().all(|done| done.status == Status::Ok), "{done:?}");
    arena.detach().unwrap();
    let block = |(offset, bytes)| Acknowledged { offset, bytes, version };
    RANGES.map(block).to_vec()
}

fn borders_restart_and_traffic(place: &Place) {
    let sidecar = Sidecar::start(place);
    let members = sidecar.attach().volume("kv").unwrap().geometry().members;
    assert_eq!(members, 3);
    let written = write_all(&sidecar.attach(), 7);
    verify(&sidecar.attach(), "kv", &written).unwrap().assert_right();
    let reports = sidecar.status().devices;
    assert_eq!(reports.len(), 3);
    assert!(reports.iter().all(|report| report.writes.operations > 0), "one member got nothing");
    sidecar.stop();

    let sidecar = Sidecar::start(place);
    verify(&sidecar.attach(), "kv", &written).unwrap().assert_right();
    let mut all = Tally::default();
    for actor in [0, THREADS].map(|first| Actor::traffic(&sidecar, first, THREADS, 1.5)) {
        let tally = actor.tally();
        tally.assert_right();
        all.add(tally);
    }
    sidecar.kill();
    let sidecar = Sidecar::start(place);
    verify(&sidecar.attach(), "kv", &all.acknowledged).unwrap().assert_right();
    sidecar.stop();
}

#[test]
fn three_files_in_stripes() {
    borders_restart_and_traffic(&Place::with_volume(3, span_bytes(2 * THREADS)));
}

#[test]
fn three_block_devices_in_stripes() {
    let mut place = Place::empty(3);
    for member in &place.members {
        let file = std::fs::File::create(member).unwrap();
        file.set_len(span_bytes(2 * THREADS) / 3 + (8 << 20)).unwrap();
    }
    let Some(loops) = Loops::over(&place.members) else { return };
    place.members = loops.nodes().to_vec();
    place.create(span_bytes(2 * THREADS), "256KiB").expect(0, &[]);
    borders_restart_and_traffic(&place);
}
