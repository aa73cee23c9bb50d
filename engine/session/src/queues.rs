//! Queues: one lane to every poller in one sealed segment, a bell to hear, doorbells to ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use kvrail_memory::{Pinned, Region};
use kvrail_poller::{Command, LANES_MAX, LaneSeat, QueueBell, SessionSlot, Waking};
use kvrail_protocol::{Answer, Hardware};
use kvrail_ring::{Bell, Segment, Status};
use rustix::io::Errno;

use crate::asks::Failure;
use crate::hand::Hand;
use crate::kept::Kept;
use crate::leaving::Ending;
use crate::pollers::PollerSet;
use crate::server::Server;

/// One queue.
#[derive(Debug)]
pub(crate) enum Queue {
    /// The client maps it.
    Offered {
        /// Its memory, which is sealed then.
        segment: Arc<Region>,
        /// The lanes, by poller.
        seats: Vec<LaneSeat>,
    },
    /// Pollers take up its lanes.
    Opening {
        /// The ask to be answered.
        seq: u64,
        /// Pollers that have not.
        waiting: PollerSet,
    },
    /// In use.
    Live,
    /// Pollers finish what they took from its lanes.
    Closing {
        /// The ask to be answered, if it was not.
        seq: Option<u64>,
        /// Pollers that have not.
        waiting: PollerSet,
    },
}

impl Queue {
    /// Whether an ask waits for these pollers, and for no other.
    pub(crate) fn waits_only_for(&self, pollers: PollerSet) -> bool {
        match self {
            Self::Opening { waiting, .. } | Self::Closing { seq: Some(_), waiting } => {
                waiting.is_some_of(pollers)
            }
            Self::Offered { .. } | Self::Closing { seq: None, .. } | Self::Live => false,
        }
    }

    /// Lets go of a queue that no poller has.
    pub(crate) fn retire(self, hand: &Hand) {
        if let Self::Offered { seats, .. } = self {
            seats.into_iter().for_each(|seat| drop(Kept::new(Box::new(seat), hand)));
        }
    }
}

/// The client's end of a queue.
struct Offer {
    segment: Arc<Region>,
    hear: OwnedFd,
    doorbells: Vec<OwnedFd>,
}

/// Makes both ends of a queue.
fn make(
    lanes: usize,
    depth: u32,
    (queue, waking): (u32, &Arc<Waking>),
) -> Result<(Offer, Vec<LaneSeat>), Failure> {
    let count = u32::try_from(lanes).expect("pollers are few");
    let shape = |error: kvrail_ring::SegmentError| (Status::Invalid, error.to_string());
    let bytes = Segment::bytes_needed(count, depth).map_err(shape)?;
    let segment = Region::create_open("kvrail-queue", bytes)
        .map_err(|error| (Status::NoSpace, format!("the queue's segment: {error}")))?;
    let segment = Arc::new(segment);
    let memory = Arc::clone(&segment) as Arc<dyn Pinned>;
    let servers = Segment::format(memory, count, depth).map_err(shape)?.into_server();
    let (bell, hear) = Bell::heard().map_err(descriptors)?;
    let bell = QueueBell::new(bell, waking);
    let mut doorbells = Vec::with_capacity(lanes);
    let mut seats = Vec::with_capacity(lanes);
    for lane in servers {
        let doorbell = Bell::eventfd().map_err(descriptors)?;
        doorbells.push(doorbell.as_fd().try_clone_to_owned().map_err(descriptors_io)?);
        seats.push(LaneSeat { queue, lane, bell: Arc::clone(&bell), doorbell });
    }
    Ok((Offer { segment, hear, doorbells }, seats))
}

