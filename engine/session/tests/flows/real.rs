//! The whole way: client, server, real pollers, simulated devices that fail on command.

use std::time::Duration;

use kvrail_client::{Arena, Client, Lease, Pages, Queue, Request, Status, Volume};
use kvrail_counters::SessionCounters;
use kvrail_device::{Fault, FaultPlan, Rule};
use kvrail_ring::Opcode;
use kvrail_session::StoppedHow;

use crate::sidecar::{MEMBER, STRIPE, Sidecar, eventually};

const LONG: Duration = Duration::from_secs(10);

fn fill(bytes: &mut [u8], volume_offset: u64, version: u64) {
    for (block, bytes) in (volume_offset / 512..).zip(bytes.chunks_mut(512)) {
        let word = (block << 16 | version).to_ne_bytes();
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
    }
}

fn verify(bytes: &[u8], volume_offset: u64, version: u64) {
    for (block, bytes) in (volume_offset / 512..).zip(bytes.chunks(512)) {
        let word = (block << 16 | version).to_ne_bytes();
        assert!(bytes.chunks_exact(8).all(|chunk| chunk == word), "block {block}");
    }
}

/// Writes and reads back a part of the volume that no other client uses.
fn work(client: &Client, volume: &Volume, part: u64, rounds: u64) {
    let arena = client.create_arena(2 << 20, Pages::Auto).unwrap();
    let mut queue = client.open_queue(32).unwrap();
    let span = 8 * STRIPE;
    let mut random = part * 2 + 1;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for version in 1..=rounds {
        let blocks = 1 + next(300);
        let offset = part * span + next(span / 512 - blocks) * 512;
        let mut lease = arena.lease(usize::try_from(blocks * 512).unwrap()).unwrap();
        fill(&mut lease, offset, version);
        queue.submit(Request::write(volume, offset, lease)).unwrap();
        let done = queue.wait(LONG).unwrap().unwrap();
        assert_eq!((done.status, done.bytes), (Status::Ok, blocks * 512));
        let mut lease = done.lease.unwrap();
        lease.fill(0);
        queue.submit(Request::read(volume, offset, lease)).unwrap();
        let done = queue.wait(LONG).unwrap().unwrap();
        assert_eq!((done.status, done.bytes), (Status::Ok, blocks * 512));
        verify(&done.lease.unwrap(), offset, version);
    }
    queue.close(LONG).unwrap();
    arena.detach().unwrap();
}

#[test]
fn threads_and_clients_at_once_each_read_what_they_wrote() {
    let (sidecar, _) = Sidecar::start_real(
        |_| {},
        |_| FaultPlan::none().with(Rule::chance(Fault::Reorder, 200_000)),
    );
    std::thread::scope(|scope| {
        for part in 0..4 {
            let sidecar = &sidecar;
            scope.spawn(move || {
                let client = Client::attach(sidecar.socket()).unwrap();
                let volume = client.volume("kv").unwrap();
                std::thread::scope(|scope| {
                    for thread in 0..2 {
                        let (client, volume) = (&client, &volume);
                        scope.spawn(move || work(client, volume, part * 2 + thread, 60));
                    }
                });
            });
        }
    });
    let client = Client::attach(sidecar.socket()).unwrap();
    let report = client.status().unwrap();
    assert_eq!(report.devices.iter().filter_map(|device| device.counters.errors).sum::<u64>(), 0);
    assert!(report.devices.iter().all(|device| device.writes.operations > 0), "{report:?}");
    eventually("nothing is left", || client.status().unwrap().regions.arenas == 0);
}

