//! A queue: one thread's lanes to all pollers. Submission is here, completion in `reap`, waiting
//! in `wait`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use kvrail_protocol::{Answer, Ask, Hardware};
use kvrail_ring::slot::{FLAG_CHECKSUM, FLAG_DURABLE, FLAG_VERIFY};
use kvrail_ring::{Bell, ClientLane, ClientSleep, Opcode, Ring, Segment, Status};

use crate::client::Client;
use crate::done::{Done, Ticket};
use crate::error::ClientError;
use crate::flights::{Flights, Origin};
use crate::plan::{LanePiece, Plan};
use crate::refused::{Reason, Refused};
use crate::request::Request;
use crate::spin::Expectation;

/// How long the drop of a queue waits for what is under way.
const DROP_PATIENCE: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };

const CHECKSUM_FLAGS: u8 = FLAG_CHECKSUM | FLAG_VERIFY;

/// What a queue is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) number: u32,
    pub(crate) segment: Segment,
    pub(crate) hear: OwnedFd,
    pub(crate) doorbells: Vec<OwnedFd>,
    pub(crate) plans: Vec<Plan>,
}

/// One lane with its doorbell.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    pub(crate) lane: ClientLane,
    pub(crate) doorbell: Bell,
    /// Pieces staged or published in it and not yet completed.
    pub(crate) outstanding: u32,
}

/// Whether requests are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// They are.
    Open,
    /// The session has ended; everything under way was handed out.
    Gone,
    /// The sidecar broke the protocol; what is under way may still complete.
    Broken,
}

/// Submits requests and brings back their ends. For one thread at a time; open one for each
/// thread. No method but `wait`, `wait_for`, `arm` and `close` makes a system call while the
/// sidecar is awake, and none but those that fill a `Vec` allocates.
///
/// Dropping a queue waits up to five seconds for what is under way; the memory of requests that
/// take longer stays out of reach until the client itself is gone.
#[derive(Debug)]
pub struct Queue {
    pub(crate) client: Client,
    number: u32,
    pub(crate) lanes: Vec<LaneEnd>,
    /// Lanes with staged requests, one bit each.
    staged: u64,
    pub(crate) sleep: ClientSleep,
    pub(crate) hear: OwnedFd,
    pub(crate) flights: Flights,
    plans: Vec<Plan>,
    /// Ended, and not yet handed to the program.
    pub(crate) ready: VecDeque<Done>,
    last_ticket: u64,
    pub(crate) life: Life,
    /// What the sidecar did wrong, until the program was told.
    pub(crate) fault: Option<String>,
    /// The program waits on `event_fd`.
    pub(crate) armed: bool,
    /// Polls in a row that brought nothing.
    pub(crate) empty_polls: u32,
    pub(crate) looked: Instant,
    pub(crate) expectation: Expectation,
    closed: bool,
}

impl Queue {
    pub(crate) fn assemble(client: Client, parts: Parts) -> Result<Self, ClientError> {
        let Parts { number, segment, hear, doorbells, plans } = parts;
        let depth = segment.depth();
        let (lanes, sleep) = segment.into_client();
        let pollers = client.pollers();
        if lanes.len() != pollers || doorbells.len() != pollers {
            return Err(ClientError::protocol(format!(
                "a queue with {} lanes and {} doorbells for {pollers} pollers",
                lanes.len(),
                doorbells.len()
            )));
        }
        let lanes = lanes.into_iter().zip(doorbells);
        let lanes = lanes.map(|(lane, doorbell)| LaneEnd {
            lane,
            doorbell: Bell::from_fd(doorbell),
            outstanding: 0,
        });
        Ok(Self {
            client,
            number,
            lanes: lanes.collect(),
            staged: 0,
            sleep,
            hear,
            flights: Flights::new(depth),
            plans,
            ready: VecDeque::with_capacity(2 * depth as usize),
            last_ticket: 0,
            life: Life::Open,
            fault: None,
            armed: false,
            empty_polls: 0,
            looked: Instant::now(),
            expectation: Expectation::default(),
            closed: false,
        })
    }

