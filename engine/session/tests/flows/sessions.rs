//! Sessions end to end: the real server and the real client, with pollers that keep volumes in
//! memory.

use std::time::Duration;

use crate::sidecar::{STRIPE, Sidecar, eventually};
use kvrail_client::{Client, ClientError, MemberChange, Pages, Request, Status, SubmitErrorKind};
use kvrail_session::StoppedHow;

const LONG: Duration = Duration::from_secs(10);

#[test]
fn attach_write_read_verify_detach() {
    let sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    assert_eq!((client.epoch().0, client.pollers()), (7, 2));
    let volume = client.volume("kv").unwrap();
    assert!(matches!(client.volume("nope"), Err(ClientError::UnknownVolume { .. })));
    let arena = client.create_arena(4 << 20, Pages::Auto).unwrap();
    assert!(arena.bytes() >= 4 << 20);
    let mut queue = client.open_queue(100).unwrap();
    assert_eq!(queue.capacity(), 128);
    for (round, blocks) in [1, 2, 512, 40, 300].into_iter().enumerate() {
        let bytes = blocks * 512;
        let offset = STRIPE * round as u64 + 512 * 7;
        let mut lease = arena.lease(bytes).unwrap();
        let pattern = |at: usize| u8::try_from((at * 31 + round) % 251).unwrap();
        lease.iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at));
        queue.submit(Request::write(&volume, offset, lease).tag(5)).unwrap();
        let done = queue.wait(LONG).unwrap().unwrap();
        assert_eq!((done.status, done.bytes, done.tag), (Status::Ok, bytes as u64, 5));
        let mut lease = done.lease.unwrap();
        lease.fill(0);
        queue.submit(Request::read(&volume, offset, lease)).unwrap();
        let done = queue.wait(LONG).unwrap().unwrap();
        assert_eq!((done.status, done.bytes), (Status::Ok, bytes as u64));
        let lease = done.lease.unwrap();
        assert!(lease.iter().enumerate().all(|(at, byte)| *byte == pattern(at)), "round {round}");
    }
    queue.submit(Request::flush(&volume)).unwrap();
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    let (region, leases) = (arena.region(), arena.leases());
    assert_eq!(leases, 0);
    arena.detach().unwrap();
    assert_eq!(sidecar.switches.detached.get(), 2);
    queue.close(LONG).unwrap();
    let report = client.status().unwrap();
    assert_eq!((report.regions.arenas, report.sessions[0].queues), (0, 0), "{region}");
}

#[test]
fn requests_with_a_detached_arena_end_invalid() {
    let sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let lease = arena.lease(4096).unwrap();
    arena.detach().unwrap();
    let mut queue = client.open_queue(8).unwrap();
    queue.submit(Request::read(&volume, 0, lease)).unwrap();
    let done = queue.wait(LONG).unwrap().unwrap();
    assert_eq!(done.status, Status::Invalid);
    assert!(done.lease.is_some());
}

#[test]
fn detach_waits_until_nothing_can_touch_the_memory() {
    let sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    sidecar.switches.hold_detach.on();
    std::thread::scope(|scope| {
        let detaching = scope.spawn(|| arena.detach());
        // The control socket is shared: other threads are served meanwhile.
        for _ in 0..20 {
            let report = client.status().unwrap();
            assert_eq!(report.regions.arenas, 1);
            assert!(!detaching.is_finished(), "acknowledged too early");
        }
        sidecar.switches.hold_detach.off();
        detaching.join().unwrap().unwrap();
    });
    assert_eq!(client.status().unwrap().regions.arenas, 0);
}

#[test]
fn a_device_that_refuses_an_arena_undoes_it_everywhere() {
    let sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    sidecar.switches.refuse_attach.on();
    let error = client.create_arena(1 << 20, Pages::Base).unwrap_err();
    assert!(error.to_string().contains("raise memlock"), "{error}");
    assert_eq!(client.status().unwrap().regions.arenas, 0);
    let switches = &sidecar.switches;
    assert_eq!(switches.attached.get(), switches.detached.get());
    switches.refuse_attach.off();
    client.create_arena(1 << 20, Pages::Base).unwrap();
}

