//! A queue: one thread's lanes to all pollers. Its life is here; submission is in `submit`,
//! completion in `reap`, waiting in `wait`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use kvrail_protocol::{Answer, Ask, Hardware};
use kvrail_ring::{Bell, ClientLane, ClientSleep, Odds, Segment, Status, hear_hangup};

use crate::client::{Client, ClientTag};
use crate::done::Done;
use crate::error::ClientError;
use crate::flights::Flights;
use crate::plan::Plan;

/// How long the drop of a queue waits for what is under way.
const DROP_PATIENCE: Duration =
    if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };

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
/// Dropping a queue waits up to five seconds for what is under way; the memory of requests that
/// take longer stays out of reach until the client itself is gone.
#[derive(Debug)]
pub struct Queue {
    pub(crate) client: Client,
    /// The client's, for requests to be compared with.
    pub(crate) tag: ClientTag,
    number: u32,
    pub(crate) lanes: Vec<LaneEnd>,
    /// Lanes with staged requests, one bit each.
    pub(crate) staged: u64,
    pub(crate) sleep: ClientSleep,
    pub(crate) hear: OwnedFd,
    pub(crate) flights: Flights,
    pub(crate) plans: Vec<Plan>,
    /// Ended, and not yet handed to the program.
    pub(crate) ready: VecDeque<Done>,
    pub(crate) last_ticket: u64,
    pub(crate) life: Life,
    /// What the sidecar did wrong, until the program was told.
    pub(crate) fault: Option<String>,
    /// The program waits on `event_fd`.
    pub(crate) armed: bool,
    /// Polls in a row that brought nothing.
    pub(crate) empty_polls: u32,
    pub(crate) looked: Instant,
    pub(crate) odds: Odds,
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
        // Who waits for the bell alone hears of the session's end, too.
        hear_hangup(hear.as_fd(), client.shared().control.as_fd())
            .map_err(|errno| ClientError::protocol(format!("a bell that is no set: {errno}")))?;
        let lanes = lanes.into_iter().zip(doorbells);
        let lanes = lanes.map(|(lane, doorbell)| LaneEnd {
            lane,
            doorbell: Bell::from_fd(doorbell),
            outstanding: 0,
        });
        Ok(Self {
            tag: client.tag(),
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
            odds: Odds::default(),
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

    /// Descriptor that becomes readable when something has ended, while the queue is armed, and
    /// when the session ends. Only to be waited on, never to be read.
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
