//! A poller that does not turn: its clients get answers, and nothing of what it has is given back
//! before it turns again.

use std::time::Duration;

use crate::sidecar::{STRIPE, Sidecar, eventually};
use kvrail_client::{Client, ClientError, Pages, Request, Status};
use kvrail_device::{Fault, FaultPlan, Rule};
use kvrail_session::Patience;

const LONG: Duration = Duration::from_secs(10);

/// A sidecar that loses patience soon.
fn impatient() -> Sidecar {
    Sidecar::start_with(|config| {
        let stall_after = Duration::from_millis(200);
        config.policy.patience = Patience { stall_after, ..Patience::default() };
    })
}

/// Keeps a poller from turning, and waits until that is seen.
fn stall(sidecar: &Sidecar, poller: usize) {
    sidecar.switches.stall[poller].on();
    let watcher = Client::attach(sidecar.socket()).unwrap();
    eventually("the stall is seen", || watcher.status().unwrap().pollers[poller].stalled.is_some());
}

fn turn_again(sidecar: &Sidecar, poller: usize) {
    sidecar.switches.stall[poller].off();
    let watcher = Client::attach(sidecar.socket()).unwrap();
    eventually("the poller turns again", || {
        watcher.status().unwrap().pollers[poller].stalled.is_none()
    });
}

fn words<T>(outcome: Result<T, ClientError>) -> String {
    match outcome {
        Err(ClientError::Denied { status: Status::DeviceDegraded, message, .. }) => message,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it was done"),
    }
}

#[test]
fn clients_of_other_devices_come_work_and_go_beside_a_stalled_poller() {
    let sidecar = impatient();
    stall(&sidecar, 1);
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    queue.submit(Request::write(&volume, 0, arena.lease(4096).unwrap())).unwrap();
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    // The stalled poller's request waits in its lane, with memory that the poller does not have
    // yet.
    queue.submit(Request::write(&volume, STRIPE, arena.lease(4096).unwrap())).unwrap();
    assert!(queue.wait(Duration::from_millis(100)).unwrap().is_none());
    turn_again(&sidecar, 1);
    assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    queue.close(LONG).unwrap();
    arena.detach().unwrap();
}

#[test]
fn what_a_stalled_poller_has_is_kept_and_its_client_told() {
    let sidecar = impatient();
    let client = Client::attach(sidecar.socket()).unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let queue = client.open_queue(8).unwrap();
    stall(&sidecar, 1);
    for _ in 0..2 {
        let said = words(arena.detach());
        for word in ["arena", "poller 1 (stalled", "turns again", "kvrail status"] {
            assert!(said.contains(word), "no {word:?} in {said}");
        }
    }
    let said = words(queue.close(LONG));
    assert!(said.contains("queue 0") && said.contains("poller 1 (stalled"), "{said}");
    let report = client.status().unwrap();
    assert_eq!((report.regions.arenas, report.sessions[0].queues), (1, 1), "kept");
    turn_again(&sidecar, 1);
    eventually("all is given back", || {
        let report = client.status().unwrap();
        (report.regions.arenas, report.sessions[0].queues) == (0, 0)
    });
    let switches = &sidecar.switches;
    assert_eq!((switches.attached.get(), switches.detached.get()), (2, 2));
}

#[test]
fn a_dead_client_is_shown_with_the_poller_that_keeps_it() {
    let sidecar = impatient();
    let client = Client::attach(sidecar.socket()).unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    stall(&sidecar, 1);
    drop((arena, client));
    let watcher = Client::attach(sidecar.socket()).unwrap();
    eventually("it waits for the stalled one alone", || {
        let report = watcher.status().unwrap();
        let mut states = report.sessions.iter().map(|session| session.state.as_str());
        states.any(|state| {
            state.starts_with("reclaiming") && state.contains("; waiting for poller 1 (stalled")
        })
    });
    assert_eq!(watcher.status().unwrap().regions.quarantined, 1);
    turn_again(&sidecar, 1);
    eventually("it is gone", || watcher.status().unwrap().sessions.len() == 1);
    assert_eq!(watcher.status().unwrap().regions.arenas, 0);
}

#[test]
fn a_poller_that_turns_again_and_cannot_ends_the_session_with_the_reason() {
    let sidecar = impatient();
    stall(&sidecar, 1);
    sidecar.switches.refuse_attach.on();
    let client = Client::attach(sidecar.socket()).unwrap();
    let _arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    turn_again(&sidecar, 1);
    let mut queue = None;
    eventually("the client is notified", || match client.open_queue(8) {
        Ok(opened) => {
            queue = Some(opened);
            false
        }
        Err(ClientError::SidecarGone { reason: why }) => {
            assert!(why.contains("poller 1 turns again") && why.contains("memlock"), "{why}");
            true
        }
        Err(other) => panic!("{other}"),
    });
    let watcher = Client::attach(sidecar.socket()).unwrap();
    eventually("nothing is left", || {
        let report = watcher.status().unwrap();
        (report.sessions.len(), report.regions.arenas) == (1, 0)
    });
}

#[test]
fn an_arena_that_a_healthy_poller_refuses_is_refused_beside_a_stalled_one() {
    let sidecar = impatient();
    stall(&sidecar, 0);
    sidecar.switches.refuse_attach.on();
    let client = Client::attach(sidecar.socket()).unwrap();
    let refused = client.create_arena(1 << 20, Pages::Base).unwrap_err().to_string();
    assert!(refused.contains("memlock"), "{refused}");
    assert_eq!(client.status().unwrap().regions.arenas, 1, "kept until the other one turns");
    turn_again(&sidecar, 0);
    eventually("it is given back", || client.status().unwrap().regions.arenas == 0);
    let switches = &sidecar.switches;
    assert_eq!(switches.attached.get(), switches.detached.get());
}

#[test]
fn requests_that_hang_are_counted_with_the_age_of_the_oldest() {
    let overdue_after = Duration::from_millis(300);
    let (sidecar, controls) = Sidecar::start_real(
        |config| config.policy.patience = Patience { overdue_after, ..Patience::default() },
        |member| match member {
            1 => FaultPlan::none().with(Rule::always(Fault::Hang).times(3)),
            _ => FaultPlan::none(),
        },
    );
    let client = Client::attach(sidecar.socket()).unwrap();
    let volume = client.volume("kv").unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let mut queue = client.open_queue(8).unwrap();
    for _ in 0..3 {
        queue.submit(Request::read(&volume, STRIPE, arena.lease(4096).unwrap())).unwrap();
    }
    let device = || client.status().unwrap().devices[1].clone();
    eventually("the device is named", || device().counters.overdue == Some(3));
    let seen = device();
    assert!(seen.oldest_ms >= 300 && seen.counters.in_flight == Some(3), "{seen:?}");
    let others = client.status().unwrap().devices;
    assert_eq!((others[0].counters.overdue, others[0].oldest_ms), (Some(0), 0));
    assert!(client.status().unwrap().pollers.iter().all(|poller| poller.stalled.is_none()));
    controls[2].release();
    for _ in 0..3 {
        assert_eq!(queue.wait(LONG).unwrap().unwrap().status, Status::Ok);
    }
    eventually("it is over", || (device().counters.overdue, device().oldest_ms) == (Some(0), 0));
}
