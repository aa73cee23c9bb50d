//! GPUs that fail, and clients that die while blocks move.

use kvrail_client::Status;
use kvrail_gpu::GpuFault;
use kvrail_protocol::GpuState;

use crate::gpu_rig::{BLOCKS, Cache, Engine, Station, Way, noise};
use crate::sidecar::eventually;

/// Every request ends with GPU_ERROR, host memory is served, status and attach name the cause.
fn failed_for_good(station: &Station, engine: &mut Engine, word: &str) {
    engine.read(0, 1);
    assert_eq!(engine.end(), Status::GpuError, "and so it stays");
    engine.host_works();
    let report = engine.client.status().unwrap();
    let gpu = &report.gpus[0];
    assert_eq!(gpu.state, GpuState::Failed);
    assert!(gpu.failure.as_deref().is_some_and(|why| why.contains(word)), "{gpu:?}");
    assert_eq!(gpu.staging.taken, 0, "{gpu:?}");
    let error = engine.client.attach_gpu(Cache::new().described()).unwrap_err().to_string();
    assert!(error.contains("has failed") && error.contains("restart the sidecar"), "{error}");
    // Existing regions can be detached, and others are served.
    engine.region.detach().unwrap();
    station.attach();
}

#[test]
fn a_sticky_error_at_a_launch_fails_the_gpu_and_nothing_else() {
    let station = Station::start(Way::Staged);
    let mut engine = Engine::attach(&station);
    station.control.inject(GpuFault::Launch);
    engine.write(0, 0);
    assert_eq!(engine.end(), Status::GpuError);
    failed_for_good(&station, &mut engine, "at a launch");
}

#[test]
fn a_sticky_error_during_a_launch_ends_all_that_is_under_way() {
    let station = Station::start(Way::Staged);
    let mut engine = Engine::attach(&station);
    station.control.inject(GpuFault::Running);
    for block in 0..BLOCKS {
        engine.write(block, u64::from(block));
    }
    let ends: Vec<_> = (0..BLOCKS).map(|_| engine.end()).collect();
    assert!(ends.iter().all(|status| *status == Status::GpuError), "{ends:?}");
    failed_for_good(&station, &mut engine, "during a launch");
}

#[test]
fn a_hung_launch_holds_its_own_requests_and_no_others() {
    let station = Station::start(Way::Staged);
    let mut engine = Engine::attach(&station);
    engine.cache.fill(2, &noise(2));
    station.control.inject(GpuFault::Hang);
    engine.write(2, 5);
    engine.client.status().unwrap();
    let mut neighbour = Engine::attach(&station);
    neighbour.host_works();
    std::thread::scope(|scope| {
        let releases = station.releases();
        let detaching = scope.spawn(|| engine.region.detach());
        for _ in 0..20 {
            neighbour.host_works();
            assert!(!detaching.is_finished(), "the launch may still read");
        }
        drop(releases);
        detaching.join().unwrap().unwrap();
    });
    assert_eq!(engine.end(), Status::Ok);
    neighbour.read(5, 0);
    assert_eq!(neighbour.end(), Status::Ok);
    assert!(neighbour.cache.read(0) == noise(2));
}

#[test]
fn a_client_that_dies_with_a_hung_launch_is_kept_until_it_ends() {
    let station = Station::start(Way::Staged);
    let watcher = station.attach();
    let mut engine = Engine::attach(&station);
    station.control.inject(GpuFault::Hang);
    for block in 0..BLOCKS {
        engine.write(block, u64::from(block));
    }
    eventually("it hangs", || watcher.status().unwrap().gpus[0].counters.launches > Some(0));
    // As a killed process would: nothing is drained, the socket just closes.
    let Engine { client, queue, region, .. } = engine;
    std::mem::forget((queue, region));
    rustix::net::shutdown(client.hangup_fd(), rustix::net::Shutdown::Both).unwrap();
    eventually("it is being reclaimed", || {
        let report = watcher.status().unwrap();
        report.sessions.iter().any(|session| session.state.starts_with("reclaiming"))
    });
    let report = watcher.status().unwrap();
    assert_eq!(report.gpus[0].regions, 1, "hardware may still touch it");
    Engine::attach(&station).host_works();
    station.control.release();
    eventually("it is reclaimed", || {
        let report = watcher.status().unwrap();
        report.sessions.len() == 1 && report.gpus[0].regions == 0
    });
    eventually("every slot is back", || station.staging.free() == 8);
    let mut heir = Engine::attach(&station);
    heir.write(0, 0);
    assert_eq!(heir.end(), Status::Ok);
}

#[test]
fn direct_entries_that_fail_or_fall_short_end_as_errors_and_the_next_are_fine() {
    let station = Station::start(Way::Direct);
    let mut engine = Engine::attach(&station);
    engine.cache.fill(0, &noise(0));
    engine.write(0, 3);
    assert_eq!(engine.end(), Status::Ok);
    for fault in [GpuFault::Short, GpuFault::Entry] {
        station.control.inject(fault);
        engine.read(3, 1);
        let status = engine.end();
        assert!(matches!(status, Status::Ok | Status::IoError), "{fault:?}: {status}");
        assert!(fault == GpuFault::Short || status != Status::Ok, "{fault:?}");
        if status == Status::Ok {
            assert!(engine.cache.read(1) == noise(0), "what fell short was continued");
        }
    }
    engine.read(3, 4);
    assert_eq!(engine.end(), Status::Ok);
    assert!(engine.cache.read(4) == noise(0));
    let gpu = engine.client.status().unwrap().gpus.remove(0);
    assert_eq!((gpu.state, gpu.counters.launches), (GpuState::Serving, Some(0)), "{gpu:?}");
    assert!(gpu.counters.direct_bytes > Some(0));
}

#[test]
fn a_hung_batch_holds_the_detach_of_its_memory() {
    let station = Station::start(Way::Direct);
    let mut engine = Engine::attach(&station);
    station.control.inject(GpuFault::HungBatch);
    engine.read(0, 0);
    let mut neighbour = Engine::attach(&station);
    std::thread::scope(|scope| {
        let releases = station.releases();
        let detaching = scope.spawn(|| engine.region.detach());
        for _ in 0..20 {
            neighbour.host_works();
            assert!(!detaching.is_finished(), "the batch may still write");
        }
        drop(releases);
        detaching.join().unwrap().unwrap();
    });
    assert_eq!(engine.end(), Status::Ok);
}

#[test]
fn a_stop_finishes_what_moves_to_and_from_the_gpu() {
    let mut station = Station::start(Way::Staged);
    let mut engine = Engine::attach(&station);
    for block in 0..BLOCKS {
        engine.cache.fill(block, &noise(u64::from(block)));
        engine.write(block, u64::from(block));
    }
    station.sidecar.handle.stop();
    let stopped = station.sidecar.join().unwrap();
    assert_eq!((stopped.how, stopped.sessions_left), (kvrail_session::StoppedHow::Drained, 0));
    let ends: Vec<_> = (0..BLOCKS).map(|_| engine.end()).collect();
    let known = |status: &Status| matches!(status, Status::Ok | Status::Draining);
    assert!(ends.iter().all(known), "{ends:?}");
    assert_eq!(station.staging.free(), 8);
}
