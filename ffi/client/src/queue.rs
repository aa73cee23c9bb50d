//! A queue: one thread's lanes to all pollers, its requests in flight, and how it waits for them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_protocol::{ControlReply, ControlRequest, Hardware};
use kvrail_ring::{Doorbell, QueueSegment, Status, TimedCall, watch_hangup};

use crate::answers::{KeysAnswer, KeysName};
use crate::arena::Arena;
use crate::block_op::Verified;
use crate::block_request::Verifier;
use crate::done::{Completed, RangeEnd, Ticket};
use crate::error::ClientError;
use crate::inflight::InflightTable;
use crate::key::BlockKey;
use crate::lanes::{LaneError, QueueLanes, Until};
use crate::latencies::QueueLatencies;
use crate::lease::Lease;
use crate::route::VolumeRoute;
use crate::session::Session;
use crate::sink::CompletionSink;
use crate::store::Namespace;
use crate::submit::{NotStaged, QueueState, Submit, Submitter, stage_keys, stage_unsent};
use crate::submit_error::SubmitError;
use crate::submit_error_kind::SubmitErrorKind;
use crate::view::View;
use crate::wait::{Armed, Waiter};

/// How long the drop of a queue waits for what is in flight.
const DROP_PATIENCE: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };

/// Looks at the lanes between two looks at the clock.
const LOOKS: u32 = 16;

/// Time between two yields of a spin. The scheduler may have put this thread on its poller's CPU,
/// and the poller cannot move: without a yield it would wait for the spin's end, or for that of a
/// slice of milliseconds. A yield to nobody takes a quarter of a microsecond.
const YIELD_AFTER: Duration = Duration::from_micros(5);

/// What a queue is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) number: u32,
    pub(crate) segment: QueueSegment,
    pub(crate) wake_fd: OwnedFd,
    pub(crate) doorbells: Vec<OwnedFd>,
    pub(crate) routes: Vec<VolumeRoute>,
    /// Pages for tails of blocks, and the arena they are of.
    pub(crate) tails: (Vec<Lease>, Option<Arena>),
    pub(crate) latencies: QueueLatencies,
}

/// Submits requests and brings back their completions. For one thread at a time; open one for each
/// thread. No method but `wait`, `wait_for`, `arm` and `close` makes a system call while the
/// sidecar is awake, and none but those that fill a `Vec` allocates.
///
/// Many requests at once, without a system call while the sidecar is awake:
///
/// ```no_run
/// # use kvrail_client::{Arena, ClientError, Queue, Request, Volume};
/// # fn restore(
/// #     queue: &mut Queue, arena: &Arena, volume: &Volume, blocks: &[u64],
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut done = Vec::with_capacity(queue.capacity());
/// for batch in blocks.chunks(queue.capacity()) {
///     for offset in batch {
///         queue.stage(Request::read(volume, *offset, arena.lease(256 << 10)?))?;
///     }
///     queue.publish(); // one store for each lane
///     while queue.outstanding() > 0 {
///         queue.poll(&mut done);
///         for block in done.drain(..) {
///             // block.status, block.lease
///         }
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// Dropping a queue waits up to five seconds for what is in flight; the memory of requests that
/// take longer stays out of reach until the client itself is gone.
#[derive(Debug)]
pub struct Queue {
    session: Arc<Session>,
    number: u32,
    submitter: Submitter,
    lanes: QueueLanes,
    inflight: InflightTable,
    /// Whose pages take the tails of blocks.
    tail_arena: Option<Arena>,
    waiter: Waiter,
    /// Completed, and not yet handed to the program.
    ready: VecDeque<Completed>,
    /// What the sidecar did wrong, until the program was told.
    fault: Option<String>,
    closed: bool,
}

impl Queue {
    pub(crate) fn assemble(session: Arc<Session>, parts: Parts) -> Result<Self, ClientError> {
        let Parts { number, segment, wake_fd, doorbells, routes, tails, latencies } = parts;
        let (tails, tail_arena) = tails;
        let depth = segment.depth();
        let (lanes, sleep) = segment.into_client();
        let pollers = session.pollers();
        if lanes.len() != pollers || doorbells.len() != pollers {
            return Err(ClientError::protocol(format!(
                "a queue with {} lanes and {} doorbells for {pollers} pollers",
                lanes.len(),
                doorbells.len()
            )));
        }
        // Who waits for the bell alone hears of the session's end, too.
        watch_hangup(wake_fd.as_fd(), session.control().as_fd())
            .map_err(|errno| ClientError::protocol(format!("a bell that is no set: {errno}")))?;
        let doorbells = doorbells.into_iter().map(Doorbell::from_fd);
        Ok(Self {
            number,
            submitter: Submitter::new(session.tag(), routes),
            session,
            lanes: QueueLanes::new(lanes.into_iter().zip(doorbells)),
            inflight: InflightTable::new(depth, tails, latencies),
            tail_arena,
            waiter: Waiter::new(sleep, wake_fd),
            ready: VecDeque::with_capacity(2 * depth as usize),
            fault: None,
            closed: false,
        })
    }