    /// Pieces of requests the queue holds: a request within one stripe is one piece.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.flights.capacity()
    }

    /// Pieces of requests that are under way. Zero once every request has ended, though ends may
    /// still wait to be fetched by `poll` or `wait`.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.flights.capacity() - self.flights.room()
    }

    /// The client it belongs to.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Submits a request: checks it, cuts it at stripe borders, publishes it. A system call is
    /// made only to wake a sleeping poller.
    ///
    /// # Errors
    /// `Refused` gives the request back with the reason; nothing happened.
    #[expect(clippy::result_large_err, reason = "a refused request keeps its lease, unboxed")]
    pub fn submit(&mut self, request: Request) -> Result<Ticket, Refused> {
        let ticket = self.stage(request)?;
        self.publish();
        Ok(ticket)
    }

    /// Submits requests until one is refused; pushes the tickets of those submitted. All of them
    /// are published together, with one store for each lane.
    ///
    /// # Errors
    /// The first refused request; those behind it are still in the iterator.
    #[expect(clippy::result_large_err, reason = "a refused request keeps its lease, unboxed")]
    pub fn submit_all(
        &mut self,
        requests: impl IntoIterator<Item = Request>,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), Refused> {
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

    /// Checks a request and writes it into its lanes; the sidecar sees it after `publish`.
    ///
    /// # Errors
    /// As `submit`.
    #[expect(clippy::result_large_err, reason = "a refused request keeps its lease, unboxed")]
    #[inline]
    pub fn stage(&mut self, request: Request) -> Result<Ticket, Refused> {
        let admitted = self.admit(&request).and_then(|piece| match piece {
            Some(piece) => self.reserve(piece.lane, 1).map(|()| Some(piece)),
            None => self.reserve_all(&request).map(|()| None),
        });
        match admitted {
            Ok(Some(piece)) => Ok(self.launch(request, piece)),
            Ok(None) => Ok(self.launch_pieces(request)),
            Err(reason) => Err(Refused { request, reason }),
        }
    }

    /// Publishes everything staged, with one store for each lane, and wakes pollers that sleep.
    #[inline]
    pub fn publish(&mut self) {
        while self.staged != 0 {
            let end = &mut self.lanes[self.staged.trailing_zeros() as usize];
            self.staged &= self.staged - 1;
            if end.lane.publish() == Ring::Now {
                end.doorbell.ring();
            }
        }
    }

    /// Checks a request; returns its piece if it is one.
    #[inline]
    fn admit(&self, request: &Request) -> Result<Option<LanePiece>, Reason> {
        match self.life {
            Life::Open => {}
            Life::Gone => return Err(Reason::SidecarGone),
            Life::Broken => return Err(Reason::Broken),
        }
        if request.client != self.client.tag() {
            return Err(Reason::Foreign { what: "volume" });
        }
        if request.flags != 0 {
            check_flags(request)?;
        }
        if request.opcode == Opcode::Nop {
            return self.admit_nop(request);
        }
        let Some(plan) = self.plans.get(usize::from(request.volume)) else {
            return Err(Reason::Foreign { what: "volume" });
        };
        match request.opcode {
            Opcode::Read | Opcode::Write => {
                plan.check_range(request)?;
                plan.check_memory(request)?;
            }
            Opcode::Discard => plan.check_range(request)?,
            Opcode::Flush | Opcode::Nop => {}
        }
        let piece = plan.single(request);
        if piece.is_none() && request.flags & CHECKSUM_FLAGS != 0 {
            return Err(Reason::ChecksumOverPieces);
        }
        Ok(piece)
    }

    fn admit_nop(&self, request: &Request) -> Result<Option<LanePiece>, Reason> {
        let (poller, count) = (usize::from(request.lane), self.lanes.len());
        if poller >= count {
            return Err(Reason::NoPoller { poller, count });
        }
        Ok(Some(LanePiece { lane: request.lane, volume_offset: 0, length: 0 }))
    }

    /// Makes sure that `pieces` pieces fit into a lane.
    #[inline]
    fn reserve(&mut self, lane: u16, pieces: u32) -> Result<(), Reason> {
        if self.flights.room() < pieces as usize {
            return Err(self.full());
        }
        match self.lanes[usize::from(lane)].lane.free(pieces) {
            Ok(free) if free >= pieces => Ok(()),
            // The poller gives request slots back a moment after it took them.
            Ok(_) => Err(self.full()),
            Err(fault) => {
                self.break_off(&format!("request lane {lane}: {fault}"));
                Err(Reason::Broken)
            }
        }
    }

    /// Makes sure that all pieces of a request fit.
    fn reserve_all(&mut self, request: &Request) -> Result<(), Reason> {
        let capacity = self.capacity();
        let plan = &self.plans[usize::from(request.volume)];
        let mut wanted = [0_u32; kvrail_ring::limits::POLLERS_MAX as usize];
        let mut total = 0;
        for piece in plan.pieces(request) {
            total += 1;
            if total > capacity {
                return Err(Reason::TooManyPieces { capacity });
            }
            wanted[usize::from(piece.lane)] += 1;
        }
        if total > self.flights.room() {
            return Err(self.full());
        }
        for (lane, wanted) in (0_u16..).zip(wanted).filter(|(_, wanted)| *wanted > 0) {
            self.reserve(lane, wanted)?;
        }
        Ok(())
    }

    fn full(&self) -> Reason {
        Reason::Full { outstanding: self.outstanding(), capacity: self.capacity() }
    }

    /// Writes a request of one piece into its lane.
    #[inline]
    fn launch(&mut self, mut request: Request, piece: LanePiece) -> Ticket {
        let slot = slot_of(&request, piece);
        let origin = self.origin(&mut request);
        let ticket = origin.ticket;
        let user_data = self.flights.add(piece.lane, piece.length, origin);
        self.put(piece.lane, kvrail_ring::Request { user_data, ..slot });
        ticket
    }

    /// Writes all pieces of a request into their lanes.
    fn launch_pieces(&mut self, mut request: Request) -> Ticket {
        let plan = &self.plans[usize::from(request.volume)];
        let pieces: Vec<(LanePiece, kvrail_ring::Request)> =
            plan.pieces(&request).map(|piece| (piece, slot_of(&request, piece))).collect();
        let origin = self.origin(&mut request);
        let ticket = origin.ticket;
        let count = u32::try_from(pieces.len()).expect("at most the depth of the queue");
        let head = self.flights.add_head(count, origin);
        for (piece, slot) in pieces {
            let user_data = self.flights.add_piece(piece.lane, piece.length, head);
            self.put(piece.lane, kvrail_ring::Request { user_data, ..slot });
        }
        ticket
    }

    #[inline]
    fn origin(&mut self, request: &mut Request) -> Origin {
        self.last_ticket += 1;
        Origin {
            ticket: Ticket(self.last_ticket),
            tag: request.tag,
            opcode: request.opcode,
            lease: request.lease.take(),
        }
    }

    #[inline]
    fn put(&mut self, lane: u16, slot: kvrail_ring::Request) {
        let end = &mut self.lanes[usize::from(lane)];
        end.lane.stage(slot);
        end.outstanding += 1;
        self.staged |= 1 << lane;
    }

    /// What the sidecar did wrong, if it did. `wait` reports it once; this always.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.life == Life::Broken
    }

    /// Closes the queue: waits for what is under way, then for the sidecar to give up its side.
    /// Ends that were not fetched are dropped, with their leases.
    ///
    /// # Errors
    /// `Timeout` when requests are still under way at the end of the time, `SidecarGone`.
    pub fn close(mut self, timeout: Duration) -> Result<(), ClientError> {
        self.drain(timeout)?;
        if self.outstanding() > 0 {
            let what = "closing a queue with requests under way";
            return Err(ClientError::Timeout { what, after: timeout });
        }
        self.closed = true;
        let ask = Ask::CloseQueue { queue: self.number };
        match self.client.shared().control.call("closing a queue", ask, &[])?.message {
            Answer::QueueClosed { queue } if queue == self.number => Ok(()),
            other => Err(ClientError::protocol(format!("answer to a close: {other:?}"))),
        }
    }

    /// Descriptor that becomes readable when something has ended, while the queue is armed. Only
    /// to be waited on, never to be read.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.hear.as_fd()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let control = &self.client.shared().control;
        if !control.is_ours() {
            return; // a forked child: lanes and leases are the parent's
        }
        // A broken queue was emptied already, or is given up below.
        let _drained = self.drain(DROP_PATIENCE);
        let mut ended = Vec::new();
        self.flights.abandon(Status::Restarted, Hardware::MayBeActive, &mut ended);
        self.fence(ended.into_iter().filter_map(|done| done.lease).collect());
        if !self.closed {
            let ask = Ask::CloseQueue { queue: self.number };
            self.client.shared().control.call_and_forget(ask);
        }
    }
}