#[test]
fn several_threads_share_a_client() {
    let sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(8 << 20, Pages::Auto).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (client, volume, arena) = (&client, &volume, &arena);
            scope.spawn(move || {
                let mut queue = client.open_queue(16).unwrap();
                let mut done = Vec::new();
                for round in 0..20_u64 {
                    let offset = (thread * 20 + round) * 2 * STRIPE / 2;
                    let mut lease = arena.lease(usize::try_from(STRIPE / 2).unwrap()).unwrap();
                    lease.fill(u8::try_from(thread * 20 + round).unwrap());
                    queue.submit(Request::write(volume, offset, lease)).unwrap();
                    queue.wait_for(1, &mut done, LONG).unwrap();
                    let lease = done.pop().unwrap().lease.unwrap();
                    queue.submit(Request::read(volume, offset, lease)).unwrap();
                    queue.wait_for(1, &mut done, LONG).unwrap();
                    let lease = done.pop().unwrap().lease.unwrap();
                    let expected = u8::try_from(thread * 20 + round).unwrap();
                    assert!(lease.iter().all(|byte| *byte == expected));
                }
            });
        }
    });
}

#[test]
fn a_client_that_leaves_is_reclaimed_and_one_with_a_hung_device_is_quarantined() {
    let sidecar = Sidecar::start();
    let watcher = Client::attach(sidecar.socket()).unwrap();
    let client = Client::attach(sidecar.socket()).unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let queue = client.open_queue(8).unwrap();
    sidecar.switches.hold_detach.on();
    drop((arena, queue, client));
    eventually("quarantined", || {
        let report = watcher.status().unwrap();
        report.regions.quarantined == 1 && report.regions.quarantined_bytes == 1 << 20
    });
    let report = watcher.status().unwrap();
    assert!(report.sessions.iter().any(|one| one.state.starts_with("reclaiming: the client")));
    sidecar.switches.hold_detach.off();
    eventually("reclaimed", || {
        let report = watcher.status().unwrap();
        report.regions.arenas == 0 && report.sessions.len() == 1
    });
}

#[test]
fn a_stop_drains_what_was_accepted_and_tells_the_rest() {
    let mut sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    sidecar.switches.hold_requests.on();
    for _ in 0..4 {
        let lease = arena.lease(4096).unwrap();
        queue.submit(Request::write(&volume, 0, lease)).unwrap();
    }
    eventually("accepted", || sidecar.switches.taken.get() == 4);
    let change = || client.change_members("kv", MemberChange::Retire { members: vec![0] });
    let error = change().unwrap_err().to_string();
    assert!(error.contains("has no members to change"), "{error}");
    sidecar.handle.stop();
    eventually("draining", || {
        client.status().unwrap().sidecar.state == kvrail_protocol::SidecarState::Draining
    });
    for error in [client.open_queue(8).unwrap_err(), change().unwrap_err()] {
        let draining = matches!(error, ClientError::Denied { status: Status::Draining, .. });
        assert!(draining, "{error}");
    }
    sidecar.switches.hold_requests.off();
    let stopped = sidecar.join().unwrap();
    assert_eq!((stopped.how, stopped.pollers_left), (StoppedHow::Drained, 0));
    let mut done = Vec::new();
    assert_eq!(queue.wait_for(4, &mut done, LONG).unwrap(), 4);
    assert!(done.iter().all(|done| done.lease.is_some()), "everything settled");
    assert!(done.iter().all(|done| done.status != Status::Restarted), "{done:?}");
    eventually("the end is noticed", || {
        queue.poll(&mut done);
        client.ended().is_some()
    });
    let lease = arena.lease(4096).unwrap();
    let refused = queue.submit(Request::write(&volume, 0, lease)).unwrap_err();
    assert_eq!(refused.reason, SubmitErrorKind::SidecarGone);
    assert!(refused.into_lease().is_some());
    assert!(client.ended().unwrap().contains("everything accepted is done"));
    assert!(matches!(client.status(), Err(ClientError::SidecarGone { .. })));
    assert!(matches!(Client::attach(sidecar.socket()), Err(ClientError::NoSidecar { .. })));
}

