//! Queues: one lane to every poller in one sealed segment, a bell to hear, doorbells to ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kvrail_memory::{PageSize, Pinned, Region};
use kvrail_poller::{Command, LANES_MAX, LaneSeat, SessionSlot};
use kvrail_protocol::Answer;
use kvrail_ring::{Bell, Segment, Status};
use rustix::io::Errno;

use crate::asks::Failure;
use crate::kept::Kept;
use crate::pollers::PollerSet;
use crate::server::Server;

/// One queue.
#[derive(Debug)]
pub(crate) enum Queue {
    /// Pollers take up its lanes.
    Opening {
        /// The ask to be answered.
        seq: u64,
        /// Pollers that have not.
        waiting: PollerSet,
        /// What the client will get.
        offer: Offer,
    },
    /// In use.
    Live,
    /// Pollers finish what they took from its lanes.
    Closing {
        /// The ask to be answered.
        seq: u64,
        /// Pollers that have not.
        waiting: PollerSet,
    },
}

/// The client's end of a queue.
#[derive(Debug)]
pub(crate) struct Offer {
    segment: Arc<Region>,
    hear: OwnedFd,
    doorbells: Vec<OwnedFd>,
}

/// Makes both ends of a queue.
fn make(lanes: usize, depth: u32, queue: u32) -> Result<(Offer, Vec<LaneSeat>), Failure> {
    let count = u32::try_from(lanes).expect("pollers are few");
    let shape = |error: kvrail_ring::SegmentError| (Status::Invalid, error.to_string());
    let bytes = Segment::bytes_needed(count, depth).map_err(shape)?;
    let segment = Region::create("kvrail-queue", bytes, PageSize::Base)
        .map_err(|error| (Status::NoSpace, format!("the queue's segment: {error}")))?;
    let segment = Arc::new(segment);
    let memory = Arc::clone(&segment) as Arc<dyn Pinned>;
    let servers = Segment::format(memory, count, depth).map_err(shape)?.into_server();
    let (bell, hear) = Bell::pipe().map_err(descriptors)?;
    let mut doorbells = Vec::with_capacity(lanes);
    let mut seats = Vec::with_capacity(lanes);
    for lane in servers {
        let duplicate = |bell: &Bell| bell.as_fd().try_clone_to_owned().map_err(descriptors_io);
        let doorbell = Bell::eventfd().map_err(descriptors)?;
        doorbells.push(duplicate(&doorbell)?);
        seats.push(LaneSeat { queue, lane, bell: Bell::from_fd(duplicate(&bell)?), doorbell });
    }
    Ok((Offer { segment, hear, doorbells }, seats))
}

fn descriptors(errno: Errno) -> Failure {
    let message = format!(
        "the sidecar cannot make the queue's bells ({errno}); raise its limit of open files \
         (ulimit -n, LimitNOFILE=)"
    );
    (Status::Quota, message)
}

fn descriptors_io(error: std::io::Error) -> Failure {
    descriptors(Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
}

impl Server {
    /// Makes a queue and gives its lanes to the pollers.
    pub(crate) fn open_queue(&mut self, id: u64, seq: u64, depth: u32) -> Result<(), Failure> {
        let most_depth = self.limits.queue_depth;
        if depth > most_depth {
            return Err((
                Status::Quota,
                format!(
                    "a queue of depth {depth} asked for, the most is {most_depth} \
                 (limits.queue_depth); ask for less or raise the limit"
                ),
            ));
        }
        let total: usize = self.sessions.values().map(|session| session.queues.len()).sum();
        let session = &self.sessions[&id];
        let most = self.limits.queues_per_session;
        if session.queues.len() >= most {
            return Err((
                Status::Quota,
                format!(
                    "this client has {most} queues, the most it may have \
                 (limits.queues_per_session); close one or raise the limit"
                ),
            ));
        }
        if total >= LANES_MAX {
            return Err((
                Status::Quota,
                format!(
                    "the sidecar's clients have {LANES_MAX} queues, the most it can serve; close \
                     some"
                ),
            ));
        }
        // Last, so that who is refused takes no seat.
        let slot = self.seat(id)?;
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        let queue = session.number_queue();
        let (offer, seats) = make(self.pollers.count(), depth, queue)?;
        let waiting = self.pollers.all();
        session.queues.insert(queue, Queue::Opening { seq, waiting, offer });
        for (poller, seat) in seats.into_iter().enumerate() {
            self.pollers.send(poller, Command::AddLane(slot, Box::new(seat)));
        }
        Ok(())
    }

    /// A poller serves the queue's lane.
    pub(crate) fn lane_added(&mut self, poller: usize, slot: SessionSlot, queue: u32) {
        let Some(session) = self.session_at(slot).filter(|session| !session.is_reclaiming()) else {
            return;
        };
        let id = session.id;
        let Some(entry) = session.queues.get_mut(&queue) else { return };
        let Queue::Opening { waiting, .. } = entry else { return };
        waiting.remove(poller);
        if !waiting.is_empty() {
            return;
        }
        let Queue::Opening { seq, offer, .. } = std::mem::replace(entry, Queue::Live) else {
            return;
        };
        let answer = Answer::Queue { queue, segment_bytes: offer.segment.bytes() as u64 };
        let mut fds: Vec<BorrowedFd<'_>> = vec![offer.segment.fd(), offer.hear.as_fd()];
        fds.extend(offer.doorbells.iter().map(AsFd::as_fd));
        self.reply(id, seq, answer, &fds);
    }

    /// Asks all pollers to finish a queue.
    pub(crate) fn close_queue(&mut self, id: u64, seq: u64, queue: u32) -> Result<(), Failure> {
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        match (session.queues.get_mut(&queue), session.slot) {
            (Some(entry @ Queue::Live), Some(slot)) => {
                let waiting = self.pollers.all();
                *entry = Queue::Closing { seq, waiting };
                self.pollers.send_each(waiting, || Command::CloseLane(slot, queue));
                Ok(())
            }
            _ => Err((Status::Invalid, format!("this client has no open queue {queue}"))),
        }
    }

    /// A poller gave a lane back.
    pub(crate) fn lane_closed(&mut self, poller: usize, slot: SessionSlot, seat: Box<LaneSeat>) {
        let queue = seat.queue;
        let hand = self.session_at(slot).map(|session| session.hand.clone());
        drop(Kept::new(seat, hand.as_ref().unwrap_or_else(|| self.maker.strangers())));
        let Some(session) = self.session_at(slot).filter(|session| !session.is_reclaiming()) else {
            return;
        };
        let id = session.id;
        let Some(Queue::Closing { seq, waiting }) = session.queues.get_mut(&queue) else { return };
        let seq = *seq;
        waiting.remove(poller);
        if waiting.is_empty() {
            session.queues.remove(&queue);
            self.reply(id, seq, Answer::QueueClosed { queue }, &[]);
        }
    }
}