#[test]
fn flush_discard_nop_and_checksums_pass_through() {
    let (sidecar, _) = Sidecar::start_real(|_| {}, |_| FaultPlan::none());
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Auto).unwrap();
    let mut queue = client.open_queue(32).unwrap();
    let mut run = |request| {
        queue.submit(request).unwrap();
        queue.wait(LONG).unwrap().unwrap()
    };
    for request in [Request::nop(&volume), Request::flush(&volume)] {
        assert_eq!(run(request).status, Status::Ok);
    }
    let mut lease = arena.lease(4096).unwrap();
    fill(&mut lease, 0, 1);
    let done = run(Request::write(&volume, 0, lease).durable().checksum());
    let (crc, lease) = (done.checksum, done.lease.unwrap());
    assert!(done.status == Status::Ok && crc != 0);
    let done = run(Request::read(&volume, 0, lease).verify(crc));
    assert_eq!((done.status, done.checksum), (Status::Ok, crc));
    let done = run(Request::read(&volume, 0, done.lease.unwrap()).verify(crc ^ 1));
    assert_eq!((done.status, done.lease.is_some()), (Status::Corrupt, true));
    let discarded = run(Request::discard(&volume, 0, 3 * STRIPE));
    assert!(matches!(discarded.status, Status::Ok | Status::Unsupported), "{discarded:?}");
}

#[test]
fn the_status_counts_what_each_session_asked() {
    let (sidecar, _) = Sidecar::start_real(|_| {}, |_| FaultPlan::none());
    let watcher = Client::attach(sidecar.socket()).unwrap();
    for round in 0..3_u64 {
        let client = Client::attach(sidecar.socket()).unwrap();
        let volume = client.volume("kv").unwrap();
        let arena = client.create_arena(1 << 20, Pages::Auto).unwrap();
        let mut queue = client.open_queue(8).unwrap();
        for block in 0..=round {
            let lease = arena.lease(4096).unwrap();
            queue.submit(Request::write(&volume, block * STRIPE, lease)).unwrap();
            assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
        }
        let id = client.session().0;
        let counted = || {
            let report = watcher.status().unwrap();
            let session = report.sessions.into_iter().find(|session| session.id == id).unwrap();
            let (all, bytes) = (Some(round + 1), Some((round + 1) * 4096));
            let counts = SessionCounters { accepted: all, completed: all, failed: Some(0), bytes };
            session.counters == counts
        };
        eventually("every session counts from 0", counted);
        drop((queue, arena, client));
        eventually("its place is free", || watcher.status().unwrap().sessions.len() == 1);
    }
}

#[test]
fn device_errors_come_back_as_their_status_with_the_lease() {
    let failing = |member: usize| match member {
        1 => FaultPlan::none().with(Rule::once(Fault::Error(Status::NoSpace)).on(Opcode::Write)),
        _ => FaultPlan::none(),
    };
    let (sidecar, controls) = Sidecar::start_real(|_| {}, failing);
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Auto).unwrap();
    let mut queue = client.open_queue(32).unwrap();
    let three = arena.lease(usize::try_from(3 * STRIPE).unwrap()).unwrap();
    queue.submit(Request::write(&volume, 0, three)).unwrap();
    let done = queue.wait(LONG).unwrap().unwrap();
    assert_eq!((done.status, done.bytes), (Status::NoSpace, 2 * STRIPE));
    controls[2].remove();
    queue.submit(Request::read(&volume, 0, done.lease.unwrap())).unwrap();
    let done = queue.wait(LONG).unwrap().unwrap();
    assert!(done.status != Status::Ok && done.lease.is_some(), "{done:?}");
    assert!(client.status().unwrap().devices.iter().any(|device| device.counters.errors > Some(0)));
}

/// Hangs the first read of member 0.
fn hung() -> (Sidecar, Vec<kvrail_device::SimControl>) {
    Sidecar::start_real(
        |config| config.policy.drain_timeout = Duration::from_millis(100),
        |member| match member {
            0 => FaultPlan::none().with(Rule::once(Fault::Hang).on(Opcode::Read)),
            _ => FaultPlan::none(),
        },
    )
}

fn hang(queue: &mut Queue, volume: &Volume, lease: Lease) {
    let deadline = Duration::from_millis(2);
    queue.submit(Request::read(volume, 0, lease).deadline(deadline)).unwrap();
    let late = queue.wait(LONG).unwrap().unwrap();
    assert!(late.is_notice(), "{late:?}");
}