    /// Pieces of requests the queue holds: a request within one stripe is one piece.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.inflight.capacity()
    }

    /// Pieces of requests that are in flight. Zero once every request has completed, though
    /// completions may still wait to be fetched by `poll` or `wait`.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.inflight.capacity() - self.inflight.room() - self.inflight.unasked()
    }

    /// Why the session has ended, if anybody noticed that it has.
    #[must_use]
    pub fn ended(&self) -> Option<&str> {
        self.session.control().ended().map(|ended| ended.reason.as_str())
    }

    /// What the sidecar did wrong, if it did. `wait` reports it once; this always.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.submitter.state() == QueueState::Broken
    }

    /// Closes the queue: waits for what is in flight, then for the sidecar to give up its side.
    /// Completions that were not fetched are dropped, with their leases.
    ///
    /// # Errors
    /// `Timeout` when requests are still in flight at the end of the time, `SidecarGone`.
    pub fn close(mut self, timeout: Duration) -> Result<(), ClientError> {
        self.drain(timeout)?;
        if self.outstanding() > 0 {
            let what = "closing a queue with requests in flight";
            return Err(ClientError::Timeout { what, after: timeout });
        }
        self.closed = true;
        let ask = ControlRequest::CloseQueue { queue: self.number };
        match self.session.control().call("closing a queue", ask, &[])?.message {
            ControlReply::QueueClosed { queue } if queue == self.number => {
                self.tail_arena.take().map_or(Ok(()), |arena| arena.detach())
            }
            other => Err(ClientError::protocol(format!("answer to a close: {other:?}"))),
        }
    }

    /// Descriptor that becomes readable when something has completed, while the queue is armed, and
    /// when the session ends. Only to be waited on, never to be read.
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.waiter.wake_fd()
    }

    /// Submits a request for a range of a volume or for a block of a store: checks it, cuts it at
    /// stripe borders, publishes it. A system call is made only to wake a sleeping poller.
    ///
    /// # Errors
    /// `SubmitError` gives the request back with the reason; nothing happened.
    #[inline(always)]
    pub fn submit<R: Submit>(&mut self, request: R) -> Result<Ticket, SubmitError<R>> {
        let ticket = self.stage(request)?;
        self.publish();
        Ok(ticket)
    }

    /// A block in the sidecar's memory tier, read where it lies: neither a request nor a read nor a
    /// copy. Verified at its first view by this store object. Nothing where the tier does not have
    /// it, or all views of this client are in use: a get has it then, or the reason.
    pub fn view(&mut self, namespace: &Namespace, key: BlockKey) -> Option<View> {
        self.view_by(namespace, key, Verifier::Queue).map(|(view, _)| view)
    }

    /// The same for a program that verifies: with the CRC-64/NVME that the bytes must have. A get
    /// reports wrong ones, if the queue verifies it.
    pub fn view_unverified(&mut self, namespace: &Namespace, key: BlockKey) -> Option<(View, u64)> {
        self.view_by(namespace, key, Verifier::Program)
    }

    fn view_by(
        &mut self,
        namespace: &Namespace,
        key: BlockKey,
        verifier: Verifier,
    ) -> Option<(View, u64)> {
        if 2 * self.inflight.room() <= self.inflight.capacity() {
            // A program that only views has no other time for the ends of its reports.
            let mut ready = std::mem::take(&mut self.ready);
            self.reap(Until::Empty, &mut ready);
            self.ready = ready;
        }
        let (lanes, inflight) = (&mut self.lanes, &mut self.inflight);
        let viewed = self.submitter.view((namespace, key), verifier, lanes, inflight);
        self.publish(); // that it was used, or is wrong
        viewed
    }

    /// Submits requests until one is refused; pushes the tickets of those submitted. All of them
    /// are published together, with one store for each lane.
    ///
    /// # Errors
    /// The first refused request; those behind it are still in the iterator.
    pub fn submit_all<R: Submit>(
        &mut self,
        requests: impl IntoIterator<Item = R>,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), SubmitError<R>> {
        let mut outcome = Ok(());
        for request in requests {
            match self.stage(request) {
                Ok(ticket) => tickets.push(ticket),
                Err(refused) => {
                    outcome = Err(refused);
                    break;
                }
            }
        }
        self.publish();
        outcome
    }

    /// Checks a request and writes it into its lanes; the sidecar sees it after `publish`. The
    /// check of a put is computed here: a pass over its bytes. What was staged earlier is published
    /// before that has passed over many.
    ///
    /// # Errors
    /// As `submit`.
    #[inline(always)]
    pub fn stage<R: Submit>(&mut self, request: R) -> Result<Ticket, SubmitError<R>> {
        match request.stage(&mut self.submitter, &mut self.lanes, &mut self.inflight) {
            Ok(ticket) => Ok(ticket),
            Err((request, why)) => self.not_staged(request, why),
        }
    }

    #[cold]
    #[inline(never)]
    fn not_staged<R: Submit>(
        &mut self,
        request: R,
        why: NotStaged,
    ) -> Result<Ticket, SubmitError<R>> {
        let reason = match why {
            NotStaged::Reason(reason) => reason,
            NotStaged::Corrupt(checksum) => return Ok(self.end_corrupt(request, checksum)),
            NotStaged::Served { bytes, crc } => return Ok(self.end_served(request, (bytes, crc))),
            NotStaged::Lane(error) => {
                self.poison_lane(error);
                SubmitErrorKind::Broken
            }
        };
        Err(SubmitError { request, reason })
    }

    /// Ends a write whose bytes are not what they should be.
    fn end_corrupt(&mut self, request: impl Submit, checksum: u64) -> Ticket {
        let (ticket, (tag, lease)) = (self.submitter.next_ticket(), request.into_parts());
        let end = RangeEnd { checksum, ..RangeEnd::bare(Status::Corrupt) };
        self.ready.push_back(end.completed(ticket, tag, lease));
        ticket
    }

    /// Ends a get that needed no request.
    fn end_served(&mut self, request: impl Submit, (bytes, crc): (u32, u64)) -> Ticket {
        let (ticket, (tag, lease)) = (self.submitter.next_ticket(), request.into_parts());
        let end = RangeEnd { bytes: bytes.into(), checksum: crc, ..RangeEnd::bare(Status::Ok) };
        self.ready.push_back(end.completed(ticket, tag, lease));
        ticket
    }

    /// Publishes everything staged, with one store for each lane, and wakes pollers that sleep.
    #[inline]
    pub fn publish(&mut self) {
        self.lanes.publish();
        self.inflight.latencies().published();
    }

    /// Fetches what has completed, without waiting. Pushes to `done` and returns how many. Makes no
    /// system call and allocates nothing but room in `done`; meant to be called in a loop.
    #[inline]
    pub fn poll(&mut self, done: &mut Vec<Completed>) -> usize {
        self.fetch(Until::Empty, done)
    }

    /// As `poll`, for a program that asks for the next block as soon as it has one: of the gets of
    /// 64 KiB or more that have completed only one is verified and fetched, for each poller.
    #[inline]
    pub fn poll_some(&mut self, done: &mut Vec<Completed>) -> usize {
        self.fetch(Until::Long, done)
    }

    #[inline(always)]
    fn fetch(&mut self, until: Until, done: &mut Vec<Completed>) -> usize {
        let before = done.len();
        if self.waiter.is_armed() {
            self.waiter.disarm();
        }
        if !self.ready.is_empty() {
            done.extend(self.ready.drain(..));
            self.submitter.fetched();
        }
        self.reap(until, done);
        if done.len() > before || self.inflight.answers().count() > 0 {
            self.waiter.polled();
        } else if self.waiter.polled_in_vain() {
            self.check_liveness(done);
        }
        done.len() - before
    }

    /// Now and then a poll that brought nothing looks whether the sidecar still lives.
    #[cold]
    fn check_liveness(&mut self, done: &mut Vec<Completed>) {
        self.publish(); // a program that staged and forgot would wait for ever
        let due = self.waiter.look_is_due();
        let control = self.session.control();
        if control.is_gone() || (due && control.look()) {
            self.on_session_lost(done);
        }
    }

    /// Takes what has completed in all lanes.
    #[inline]
    fn reap(&mut self, until: Until, sink: &mut impl CompletionSink) {
        self.inflight.latencies().fetching();
        for index in 0..self.lanes.count() {
            if let Err(error) = self.lanes.reap((index, until), &mut self.inflight, sink) {
                self.on_lane_error(*error, sink);
            }
        }
        if self.inflight.has_unsent() {
            self.send_unsent(sink);
        }
    }

    /// Sends the further requests of operations on blocks.
    #[cold]
    #[inline(never)]
    fn send_unsent(&mut self, sink: &mut impl CompletionSink) {
        let staged = stage_unsent(&mut self.lanes, &mut self.inflight);
        self.publish();
        if let Err(error) = staged {
            self.on_lane_error(error, sink);
        }
    }

    /// Stages a lookup or release of up to five keys; false when there is no room now.
    pub(crate) fn stage_keys(
        &mut self,
        keys: KeysName,
        lane: u16,
        slot: kvrail_ring::Request,
    ) -> Result<bool, ClientError> {
        match stage_keys(keys, lane, slot, &mut self.lanes, &mut self.inflight) {
            Ok(()) => return Ok(true),
            Err(NotStaged::Lane(error)) => self.poison_lane(error),
            Err(NotStaged::Reason(_) | NotStaged::Corrupt(_) | NotStaged::Served { .. }) => {}
        }
        self.check_alive().map(|()| false)
    }

    /// Whether the sidecar knows a lookup's further slots as such.
    pub(crate) fn marks_continued_lookups(&self) -> bool {
        self.session.control().protocol().marks_continued_lookups()
    }

    /// Whether the sidecar knows lookups that touch.
    pub(crate) fn touches(&self) -> bool {
        self.session.control().protocol().touches()
    }

    /// Whether the sidecar knows lookups that demote; one that does not is counted.
    pub(crate) fn takes_hint(&self) -> bool {
        self.session.control().takes_hint()
    }

    /// Whether the sidecar knows lookups that fetch.
    pub(crate) fn shows_tiers(&self) -> bool {
        self.session.control().protocol().shows_tiers()
    }

    /// Counts a lookup that took this time.
    pub(crate) fn count_lookup(&mut self, took: Duration) {
        self.inflight.latencies().count(TimedCall::Lookup, took);
    }

    /// Begins a lookup, and returns its number.
    pub(crate) fn open_lookup(&mut self, namespace: &Namespace) -> Result<u32, ClientError> {
        self.check_alive()?;
        if namespace.client() != self.session.tag() {
            let (what, status) = ("a lookup", Status::Invalid);
            let message = SubmitErrorKind::Foreign { what: "namespace" }.to_string();
            return Err(ClientError::Denied { what, status, message });
        }
        Ok(self.inflight.answers_mut().begin())
    }

    /// Ends it: answers that are missing are passed over.
    pub(crate) fn close_lookup(&mut self, lookup: u32) {
        self.inflight.answers_mut().end(lookup);
    }

    /// Takes an answer for this lookup that was fetched.
    pub(crate) fn take_answer(&mut self, lookup: u32) -> Option<KeysAnswer> {
        self.inflight.answers_mut().take(lookup)
    }

    /// Whether anything can still come out of this queue.
    pub(crate) fn check_alive(&self) -> Result<(), ClientError> {
        match self.submitter.check_state() {
            Ok(()) => Ok(()),
            Err(SubmitErrorKind::SidecarGone) => Err(self.session.control().gone_error()),
            Err(reason) => Err(ClientError::protocol(reason.to_string())),
        }
    }

    /// Waits for answers of lookups, or until the time is over. Completions of requests wait to be
    /// fetched.
    pub(crate) fn wait_for_answers(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<(), ClientError> {
        let mut sink = Vec::new();
        let outcome = self.block(&mut sink, deadline);
        self.ready.extend(sink);
        outcome
    }

    /// What was fetched: completions in `sink`, and answers that their lookups have not taken.
    fn fetched(&self, sink: &impl CompletionSink) -> usize {
        sink.count() + self.inflight.answers().count()
    }

    /// What gets through this queue came to.
    #[must_use]
    pub fn verified(&self) -> Verified {
        self.inflight.verified()
    }

    /// Waits for the next completion or notice. `None` when the time is over, when nothing is in
    /// flight that could complete, or when a lookup has answers to take. `Duration::MAX` waits as
    /// long as the sidecar lives.
    ///
    /// # Errors
    /// `Protocol`, once, when the sidecar broke the protocol on this queue. Its end is no error
    /// here: what was in flight comes back as RESTARTED.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Completed>, ClientError> {
        if self.ready.is_empty() && self.inflight.answers().count() == 0 {
            let mut ready = std::mem::take(&mut self.ready);
            let outcome = self.block(&mut ready, deadline(timeout));
            // What a broken lane handed out meanwhile is behind what was reaped.
            ready.append(&mut self.ready);
            self.ready = ready;
            outcome?;
        }
        let first = self.ready.pop_front();
        if self.ready.is_empty() {
            self.submitter.fetched();
        }
        Ok(first)
    }

    /// Waits until `count` more completions or notices were pushed to `done`; returns how many
    /// were: fewer when the time is over, nothing is in flight, or a lookup has answers to
    /// take.
    ///
    /// # Errors
    /// As `wait`; what was pushed before stays in `done`.
    pub fn wait_for(
        &mut self,
        count: usize,
        done: &mut Vec<Completed>,
        timeout: Duration,
    ) -> Result<usize, ClientError> {
        let (before, deadline) = (done.len(), deadline(timeout));
        while done.len() - before < count {
            let room = done.len();
            if self.poll_some(done) > 0 {
                continue;
            }
            if self.inflight.answers().count() > 0 {
                break;
            }
            self.block(done, deadline)?;
            if done.len() == room {
                break;
            }
        }
        Ok(done.len() - before)
    }

    /// Waits until nothing is in flight; the completions wait to be fetched.
    fn drain(&mut self, patience: Duration) -> Result<(), ClientError> {
        let deadline = deadline(patience);
        let mut ready = std::mem::take(&mut self.ready);
        let mut outcome = Ok(());
        while self.outstanding() > 0 && outcome.is_ok() {
            let before = self.fetched(&ready);
            outcome = self.block(&mut ready, deadline);
            if self.fetched(&ready) == before {
                break;
            }
        }
        ready.append(&mut self.ready);
        self.ready = ready;
        outcome
    }

    /// Prepares to wait on [`Queue::wait_fd`]: says that this thread sleeps, then looks once more.
    /// After waiting, call `poll`, which says that it is awake.
    pub fn arm(&mut self) -> Armed {
        self.publish();
        let mut ready = std::mem::take(&mut self.ready);
        self.reap(Until::Long, &mut ready);
        if self.session.control().is_gone() {
            self.on_session_lost(&mut ready);
        }
        ready.append(&mut self.ready);
        self.ready = ready;
        let fetched = self.fetched(&self.ready);
        if fetched > 0 || self.submitter.state() == QueueState::Gone {
            return Armed::Ready;
        }
        self.waiter.arm();
        let found = self.lanes.look();
        if self.found(found) {
            self.waiter.unarm();
            return Armed::Ready;
        }
        Armed::Armed
    }

    /// Whether a look at the lanes found something; a broken lane counts.
    fn found(&mut self, looked: Result<bool, LaneError>) -> bool {
        looked.unwrap_or_else(|error| {
            self.poison_lane(error);
            true
        })
    }

    /// Blocks until something was pushed, nothing is in flight, or the time is over.
    fn block(
        &mut self,
        sink: &mut impl CompletionSink,
        deadline: Option<Instant>,
    ) -> Result<(), ClientError> {
        if self.waiter.is_armed() {
            self.waiter.disarm();
        }
        self.publish();
        let before = self.fetched(sink);
        self.reap(Until::Long, sink);
        if self.settled(sink, before)? {
            return Ok(());
        }
        let (started, limit_ns) = (Instant::now(), self.session.spin().spin_ns);
        let should_spin = limit_ns > 0 && self.waiter.should_spin();
        let spun = should_spin && self.spin(sink, started, deadline);
        while !self.settled(sink, before)? {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break;
            }
            self.sleep(sink, deadline);
        }
        let waited = started.elapsed();
        // A spin that was not allowed, or was cut short in vain, says nothing.
        let says = self.fetched(sink) > before || waited >= Duration::from_nanos(limit_ns);
        if spun == should_spin && says {
            self.waiter.record(waited, limit_ns);
        }
        Ok(())
    }

    /// Whether its waits spin before they sleep.
    #[cfg(test)]
    pub(crate) fn should_spin(&self) -> bool {
        self.waiter.should_spin()
    }

    /// Whether there is nothing (more) to wait for.
    fn settled(&mut self, sink: &impl CompletionSink, before: usize) -> Result<bool, ClientError> {
        if self.fetched(sink) > before {
            return Ok(true);
        }
        match self.fault.take() {
            Some(what) => Err(ClientError::Protocol { what }),
            None => Ok(self.outstanding() == 0),
        }
    }

    /// Looks at the lanes for as long as a short wait may take; false if this thread may not spin.
    fn spin(
        &mut self,
        sink: &mut impl CompletionSink,
        started: Instant,
        deadline: Option<Instant>,
    ) -> bool {
        let limits = self.session.spin();
        let Some(_spinning) = limits.enter() else { return false };
        let until = started + Duration::from_nanos(limits.spin_ns);
        let until = deadline.map_or(until, |deadline| until.min(deadline));
        let (before, mut yielded) = (self.fetched(sink), started);
        loop {
            for _ in 0..LOOKS {
                self.reap(Until::Long, sink);
                if self.fetched(sink) > before || self.fault.is_some() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now >= until {
                return true;
            }
            if now.duration_since(yielded) >= YIELD_AFTER {
                std::thread::yield_now();
                yielded = now;
            }
        }
    }

    /// Sleeps once: until the bell, the end of the session, or the deadline.
    fn sleep(&mut self, sink: &mut impl CompletionSink, deadline: Option<Instant>) {
        let (lanes, mut looked) = (&self.lanes, Ok(false));
        let woken = self.waiter.block(self.session.control(), deadline, || {
            looked = lanes.look();
            !matches!(looked, Ok(false))
        });
        self.found(looked);
        self.reap(Until::Long, sink);
        let control = self.session.control();
        if (woken.by_socket() && control.look()) || control.is_gone() {
            self.on_session_lost(sink);
        }
    }

    #[cold]
    fn on_lane_error(&mut self, error: LaneError, sink: &mut impl CompletionSink) {
        match error {
            LaneError::Bogus(what) => {
                self.fault = Some(what);
                if self.submitter.state() == QueueState::Open {
                    self.submitter.set_state(QueueState::Broken);
                }
            }
            LaneError::Poisoned(what) => {
                self.fault = Some(what);
                let (status, hardware) = (Status::Internal, Hardware::MayBeActive);
                self.fail_all(QueueState::Broken, status, hardware, sink);
            }
        }
    }

    /// The sidecar's indices cannot be believed: nothing more can come out of the lanes.
    #[cold]
    fn poison_lane(&mut self, error: LaneError) {
        let mut ready = std::mem::take(&mut self.ready);
        self.on_lane_error(error, &mut ready);
        self.ready = ready;
    }

    /// The session has ended: first what did complete, then the rest as RESTARTED. After a drain
    /// the rest was never accepted, since everything accepted is complete: that is DRAINING.
    #[cold]
    fn on_session_lost(&mut self, sink: &mut impl CompletionSink) {
        if self.submitter.state() == QueueState::Gone {
            return;
        }
        self.reap(Until::Empty, sink); // all that made it
        let ended = self.session.control().ended();
        let hardware = ended.map_or(Hardware::MayBeActive, |ended| ended.hardware);
        let status = match hardware {
            Hardware::Settled => Status::Draining,
            Hardware::MayBeActive => Status::Restarted,
        };
        self.fail_all(QueueState::Gone, status, hardware, sink);
    }

    /// Completes everything in flight with this status.
    fn fail_all(
        &mut self,
        state: QueueState,
        status: Status,
        hardware: Hardware,
        sink: &mut impl CompletionSink,
    ) {
        debug_assert!(state != QueueState::Open, "a queue fails for good");
        self.submitter.set_state(state);
        self.inflight.fail_all(status, hardware, sink);
        self.lanes.forget();
        // Hardware may still write this memory: out of everybody's reach.
        self.session.quarantine(self.inflight.take_quarantined());
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.session.control().is_ours() {
            return; // a forked child: lanes and leases are the parent's
        }
        // A broken queue was emptied already, or is given up below.
        let _drained = self.drain(DROP_PATIENCE);
        let mut left = Vec::new();
        let (status, hardware) = (Status::Restarted, Hardware::MayBeActive);
        self.fail_all(QueueState::Gone, status, hardware, &mut left);
        // Writes that are left read their memory still.
        self.session.quarantine(left.into_iter().filter_map(|done| done.lease).collect());
        if !self.closed {
            let ask = ControlRequest::CloseQueue { queue: self.number };
            self.session.control().call_and_forget(ask);
        }
        if let Some(arena) = &self.tail_arena {
            let ask = ControlRequest::DetachArena { region: arena.region().0 };
            self.session.control().call_and_forget(ask);
        }
    }
}

/// `None` is never.
fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}
