//! One user takes its share of the places, and no other user's.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvrail_client::{Client, ClientError, Status};
use kvrail_protocol::{Channel, RefusalCode};
use kvrail_session::Access;
use rustix::process::{Uid, geteuid};
use rustix::thread::set_thread_res_uid;

use crate::hostile::Rude;
use crate::sidecar::{Sidecar, eventually};

const NOBODY: u32 = 65_534;

/// A sidecar that treats this user and nobody alike, with `sessions_per_uid` sessions each.
fn shared(sessions_per_uid: usize) -> Sidecar {
    let sidecar = Sidecar::start_with(|config| {
        let uids = vec![geteuid().as_raw(), NOBODY];
        config.policy.access = Access { uids, ..Access::default() };
        config.policy.limits.sessions_per_uid = sessions_per_uid;
        config.policy.limits.handshake_timeout = Duration::from_secs(60); // no client is evicted
        config.socket_mode = 0o666;
    });
    for folder in [sidecar.directory.path(), sidecar.socket().parent().unwrap()] {
        std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    }
    sidecar
}

/// Runs `f` as the user `nobody`, if this user may do so.
fn as_nobody<T: Send + 'static>(
    what: &str,
    sidecar: &Sidecar,
    run: impl FnOnce(PathBuf) -> T + Send + 'static,
) -> Option<T> {
    if !geteuid().is_root() {
        println!("skipped: {what}: only root can be two users");
        return None;
    }
    let socket = sidecar.socket();
    let thread = std::thread::spawn(move || {
        let nobody = Uid::from_raw(NOBODY);
        set_thread_res_uid(Some(nobody), Some(nobody), Some(nobody)).unwrap();
        run(socket)
    });
    Some(thread.join().unwrap())
}

fn refused(error: ClientError) -> String {
    match error {
        ClientError::NotAdmitted { code: RefusalCode::Full, message } => message,
        other => panic!("{other}"),
    }
}

/// All clients that are admitted, and the refusal of the next one.
fn all_there_can_be(socket: &Path) -> (Vec<Client>, String) {
    let mut clients = Vec::new();
    loop {
        match Client::attach(socket) {
            Ok(client) => clients.push(client),
            Err(error) => return (clients, refused(error)),
        }
    }
}

#[test]
fn session_slots_and_connections_of_one_user_are_limited() {
    let sidecar = shared(2);
    let (clients, refusal) = all_there_can_be(&sidecar.socket());
    assert_eq!(clients.len(), 2 + 16, "sessions and visitors");
    let key = "limits.sessions_per_uid = 2";
    assert!(refusal.contains(key) && refusal.contains("18 connections"), "{refusal}");
    let mut queues: Vec<_> =
        clients[..2].iter().map(|client| client.open_queue(2).unwrap()).collect();
    match clients[2].open_queue(2) {
        Err(ClientError::Denied { status: Status::Quota, message, .. }) => {
            assert!(message.contains("limits.sessions_per_uid"), "{message}");
        }
        other => panic!("{}", other.is_ok()),
    }
    let report = clients[2].status().unwrap();
    assert_eq!((report.sidecar.sessions_max, report.sidecar.sessions_per_uid), (64, 2));
    as_nobody("another user's share", &sidecar, |socket| {
        let (clients, _) = all_there_can_be(&socket);
        assert_eq!(clients.len(), 18, "the same for all users");
        clients[0].open_queue(2).unwrap();
    });
    queues.clear();
    drop(clients);
    eventually("the places are free again", || {
        Client::attach(sidecar.socket()).is_ok_and(|client| client.open_queue(2).is_ok())
    });
}

#[test]
fn a_flood_of_one_user_takes_no_place_of_another() {
    let sidecar = shared(8);
    let held = as_nobody("a flood beside others", &sidecar, |socket| {
        (0..300)
            .map(|_| Channel::connect_within(&socket, Duration::from_secs(10)).unwrap())
            .collect()
    });
    let Some::<Vec<Channel>>(_held) = held else { return };
    for _ in 0..20 {
        let client = Client::attach(sidecar.socket()).expect("a place of our own");
        client.open_queue(2).expect("a session of our own");
    }
}

#[test]
fn an_operator_can_always_look() {
    let sidecar = Sidecar::start_with(|config| {
        config.policy.limits.sessions = 1;
        config.policy.limits.handshake_timeout = Duration::from_secs(60);
    });
    let clients: Vec<_> = (0..40).map(|_| Client::attach(sidecar.socket()).unwrap()).collect();
    assert_eq!(clients[39].status().unwrap().sessions.len(), 40);
}

#[test]
fn who_breaks_the_rules_too_often_waits() {
    let sidecar = shared(8);
    for _ in 0..17 {
        let rude = Rude::attach(&sidecar);
        rude.channel().send(&"no message", &[]).unwrap();
        rude.hear_closing();
    }
    let refusal = refused(Client::attach(sidecar.socket()).unwrap_err());
    assert!(refusal.contains("attach again in"), "{refusal}");
    as_nobody("others meanwhile", &sidecar, |socket| Client::attach(socket).expect("no fault"));
    eventually("forgiven", || Client::attach(sidecar.socket()).is_ok());
}