#[test]
fn a_stop_gives_up_at_the_timeout_and_at_a_second_request() {
    for (second, how) in [(false, StoppedHow::TimedOut), (true, StoppedHow::Forced)] {
        let mut sidecar = Sidecar::start_with(|config| {
            config.policy.drain_timeout =
                if second { LONG * 10 } else { Duration::from_millis(50) };
        });
        let client = Client::attach(sidecar.socket()).unwrap();
        let volume = client.volume("kv").unwrap();
        let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
        let mut queue = client.open_queue(8).unwrap();
        sidecar.switches.hold_requests.on();
        queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
        queue.submit(Request::read(&volume, 0, arena.lease(512).unwrap())).unwrap();
        eventually("accepted", || sidecar.switches.taken.get() == 2);
        sidecar.handle.stop();
        if second {
            eventually("draining", || {
                client.status().unwrap().sidecar.state == kvrail_protocol::SidecarState::Draining
            });
            // Half a second apart, they are two requests.
            std::thread::sleep(Duration::from_millis(600));
            sidecar.handle.stop();
        }
        assert_eq!(sidecar.join().unwrap().how, how);
        let mut done = Vec::new();
        assert_eq!(queue.wait_for(9, &mut done, LONG).unwrap(), 2);
        assert!(done.iter().all(|done| done.status == Status::Restarted), "{done:?}");
        // The write's bytes are only read by hardware; the read's may still be written.
        assert_eq!(done.iter().filter(|done| done.lease.is_some()).count(), 1);
        assert_eq!(client.quarantined_bytes(), 512);
    }
}

#[test]
fn a_poller_that_dies_ends_the_sidecar_and_is_reported() {
    let mut sidecar = Sidecar::start();
    let client = Client::attach(sidecar.socket()).unwrap();
    sidecar.switches.die.on();
    let error = sidecar.join().unwrap_err();
    assert!(error.to_string().contains("ended by itself"), "{error}");
    assert!(matches!(client.status(), Err(ClientError::SidecarGone { .. })));
    assert!(client.ended().unwrap().contains("a poller of the sidecar failed"));
}

/// Cleaners of temporary folders take a socket for dead that is another network namespace's.
#[test]
fn clients_find_a_sidecar_whose_socket_was_removed() {
    let sidecar = Sidecar::start();
    let before = Client::attach(sidecar.socket()).unwrap();
    std::fs::remove_file(sidecar.socket()).unwrap();
    eventually("bound again", || Client::attach(sidecar.socket()).is_ok());
    before.status().unwrap();
}

#[test]
fn the_memory_of_queues_counts_as_that_of_arenas() {
    const MOST: u64 = 256 << 10;
    let sidecar = Sidecar::start_with(|config| {
        config.policy.limits.arena_bytes_per_session = MOST;
    });
    let client = Client::attach(sidecar.socket()).unwrap();
    let quota = |error: ClientError| match error {
        ClientError::Denied { status: Status::Quota, message, .. } => message,
        other => panic!("{other}"),
    };
    let said = quota(client.open_queue(256).unwrap_err());
    assert!(said.contains("limits.arena_bytes_per_session"), "{said}");
    let queue = client.open_queue(64).unwrap();
    let whole = usize::try_from(MOST).unwrap();
    let said = quota(client.create_arena(whole, Pages::Base).unwrap_err());
    assert!(said.contains("its queues have"), "{said}");
    queue.close(LONG).unwrap();
    client.create_arena(whole, Pages::Base).unwrap();
}