#[test]
fn a_hung_device_gives_a_notice_holds_detach_and_ends_the_request_later() {
    let (sidecar, controls) = hung();
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Auto).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    hang(&mut queue, &volume, arena.lease(4096).unwrap());
    std::thread::scope(|scope| {
        let detaching = scope.spawn(|| arena.detach());
        for _ in 0..10 {
            assert_eq!(client.status().unwrap().regions.arenas, 1);
            assert!(!detaching.is_finished(), "hardware may still write");
        }
        controls[0].release();
        detaching.join().unwrap().unwrap();
    });
    let done = queue.wait(LONG).unwrap().unwrap();
    assert!(done.status == Status::Ok && done.lease.is_some(), "{done:?}");
}

#[test]
fn a_client_that_dies_with_a_hung_request_is_quarantined_until_it_ends() {
    let (sidecar, controls) = hung();
    let watcher = Client::attach(sidecar.socket()).unwrap();
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Auto).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    hang(&mut queue, &volume, arena.lease(4096).unwrap());
    // As a killed process would: nothing is drained, the socket just closes.
    std::mem::forget(queue);
    std::mem::forget(arena);
    rustix::net::shutdown(client.hangup_fd(), rustix::net::Shutdown::Both).unwrap();
    eventually("quarantined", || watcher.status().unwrap().regions.quarantined == 1);
    controls[0].release();
    eventually("reclaimed", || {
        let report = watcher.status().unwrap();
        report.regions.arenas == 0 && report.sessions.len() == 1
    });
}

#[test]
fn a_stop_with_a_hung_device_tells_the_client_once_and_fences_its_memory() {
    let (mut sidecar, controls) = hung();
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Auto).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    hang(&mut queue, &volume, arena.lease(4096).unwrap());
    sidecar.handle.stop();
    let stopped = sidecar.join().unwrap();
    assert_eq!((stopped.how, stopped.pollers_left), (StoppedHow::TimedOut, 1));
    let done = queue.wait(LONG).unwrap().unwrap();
    assert!(done.status == Status::Restarted && done.lease.is_none(), "{done:?}");
    assert!(queue.wait(LONG).unwrap().is_none());
    assert_eq!(client.quarantined_bytes(), 4096);
    controls[0].release();
}

#[test]
fn a_stop_under_load_loses_nothing() {
    let (mut sidecar, _) = Sidecar::start_real(|_| {}, |_| FaultPlan::none());
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(8 << 20, Pages::Auto).unwrap();
    let orders = sidecar.handle.clone();
    let ended = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3_u64)
            .map(|part| {
                let mut queue = client.open_queue(64).unwrap();
                let (volume, arena) = (&volume, &arena);
                scope.spawn(move || flood(&mut queue, volume, arena, part))
            })
            .collect();
        eventually("they are at work", || {
            let sessions = client.status().unwrap().sessions;
            sessions.iter().any(|session| session.counters.completed > Some(100))
        });
        orders.stop();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum::<usize>()
    });
    assert!(ended > 0);
    assert_eq!(sidecar.join().unwrap().how, StoppedHow::Drained);
    assert_eq!((client.quarantined_bytes(), arena.leases()), (0, 0));
}

/// Keeps a queue full until the sidecar stops; returns how many requests ended.
fn flood(queue: &mut Queue, volume: &Volume, arena: &Arena, part: u64) -> usize {
    let (mut submitted, mut ended, mut done) = (0, 0, Vec::new());
    let mut serving = true;
    while serving || queue.outstanding() > 0 {
        while let (true, Ok(lease)) = (serving, arena.lease(4096)) {
            let offset = (part * 64 + submitted as u64 % 64) * 4096 % MEMBER;
            match queue.submit(Request::write(volume, offset, lease)) {
                Ok(_) => submitted += 1,
                Err(_) => break,
            }
        }
        queue.wait_for(1, &mut done, LONG).unwrap();
        for done in done.drain(..) {
            ended += 1;
            match done.status {
                Status::Ok => {}
                Status::Draining | Status::Restarted => serving = false,
                other => panic!("{other}"),
            }
            assert!(done.lease.is_some());
        }
        serving &= queue.ended().is_none();
    }
    queue.poll(&mut done);
    assert_eq!(ended + done.len(), submitted);
    ended
}
