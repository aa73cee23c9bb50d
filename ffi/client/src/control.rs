//! The session socket, shared by all threads of a client: requests go out, answers find their
//! caller.
//!
//! One of the threads that wait reads for all; the others sleep on a condition variable. So a
//! detach that takes long does not keep another thread from opening a queue.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kvrail_protocol::{
    Channel, ChannelError, ClientMessage, ControlReply, ControlRequest, FDS_MAX, Hardware, Packet,
    PacketBuffer, SidecarMessage, Version, Welcome, unspill,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::attach::HELLO_SEQ;
use crate::error::ClientError;

/// How a session ended.
#[derive(Debug)]
pub(crate) struct SessionEnd {
    pub(crate) reason: String,
    pub(crate) hardware: Hardware,
}

#[derive(Debug, Default)]
struct ControlState {
    buffer: PacketBuffer,
    last_seq: u64,
    /// Requests whose callers still wait.
    wanted: HashSet<u64>,
    answers: HashMap<u64, Packet<ControlReply>>,
    /// A thread is waiting at the socket for all.
    reading: bool,
}

/// The client's end of the session socket.
#[derive(Debug)]
pub(crate) struct Control {
    channel: Channel,
    /// What both sides speak.
    protocol: Version,
    /// The sidecar's release.
    sidecar: String,
    state: Mutex<ControlState>,
    news: Condvar,
    timeout: Duration,
    pid: u32,
    ended: OnceLock<SessionEnd>,
    gone: AtomicBool,
    begun: Instant,
    /// When the socket was looked at for `was_seen`, since `begun`.
    seen_us: AtomicU64,
    /// Hints of puts and lookups that the sidecar does not take.
    dropped_hints: AtomicU64,
}

/// How long a look at the socket counts.
const SEEN_US: u64 = 1000;

impl Control {
    /// What both sides speak.
    pub(crate) fn protocol(&self) -> Version {
        self.protocol
    }

    /// Whether the sidecar takes a hint; one that it does not take is counted.
    pub(crate) fn takes_hint(&self) -> bool {
        let takes = self.protocol.takes_hints();
        if !takes {
            self.dropped_hints.fetch_add(1, Ordering::Relaxed); // a count of its own
        }
        takes
    }

    /// Hints that the sidecar did not take.
    pub(crate) fn dropped_hints(&self) -> u64 {
        self.dropped_hints.load(Ordering::Relaxed) // a count of its own
    }

    /// Over a connection that was let in.
    pub(crate) fn new(channel: Channel, welcome: &Welcome, timeout: Duration) -> Self {
        Self {
            channel,
            protocol: welcome.protocol,
            sidecar: welcome.sidecar.clone(),
            state: Mutex::new(ControlState { last_seq: HELLO_SEQ, ..ControlState::default() }),
            news: Condvar::new(),
            timeout,
            pid: std::process::id(),
            ended: OnceLock::new(),
            gone: AtomicBool::new(false),
            begun: Instant::now(),
            seen_us: AtomicU64::new(0),
            dropped_hints: AtomicU64::new(0),
        }
    }

    /// Sends a request and waits for the answer, up to the timeout of the attach options.
    pub(crate) fn call(
        &self,
        what: &'static str,
        ask: ControlRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Packet<ControlReply>, ClientError> {
        let seq = self.post(what, ask, fds)?;
        self.answer(what, seq, Some(self.timeout))
    }

    /// Sends a request and waits for the answer, up to this time and the attach options' timeout.
    pub(crate) fn call_within(
        &self,
        limit: Duration,
        what: &'static str,
        ask: ControlRequest,
    ) -> Result<Packet<ControlReply>, ClientError> {
        let seq = self.post(what, ask, &[])?;
        self.answer(what, seq, Some(limit.min(self.timeout)))
    }

    /// Sends a request and waits for the answer while the sidecar lives.
    pub(crate) fn call_patiently(
        &self,
        what: &'static str,
        ask: ControlRequest,
    ) -> Result<Packet<ControlReply>, ClientError> {
        let seq = self.post(what, ask, &[])?;
        self.answer(what, seq, None)
    }

    /// Sends a request without waiting for an answer. For the last message of an object that is
    /// dropped.
    pub(crate) fn call_and_forget(&self, ask: ControlRequest) {
        if let Ok(seq) = self.post("", ask, &[]) {
            self.lock().wanted.remove(&seq);
        }
    }

    /// How long answers are waited for.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Whether the session has ended, as far as anybody noticed.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) // pairs with Release in `finish`
    }

    /// How it ended.
    pub(crate) fn ended(&self) -> Option<&SessionEnd> {
        self.ended.get()
    }

    pub(crate) fn gone_error(&self) -> ClientError {
        let reason = self.ended().map_or("the session has ended", |ended| &ended.reason);
        ClientError::SidecarGone { reason: reason.to_owned() }
    }

    /// Looks whether the sidecar's end of the socket is closed. One system call.
    pub(crate) fn look(&self) -> bool {
        let mut fds = [PollFd::new(&self.channel, PollFlags::RDHUP)];
        let seen = poll(&mut fds, Some(&Timespec::default()));
        let hung_up = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        if matches!(seen, Ok(1..)) && fds[0].revents().intersects(hung_up) {
            self.absorb(&mut self.lock());
        }
        self.is_gone()
    }

