//! Descriptors whose close blocks: TCP sockets with SO_LINGER and unsent data. The close of the
//! last copy blocks for the lingering time, unless the reader takes the data.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use kvrail_protocol::ControlRequest;
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};

use super::Target;
use crate::rude::{Rude, hello, pause};

/// How long a close of one of them waits.
const LINGER: Duration = Duration::from_secs(60);

/// Sockets whose readers live: the oldest reader goes when there are more, and ends one wait.
const READERS: usize = 200;

/// How long an attack waits for the sidecar to finish with it.
const PATIENCE: Duration = Duration::from_millis(200);

/// Packets in a queue that is never read.
const UNREAD: usize = 8;

/// Makes such sockets.
struct Lingering {
    listener: TcpListener,
    readers: VecDeque<TcpStream>,
}

impl Lingering {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        set_socket_recv_buffer_size(&listener, 4096).expect("our socket");
        Self { listener, readers: VecDeque::new() }
    }

    fn make(&mut self) -> TcpStream {
        let address = self.listener.local_addr().expect("it listens");
        let mut socket = TcpStream::connect(address).expect("it listens");
        set_socket_send_buffer_size(&socket, 4096).expect("our socket");
        set_socket_linger(&socket, Some(LINGER)).expect("our socket");
        socket.set_nonblocking(true).expect("our socket");
        while socket.write(&[0; 65_536]).is_ok() {}
        if self.readers.len() == READERS {
            self.readers.pop_front();
        }
        self.readers.push_back(self.listener.accept().expect("it has connected").0);
        socket
    }

    /// Sends one with a request. The sidecar soon has the only copy.
    fn send(&mut self, rude: &mut Rude, ask: ControlRequest) {
        let socket = self.make();
        if rude.send(ask, &[socket.as_fd()]).is_err() {
            // The session is closed, or too many are in flight: this is the last copy.
            set_socket_linger(&socket, None).expect("our socket");
            pause();
        }
        // If the sidecar was faster, this close blocks instead.
        std::thread::spawn(move || drop(socket));
    }
}

/// With a first message that is no hello.
pub(crate) fn before_hello(target: &Target) -> u64 {
    repeat(target, |lingering| {
        let mut rude = Rude::connect(&target.socket);
        lingering.send(&mut rude, ControlRequest::Status);
        rude.wait_for_the_end(PATIENCE);
    })
}

/// With a request that takes no descriptors.
pub(crate) fn surplus(target: &Target) -> u64 {
    repeat(target, |lingering| {
        let Some(mut rude) = Rude::try_attach(&target.socket) else { return pause() };
        lingering.send(&mut rude, ControlRequest::Status);
        rude.wait_for_the_end(PATIENCE);
    })
}

/// In packets behind a hello, which stay unread once the socket is closed; a user that may not
/// attach can send them, too.
pub(crate) fn unread(target: &Target) -> u64 {
    repeat(target, |lingering| {
        let mut rude = Rude::connect(&target.socket);
        for _ in 0..UNREAD {
            lingering.send(&mut rude, hello());
        }
    })
}

/// As memory for an arena.
pub(crate) fn arena(target: &Target) -> u64 {
    let mut lingering = Lingering::new();
    bring(target, |rude, ask| lingering.send(rude, ask))
}

/// A file of a file system that answers no FLUSH, as memory for an arena: each close of a copy
/// waits for an answer. This process closes none.
pub(crate) fn file(target: &Target) -> u64 {
    let file = File::open(target.file.as_ref().expect("FILE")).expect("a file");
    bring(target, |rude, ask| {
        if rude.send(ask, &[file.as_fd()]).is_err() {
            pause();
        }
    })
}

/// Sends one arena after the other, while the sidecar accepts sessions.
fn bring(target: &Target, mut send: impl FnMut(&mut Rude, ControlRequest)) -> u64 {
    let mut rude = None;
    let mut rounds = 0;
    while target.time_is_left() {
        match &mut rude {
            Some(open) => {
                send(open, ControlRequest::ImportArena { bytes: 4096 });
                if open.receive().is_err() {
                    rude = None;
                }
            }
            None => {
                pause();
                rude = Rude::try_attach(&target.socket);
            }
        }
        rounds += 1;
    }
    rounds
}

fn repeat(target: &Target, mut round: impl FnMut(&mut Lingering)) -> u64 {
    let mut lingering = Lingering::new();
    let mut rounds = 0;
    while target.time_is_left() {
        round(&mut lingering);
        rounds += 1;
    }
    rounds
}
