//! Descriptors with a slow close: TCP sockets with unread data, and a minute of lingering. They
//! delay only their sender, whatever way they are sent.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use kvrail_client::{Client, Pages};
use kvrail_protocol::{Channel, ClientMessage, ControlReply, ControlRequest, SidecarMessage};
use kvrail_session::{Access, Porter};
use rustix::net::sockopt::set_socket_linger;

use crate::hostile::Rude;
use crate::sidecar::{PORTER, Sidecar, eventually};

/// How long each close waits.
const LINGER: Duration = Duration::from_secs(60);

/// A socket whose last close waits, and the peer that never reads.
struct Lingering(OwnedFd, TcpStream);

impl Lingering {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (deaf, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        while socket.write(&[0; 1 << 16]).is_ok() {}
        set_socket_linger(&socket, Some(LINGER)).unwrap();
        Self(socket.into(), deaf)
    }

    /// Sends it `times` times; the queue holds the only references to it.
    fn send(self, channel: &Channel, ask: &ControlRequest, times: usize) -> TcpStream {
        let message = ClientMessage { seq: 77, ask: ask.clone() };
        let _cut_off = channel.send(&message, &vec![self.0.as_fd(); times]);
        // This close waits where it is the last: the sidecar may have been faster.
        std::thread::spawn(move || drop(self.0));
        self.1
    }
}

/// Everything that needs the control thread is done before a close has waited.
fn serves_at_once(sidecar: &Sidecar) {
    let start = Instant::now();
    let client = Client::attach(sidecar.socket()).unwrap();
    client.status().unwrap();
    let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
    let queue = client.open_queue(8).unwrap();
    drop(queue);
    arena.detach().unwrap();
    assert!(start.elapsed() < LINGER, "{:?}", start.elapsed());
}

/// It ends before a close has waited, whatever lies in its queues.
fn stops_at_once(sidecar: Sidecar) {
    let start = Instant::now();
    drop(sidecar);
    assert!(start.elapsed() < LINGER, "{:?}", start.elapsed());
}

const BRING: ControlRequest = ControlRequest::ImportArena { bytes: 4096 };

#[test]
fn before_the_hello_and_with_what_takes_none() {
    let sidecar = Sidecar::start();
    let mut deaf = Vec::new();
    for _ in 0..3 {
        let stranger = Channel::connect(&sidecar.socket()).unwrap();
        deaf.push(Lingering::new().send(&stranger, &BRING, 1));
        drop(stranger);
        serves_at_once(&sidecar);
        let mut rude = Rude::attach(&sidecar);
        deaf.push(Lingering::new().send(rude.channel(), &ControlRequest::Status, 1));
        assert!(rude.hear_closing().contains("descriptors"));
        serves_at_once(&sidecar);
        rude = Rude::attach(&sidecar);
        deaf.push(Lingering::new().send(rude.channel(), &BRING, 7));
        assert!(rude.hear_closing().contains("7 descriptors"));
        serves_at_once(&sidecar);
    }
    stops_at_once(sidecar);
}

#[test]
fn imported_as_an_arena() {
    let sidecar = Sidecar::start();
    let mut rude = Rude::attach(&sidecar);
    let mut deaf = Vec::new();
    for _ in 0..3 {
        deaf.push(Lingering::new().send(rude.channel(), &BRING, 1));
        match rude.hear_answer() {
            ControlReply::Error { message, .. } => {
                assert!(message.contains("socket:["), "{message}")
            }
            other => panic!("{other:?}"),
        }
        serves_at_once(&sidecar);
    }
    let answer = rude.ask(ControlRequest::Status, &[]);
    let status = matches!(answer, SidecarMessage::Reply { answer: ControlReply::Status(_), .. });
    assert!(status, "the session goes on: {answer:?}");
    stops_at_once(sidecar);
}

/// A process limit is no fault of the client's: the import is refused, the session goes on once
/// what came with it is gone, and nothing that lingers was closed here.
#[test]
fn while_no_process_can_be_started() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("porter");
    let sidecar = Sidecar::start_with(|config| config.porter = Porter::new(&program, &PORTER));
    let mut rude = Rude::attach(&sidecar);
    let _deaf = Lingering::new().send(rude.channel(), &BRING, 1);
    match rude.hear_answer() {
        ControlReply::Error { message, .. } => assert!(message.contains("TasksMax"), "{message}"),
        other => panic!("{other:?}"),
    }
    serves_at_once(&sidecar);
    std::os::unix::fs::symlink(std::env::current_exe().unwrap(), &program).unwrap();
    let answer = rude.ask(ControlRequest::Status, &[]);
    let status = matches!(answer, SidecarMessage::Reply { answer: ControlReply::Status(_), .. });
    assert!(status, "the session goes on: {answer:?}");
    stops_at_once(sidecar);
}

#[test]
fn in_a_queue_that_nobody_reads() {
    let sidecar = Sidecar::start();
    let watcher = Client::attach(sidecar.socket()).unwrap();
    let mut deaf = Vec::new();
    for _ in 0..20 {
        // The first word ends the session; what lies behind it is never read.
        let behind = [(); 3].map(|()| Lingering::new());
        let rude = Rude::attach(&sidecar);
        rude.channel().send(&"no message", &[]).unwrap();
        deaf.extend(behind.map(|lingering| lingering.send(rude.channel(), &BRING, 1)));
    }
    serves_at_once(&sidecar);
    eventually("all reclaimed", || watcher.status().unwrap().sessions.len() == 1);
    // One more that is attached, and one that waits at the door, when the sidecar stops.
    let rude = Rude::attach(&sidecar);
    deaf.push(Lingering::new().send(rude.channel(), &BRING, 1));
    let late = Channel::connect(&sidecar.socket()).unwrap();
    deaf.push(Lingering::new().send(&late, &BRING, 1));
    stops_at_once(sidecar);
}

#[test]
fn from_users_that_may_not_attach() {
    let sidecar = Sidecar::start_with(|config| {
        config.policy.access = Access { uids: vec![12_345], ..Access::default() };
    });
    let mut deaf = Vec::new();
    for _ in 0..20 {
        let lingering = Lingering::new();
        let stranger = Channel::connect(&sidecar.socket()).unwrap();
        deaf.push(lingering.send(&stranger, &BRING, 1));
    }
    let start = Instant::now();
    for _ in 0..20 {
        let error = Client::attach(sidecar.socket()).unwrap_err().to_string();
        assert!(error.contains("sidecar.allow_uids"), "{error}");
    }
    assert!(start.elapsed() < LINGER, "{:?}", start.elapsed());
    stops_at_once(sidecar);
}