    /// Whether the sidecar lives, by a look at the socket in the last millisecond. The next one
    /// takes longer to serve this one's blocks.
    pub(crate) fn was_seen(&self) -> bool {
        if self.is_gone() {
            return false;
        }
        let now_us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        // Relaxed: two threads that look at once do no harm.
        if now_us < self.seen_us.load(Ordering::Relaxed).saturating_add(SEEN_US) {
            return true;
        }
        let gone = self.look();
        self.seen_us.store(now_us, Ordering::Relaxed);
        !gone
    }

    /// Whether this is still the process that attached.
    pub(crate) fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }

    fn lock(&self) -> MutexGuard<'_, ControlState> {
        // Nothing under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(
        &self,
        what: &'static str,
        ask: ControlRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<u64, ClientError> {
        if !self.is_ours() {
            return Err(ClientError::Forked);
        }
        self.check_known(what, &ask)?;
        let deadline = Instant::now() + self.timeout;
        let mut message = ClientMessage { seq: 0, ask };
        loop {
            let mut state = self.lock();
            if self.is_gone() {
                return Err(self.gone_error());
            }
            message.seq = state.last_seq + 1;
            match self.channel.send_ask(&message, fds) {
                Ok(()) => {
                    state.last_seq = message.seq;
                    state.wanted.insert(message.seq);
                    return Ok(message.seq);
                }
                Err(ChannelError::WouldBlock) => {
                    drop(state);
                    let now = Instant::now();
                    if now >= deadline {
                        return Err(ClientError::Timeout { what, after: self.timeout });
                    }
                    self.pause(PollFlags::OUT, Some(deadline - now));
                }
                Err(ChannelError::Closed) => self.absorb(&mut state),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A request that the sidecar's release lacks would end the session.
    fn check_known(&self, what: &'static str, ask: &ControlRequest) -> Result<(), ClientError> {
        let (speaks, minor) = (self.protocol, ask.minor());
        if minor <= speaks.minor {
            return Ok(());
        }
        let (sidecar, needs) = (self.sidecar.clone(), Version { minor, ..speaks });
        Err(ClientError::TooOld { what, sidecar, speaks, needs })
    }

    fn answer(
        &self,
        what: &'static str,
        seq: u64,
        limit: Option<Duration>,
    ) -> Result<Packet<ControlReply>, ClientError> {
        let begun = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(packet) = state.answers.remove(&seq) {
                state.wanted.remove(&seq);
                return match packet.message {
                    ControlReply::Error { status, message } => {
                        Err(ClientError::Denied { what, status, message })
                    }
                    message => Ok(Packet { message, fds: packet.fds }),
                };
            }
            if self.is_gone() {
                state.wanted.remove(&seq);
                return Err(self.gone_error());
            }
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            if let (Some(Duration::ZERO), Some(after)) = (left, limit) {
                state.wanted.remove(&seq);
                return Err(ClientError::Timeout { what, after });
            }
            state = self.wait(state, left);
        }
    }

    /// Waits for something new: at the socket, or for the thread that waits there.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, ControlState>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, ControlState> {
        if state.reading {
            let left = left.unwrap_or(Duration::from_secs(3600));
            let woken = self.news.wait_timeout(state, left);
            return woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.reading = true;
        drop(state);
        self.pause(PollFlags::IN, left);
        let mut state = self.lock();
        state.reading = false;
        self.absorb(&mut state);
        self.news.notify_all();
        state
    }

    fn pause(&self, flags: PollFlags, left: Option<Duration>) {
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::new(&self.channel, flags)];
        let _woken = poll(&mut fds, left.as_ref()); // EINTR: the caller looks and comes again
    }

    /// Takes everything that has arrived.
    fn absorb(&self, state: &mut ControlState) {
        loop {
            let packet = self.channel.receive::<SidecarMessage>(&mut state.buffer, FDS_MAX);
            let Packet { message, fds } = match packet.and_then(unspill) {
                Ok(packet) => packet,
                Err(ChannelError::WouldBlock) => return,
                Err(ChannelError::Closed) => {
                    let reason = "the sidecar ended or was killed: its socket is closed".into();
                    return self.finish(reason, Hardware::MayBeActive);
                }
                Err(error) => return self.finish(error.to_string(), Hardware::MayBeActive),
            };
            match message {
                SidecarMessage::Reply { seq, answer } => {
                    // Of a request that was given up: its descriptors are closed here.
                    if state.wanted.contains(&seq) {
                        state.answers.insert(seq, Packet { message: answer, fds });
                    }
                }
                SidecarMessage::Closing { reason, hardware } => self.finish(reason, hardware),
                SidecarMessage::Spilled { .. } => {}
            }
        }
    }

    /// Remembers how it ended; the first word counts.
    fn finish(&self, reason: String, hardware: Hardware) {
        let _known = self.ended.set(SessionEnd { reason, hardware });
        self.gone.store(true, Ordering::Release); // pairs with Acquire in `is_gone`
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.is_ours() {
            self.call_and_forget(ControlRequest::Bye);
        }
    }
}
