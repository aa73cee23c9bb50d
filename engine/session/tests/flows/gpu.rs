//! Blocks of a paged cache on a GPU: written, read back elsewhere, detached while they move.

use kvrail_client::{GpuMechanism, Status};

use crate::gpu_rig::{BLOCK, BLOCKS, Cache, Engine, LONG, Station, Way, noise};
use crate::sidecar::eventually;

/// Writes all blocks, then reads them into other indices, all at once.
fn there_and_back(engine: &mut Engine, first: u64) {
    for block in 0..BLOCKS {
        engine.cache.fill(block, &noise(first + u64::from(block)));
        engine.write(block, first + u64::from(block));
    }
    (0..BLOCKS).for_each(|_| assert_eq!(engine.end(), Status::Ok));
    for block in 0..BLOCKS {
        engine.cache.fill(block, &vec![0xee; usize::try_from(BLOCK).unwrap()]);
    }
    for block in 0..BLOCKS {
        engine.read(first + u64::from(block), (block + 3) % BLOCKS);
    }
    (0..BLOCKS).for_each(|_| assert_eq!(engine.end(), Status::Ok));
    for block in 0..BLOCKS {
        let seen = engine.cache.read((block + 3) % BLOCKS);
        assert!(
            seen == noise(first + u64::from(block)),
            "block {block} came back with other bytes"
        );
    }
}

#[test]
fn blocks_come_back_into_other_indices_with_every_byte() {
    let station = Station::start(Way::Staged);
    let mut engine = Engine::attach(&station);
    let route = engine.region.route(&engine.volume).unwrap();
    assert_eq!((route.mechanism, route.reason.as_str()), (GpuMechanism::Staged, "test"));
    there_and_back(&mut engine, 0);
    engine.host_works();
    let report = engine.client.status().unwrap();
    let gpu = &report.gpus[0];
    let moved = BLOCK * u64::from(BLOCKS);
    assert_eq!(
        (gpu.counters.gathered_bytes, gpu.counters.scattered_bytes),
        (Some(moved), Some(moved)),
        "{gpu:?}"
    );
    assert_eq!(
        (gpu.regions, gpu.region_bytes, gpu.counters.failed),
        (1, moved, Some(0)),
        "{gpu:?}"
    );
    let session =
        report.sessions.iter().find(|session| session.id == engine.client.session().0).unwrap();
    assert_eq!((session.gpu_regions, session.gpu_bytes), (1, moved));
    assert_eq!((session.arenas, report.regions.arenas), (0, 0), "it is no arena");
    engine.region.detach().unwrap();
    assert_eq!(engine.client.status().unwrap().gpus[0].regions, 0);
}

#[test]
fn two_clients_share_volume_and_gpu() {
    let station = Station::start(Way::Staged);
    std::thread::scope(|scope| {
        for part in 0..2 {
            let station = &station;
            scope.spawn(move || {
                let mut engine = Engine::attach(station);
                (0..10).for_each(|round| there_and_back(&mut engine, part * 64 + round % 4 * 8));
            });
        }
    });
    // A third one reads what the last of them wrote.
    let mut engine = Engine::attach(&station);
    engine.read(72, 5);
    assert_eq!(engine.end(), Status::Ok);
    assert!(engine.cache.read(5) == noise(72));
    assert_eq!(station.staging.free(), 8);
}

#[test]
fn a_detach_under_load_waits_for_the_last_byte() {
    let station = Station::start(Way::Staged);
    let mut writer = Engine::attach(&station);
    there_and_back(&mut writer, 0);
    for round in 0..30 {
        let mut engine = Engine::attach(&station);
        for step in 0..40 {
            engine.read(step % 8, u32::try_from(step % 8).unwrap());
        }
        if round % 2 == 0 {
            assert_eq!(engine.end(), Status::Ok); // some rounds begin with an idle pipeline
        }
        engine.region.detach().unwrap();
        // The memory is the client's again: nothing may change it any more.
        for block in 0..BLOCKS {
            engine.cache.fill(block, &noise(99 + u64::from(block)));
        }
        let mut done = Vec::new();
        while engine.queue.outstanding() > 0 {
            engine.queue.wait_for(1, &mut done, LONG).unwrap();
        }
        let known = |status| matches!(status, Status::Ok | Status::Invalid);
        assert!(done.iter().all(|done| known(done.status)), "{done:?}");
        for block in 0..BLOCKS {
            let seen = engine.cache.read(block);
            assert!(seen == noise(99 + u64::from(block)), "a byte came after the detach");
        }
    }
    eventually("every slot is back", || station.staging.free() == 8);
}

#[test]
fn a_region_that_was_detached_is_named_in_vain() {
    let station = Station::start(Way::Staged);
    let mut engine = Engine::attach(&station);
    engine.region.detach().unwrap();
    engine.write(0, 0);
    assert_eq!(engine.end(), Status::Invalid);
    let error = engine.region.detach().unwrap_err().to_string();
    assert!(error.contains("no attached"), "{error}");
    // Another client's region is none of ours, whatever number it has.
    let mut other = Engine::attach(&station);
    let mine = engine.client.attach_gpu(Cache::new().described()).unwrap();
    let range = mine.block(0).unwrap();
    let refused = other.queue.submit(kvrail_client::Request::write_gpu(&other.volume, 0, range));
    assert!(refused.is_err());
}
