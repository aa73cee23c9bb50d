//! Control calls: answers find their askers, silence ends at the timeout.

use std::os::fd::AsFd;
use std::time::Duration;

use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, PacketBuffer, Pages,
    SidecarMessage,
};
use kvrail_ring::{Doorbell, Status};

use super::rig::{LONG, geometry, welcome};
use crate::arena::Arena;
use crate::client::Client;
use crate::done::Completed;
use crate::error::ClientError;
use crate::lease::Lease;
use crate::queue::Queue;
use crate::volume::Volume;

fn connected(timeout: Duration) -> (Client, Channel) {
    let (ours, theirs) = Channel::pair().unwrap();
    (Client::assemble(ours, welcome(geometry(1, 4096), 1, 0), timeout).unwrap(), theirs)
}

fn hear(socket: &Channel) -> ClientMessage {
    loop {
        match socket.receive(&mut PacketBuffer::default(), 1) {
            Ok(packet) => return packet.message,
            Err(ChannelError::WouldBlock) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn say(socket: &Channel, seq: u64, answer: ControlReply) {
    socket.send(&SidecarMessage::Reply { seq, answer }, &[]).unwrap();
}

#[test]
fn answers_find_their_askers_in_any_order() {
    let (client, socket) = connected(LONG);
    std::thread::scope(|scope| {
        let askers: Vec<_> =
            (0..8).map(|_| scope.spawn(|| client.open_queue(2).unwrap_err())).collect();
        let mut asks: Vec<_> = (0..8).map(|_| hear(&socket)).collect();
        asks.reverse();
        for ask in asks {
            let message = format!("number {}", ask.seq);
            say(&socket, ask.seq, ControlReply::Error { status: Status::Quota, message });
        }
        let mut told: Vec<String> =
            askers.into_iter().map(|asker| asker.join().unwrap().to_string()).collect();
        told.sort_unstable();
        told.dedup();
        assert_eq!(told.len(), 8, "each its own: {told:?}");
    });
}

#[test]
fn an_older_sidecar_is_not_asked_what_it_lacks() {
    let (ours, socket) = Channel::pair().unwrap();
    let mut welcome = welcome(geometry(1, 4096), 1, 0);
    (welcome.protocol.minor, welcome.sidecar) = (0, "0.0.9".into());
    let client = Client::assemble(ours, welcome, LONG).unwrap();
    let error = client.trace(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error, ClientError::TooOld { .. }), "{error}");
    let words = error.to_string();
    for word in ["slow requests", "sidecar (0.0.9) is too old", "2.0", "2.1", "upgrade it"] {
        assert!(words.contains(word), "no {word:?} in {words}");
    }
    // The session goes on, and that was never sent.
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| client.open_queue(2).unwrap_err());
        let ask = hear(&socket);
        assert!(matches!(ask.ask, ControlRequest::OpenQueue { .. }), "{ask:?}");
        let message = "not now".into();
        say(&socket, ask.seq, ControlReply::Error { status: Status::Quota, message });
        assert!(asker.join().unwrap().to_string().contains("not now"));
    });
}

#[test]
fn a_sidecar_whose_kernel_shows_no_end_of_transfers_is_no_failure() {
    let (client, socket) = connected(LONG);
    std::thread::scope(|scope| {
        for (status, is_failure) in [(Status::Invalid, false), (Status::Quota, true)] {
            let asker = scope.spawn(|| client.watch_transfers());
            let ask = hear(&socket);
            let message = "nothing shows it".into();
            say(&socket, ask.seq, ControlReply::Error { status, message });
            let watch = asker.join().unwrap();
            assert_eq!(watch.is_err(), is_failure, "{watch:?}");
            assert!(watch.is_err() || watch.is_ok_and(|pipe| pipe.is_none()));
        }
    });
}

#[test]
fn silence_ends_at_the_timeout_and_a_late_answer_confuses_nobody() {
    let (client, socket) = connected(Duration::from_millis(20));
    let error = client.status().unwrap_err();
    assert!(matches!(error, ClientError::Timeout { .. }), "{error}");
    let late = hear(&socket).seq;
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| client.open_queue(2).unwrap_err());
        let next = hear(&socket);
        assert!(matches!(next.ask, ControlRequest::OpenQueue { depth: 2, tails: None }));
        let error =
            |message: &str| ControlReply::Error { status: Status::Quota, message: message.into() };
        say(&socket, late, error("late"));
        say(&socket, next.seq, error("in time"));
        assert!(asker.join().unwrap().to_string().contains("in time"));
    });
}

#[test]
fn an_answer_that_makes_no_sense_is_an_error() {
    let (client, socket) = connected(LONG);
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| client.status().unwrap_err());
        let seq = hear(&socket).seq;
        say(&socket, seq, ControlReply::Detached { region: 1 });
        assert!(matches!(asker.join().unwrap(), ClientError::Protocol { .. }));
    });
    socket.send(&"nonsense", &[]).unwrap();
    assert!(matches!(client.status(), Err(ClientError::SidecarGone { .. })));
}

#[test]
fn memory_that_cannot_be_mapped_is_detached_again() {
    let (client, socket) = connected(LONG);
    let file = Doorbell::eventfd().unwrap(); // no memory
    let answer = ControlReply::Arena { region: 5, bytes: 4096, page_bytes: 4096, note: None };
    std::thread::scope(|scope| {
        let asker = scope.spawn(|| client.create_arena(4096, Pages::Auto).unwrap_err());
        let seq = hear(&socket).seq;
        socket.send(&SidecarMessage::Reply { seq, answer }, &[file.as_fd()]).unwrap();
        assert!(matches!(asker.join().unwrap(), ClientError::Memory(_)));
    });
    let next = socket.receive::<ClientMessage>(&mut PacketBuffer::default(), 1).unwrap();
    assert!(matches!(next.message.ask, ControlRequest::DetachArena { region: 5 }));
}

#[test]
fn the_last_handle_says_bye() {
    let (client, socket) = connected(LONG);
    let clone = client.clone();
    drop(client);
    let quiet = socket.receive::<ClientMessage>(&mut PacketBuffer::default(), 1);
    assert!(matches!(quiet, Err(ChannelError::WouldBlock)));
    drop(clone);
    assert!(matches!(hear(&socket).ask, ControlRequest::Bye));
}

#[test]
fn handles_go_where_their_documentation_says() {
    fn everywhere<T: Send + Sync>() {}
    fn to_a_thread<T: Send>() {}
    everywhere::<Client>();
    everywhere::<Arena>();
    everywhere::<Volume>();
    to_a_thread::<Queue>();
    to_a_thread::<Lease>();
    to_a_thread::<Completed>();
}

#[test]
fn nobody_home_is_told_with_the_remedy() {
    let error = Client::attach("/nonexistent/kvrail.sock").unwrap_err();
    assert!(error.to_string().contains("kvrail serve"), "{error}");
}
