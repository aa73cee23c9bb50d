//! A client that implements the protocol itself, so that it can break it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_memory::{Pinned, Region, Sealing};
use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, Hello,
    PacketBuffer, RefusalCode, SidecarMessage, Version,
};
use kvrail_ring::limits::LANE_VERSION;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};

/// Longest wait for an answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A session that does not keep the rules.
pub(crate) struct Rude {
    pub(crate) channel: Channel,
    seq: u64,
}

/// A queue as the sidecar sends it: memory and descriptors.
pub(crate) struct RawQueue {
    pub(crate) memory: Arc<dyn Pinned>,
    pub(crate) segment: OwnedFd,
    pub(crate) bell: OwnedFd,
    pub(crate) doorbells: Vec<OwnedFd>,
}

impl Rude {
    /// Connects; the sidecar's queue of connections may be full for a moment.
    pub(crate) fn connect(path: &Path) -> Self {
        let start = Instant::now();
        loop {
            match Channel::connect(path) {
                Ok(channel) => return Self { channel, seq: 0 },
                Err(ChannelError::WouldBlock) if start.elapsed() < PATIENCE => pause(),
                Err(error) => panic!("connecting: {error}"),
            }
        }
    }

    /// Connects and sends the hello.
    pub(crate) fn attach(path: &Path) -> Self {
        let start = Instant::now();
        loop {
            let mut rude = Self::connect(path);
            match rude.ask(hello(), &[]).0 {
                ControlReply::Welcome(_) => return rude,
                // A user whose clients broke the rules must wait for a moment.
                ControlReply::Refused { code: RefusalCode::Full, .. }
                    if start.elapsed() < PATIENCE =>
                {
                    pause();
                }
                answer => panic!("{answer:?}"),
            }
        }
    }

    /// Connects and sends the hello; `None` when the sidecar refuses this user now.
    pub(crate) fn try_attach(path: &Path) -> Option<Self> {
        let mut rude = Self { channel: Channel::connect(path).ok()?, seq: 0 };
        rude.send(hello(), &[]).ok()?;
        match rude.receive().ok()?.0 {
            SidecarMessage::Reply { answer: ControlReply::Welcome(_), .. } => Some(rude),
            _ => None,
        }
    }

    /// Whether the sidecar has closed the session; its messages until then are dropped.
    pub(crate) fn has_ended(&self) -> bool {
        loop {
            match self.channel.receive::<SidecarMessage>(&mut PacketBuffer::default(), FDS_MAX) {
                Err(ChannelError::WouldBlock) => return false,
                Ok(_) => {}
                Err(_) => return true,
            }
        }
    }

    /// Waits until the sidecar has closed, for this time at most.
    pub(crate) fn wait_for_the_end(&self, patience: Duration) {
        let start = Instant::now();
        while !self.has_ended() && start.elapsed() < patience {
            self.wait();
        }
    }

    /// Waits for a message of the sidecar, for a short time.
    fn wait(&self) {
        let patience = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ready = poll(&mut [PollFd::new(&self.channel, PollFlags::IN)], Some(&patience));
    }

    pub(crate) fn send(
        &mut self,
        ask: ControlRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.seq += 1;
        self.channel.send_ask(&ClientMessage { seq: self.seq, ask }, fds)
    }

    /// Sends a request and waits for the answer.
    pub(crate) fn ask(
        &mut self,
        ask: ControlRequest,
        fds: &[BorrowedFd<'_>],
    ) -> (ControlReply, Vec<OwnedFd>) {
        match self.send(ask, fds) {
            // A refusal may come before the request.
            Ok(()) | Err(ChannelError::Closed) => {}
            Err(error) => panic!("asking: {error}"),
        }
        match self.receive() {
            Ok((SidecarMessage::Reply { answer, .. }, fds)) => (answer, fds),
            other => panic!("no answer but {other:?}"),
        }
    }

    pub(crate) fn receive(&self) -> Result<(SidecarMessage, Vec<OwnedFd>), ChannelError> {
        let start = Instant::now();
        loop {
            match self.channel.receive(&mut PacketBuffer::default(), FDS_MAX) {
                Err(ChannelError::WouldBlock) => {
                    assert!(start.elapsed() < PATIENCE, "the sidecar is silent");
                    self.wait();
                }
                Ok(packet) => return Ok((packet.message, packet.fds)),
                Err(error) => return Err(error),
            }
        }
    }

    /// The reason of the sidecar's closing message; waits for the close.
    pub(crate) fn expelled(&self) -> String {
        let mut reason = String::new();
        loop {
            match self.receive() {
                Ok((SidecarMessage::Closing { reason: last, .. }, _)) => reason = last,
                Ok(_) => {}
                Err(ChannelError::Closed) => return reason,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn queue(&mut self, depth: u32) -> RawQueue {
        let (answer, fds) = self.ask(ControlRequest::OpenQueue { depth, tails: None }, &[]);
        let ControlReply::Queue { queue, segment_bytes } = answer else { panic!("{answer:?}") };
        let mut fds = fds.into_iter();
        let segment = fds.next().expect("a segment");
        let bell = fds.next().expect("a bell");
        let copy = segment.try_clone().expect("a descriptor");
        let memory = Region::import_with(copy, segment_bytes, Sealing::Size);
        let memory = Arc::new(memory.expect("a sealed segment"));
        let (answer, _) = self.ask(ControlRequest::QueueMapped { queue }, &[]);
        assert!(matches!(answer, ControlReply::QueueServed { .. }), "{answer:?}");
        RawQueue { memory, segment, bell, doorbells: fds.collect() }
    }
}

/// The first message of a client of this release.
pub(crate) fn hello() -> ControlRequest {
    ControlRequest::Hello(Hello {
        protocol: Version::CURRENT,
        lane_version: LANE_VERSION,
        name: "hostile".into(),
        library: "hostile 1".into(),
    })
}

/// A blocking socket, to send packets that are no messages.
pub(crate) fn bare(path: &Path) -> OwnedFd {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let address = SocketAddrUnix::new(path).expect("a short path");
    connect(&socket, &address).expect("the sidecar listens");
    socket
}

/// Yields the core to other threads for a moment.
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_micros(200));
}

impl AsFd for Rude {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