/// Flags that mean nothing for an operation are refused here, with the reason.
fn check_flags(request: &Request) -> Result<(), Reason> {
    let opcode = request.opcode;
    let moves = matches!(opcode, Opcode::Read | Opcode::Write);
    if request.flags & CHECKSUM_FLAGS != 0 && !moves {
        return Err(Reason::Unfit { option: "a checksum", opcode });
    }
    if request.flags & FLAG_DURABLE != 0 && opcode != Opcode::Write {
        return Err(Reason::Unfit { option: "durable", opcode });
    }
    Ok(())
}

/// A piece as it stands in a lane, its name aside.
#[inline]
fn slot_of(request: &Request, piece: LanePiece) -> kvrail_ring::Request {
    let (region, region_offset) = match &request.lease {
        Some(lease) => {
            let inside = piece.volume_offset - request.offset;
            (lease.region.0, lease.offset() as u64 + inside)
        }
        None => (0, 0),
    };
    kvrail_ring::Request {
        opcode: request.opcode as u8,
        flags: request.flags,
        class: request.class as u8,
        region,
        volume: request.volume,
        length: piece.length,
        volume_offset: piece.volume_offset,
        region_offset,
        checksum: request.checksum,
        deadline_ns: request.deadline_ns,
        ..kvrail_ring::Request::default()
    }
}