fn no_queue(queue: u32) -> Failure {
    (Status::Invalid, format!("this client has no queue {queue} that could do that"))
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
    /// Makes a queue and offers it to the client.
    pub(crate) fn open_queue(&mut self, id: u64, seq: u64, depth: u32) -> Result<(), Failure> {
        let most_depth = self.limits.queue_depth;
        if depth > most_depth {
            return Err((
                Status::Quota,
                format!(
                    "a queue of depth {depth} asked for, the most is {most_depth} \
                 (limits.lane_depth); ask for less or raise the limit"
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
        self.seat(id)?;
        let waking = self.waking(id);
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        let queue = session.number_queue();
        let (offer, seats) = make(self.pollers.count(), depth, (queue, &waking))?;
        let Offer { segment, hear, doorbells } = offer;
        let answer = Answer::Queue { queue, segment_bytes: segment.bytes() as u64 };
        session.queues.insert(queue, Queue::Offered { segment: Arc::clone(&segment), seats });
        let mut fds: Vec<BorrowedFd<'_>> = vec![segment.fd(), hear.as_fd()];
        fds.extend(doorbells.iter().map(AsFd::as_fd));
        self.reply(id, seq, answer, &fds);
        Ok(())
    }

    /// The client has mapped a queue: seals its memory, and gives its lanes to the pollers. Not
    /// before, because a hole makes whoever looks into a lane wait for a page.
    pub(crate) fn queue_mapped(&mut self, id: u64, seq: u64, queue: u32) -> Result<(), Failure> {
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        let (Some(entry), Some(slot)) = (session.queues.get_mut(&queue), session.slot) else {
            return Err(no_queue(queue));
        };
        let Queue::Offered { segment, .. } = entry else { return Err(no_queue(queue)) };
        segment
            .close()
            .map_err(|error| (Status::Invalid, format!("the queue's segment: {error}")))?;
        let waiting = self.pollers.all();
        let opening = Queue::Opening { seq, waiting };
        let Queue::Offered { seats, .. } = std::mem::replace(entry, opening) else {
            return Ok(());
        };
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
        if waiting.is_empty() {
            self.queue_opened(id, queue);
        }
    }

    /// Tells a client that its queue is served.
    fn queue_opened(&mut self, id: u64, queue: u32) {
        let session = self.sessions.get_mut(&id).expect("just seen");
        let entry = session.queues.get_mut(&queue).expect("just seen");
        if let Queue::Opening { seq, .. } = *entry {
            *entry = Queue::Live;
            self.reply(id, seq, Answer::QueueServed { queue }, &[]);
        }
    }

    /// Only stalled pollers keep a queue's ask from being answered. Requests to them wait in their
    /// lanes, which they take up when they turn again.
    pub(crate) fn queue_past(&mut self, id: u64, queue: u32) {
        let session = self.sessions.get_mut(&id).expect("just seen");
        let entry = session.queues.get_mut(&queue).expect("just seen");
        match entry {
            Queue::Opening { .. } => self.queue_opened(id, queue),
            Queue::Closing { seq, waiting } => {
                let (seq, waiting) = (seq.take(), *waiting);
                let Some(seq) = seq else { return };
                let failure = self.kept(&format!("queue {queue}"), waiting);
                self.fail(id, seq, failure);
            }
            Queue::Offered { .. } | Queue::Live => {}
        }
    }

    /// Asks all pollers to finish a queue; one that was never mapped is forgotten.
    pub(crate) fn close_queue(&mut self, id: u64, seq: u64, queue: u32) -> Result<(), Failure> {
        let session = self.sessions.get_mut(&id).expect("an asking session lives");
        match (session.queues.get_mut(&queue), session.slot) {
            // Asked again, while a stalled poller keeps it.
            (Some(Queue::Closing { seq: answered @ None, .. }), _) => {
                *answered = Some(seq);
                Ok(())
            }
            (Some(entry @ Queue::Live), Some(slot)) => {
                let waiting = self.pollers.all();
                *entry = Queue::Closing { seq: Some(seq), waiting };
                self.pollers.send_each(waiting, || Command::CloseLane(slot, queue));
                Ok(())
            }
            (Some(Queue::Offered { .. }), _) => {
                if let Some(offered) = session.queues.remove(&queue) {
                    offered.retire(&session.hand);
                }
                self.reply(id, seq, Answer::QueueClosed { queue }, &[]);
                Ok(())
            }
            _ => Err(no_queue(queue)),
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
        match session.queues.get_mut(&queue) {
            Some(Queue::Closing { seq, waiting }) => {
                let seq = *seq;
                waiting.remove(poller);
                if waiting.is_empty() {
                    session.queues.remove(&queue);
                    if let Some(seq) = seq {
                        self.reply(id, seq, Answer::QueueClosed { queue }, &[]);
                    }
                }
            }
            // It could not watch the doorbell.
            Some(Queue::Opening { .. } | Queue::Live) => {
                let reason = format!(
                    "poller {poller} cannot serve queue {queue}: no room in its epoll set; raise \
                     fs.epoll.max_user_watches"
                );
                self.end(id, Ending::Dismissed(reason, Hardware::MayBeActive));
            }
            // Its lanes are with no poller.
            Some(Queue::Offered { .. }) | None => {}
        }
    }
}
