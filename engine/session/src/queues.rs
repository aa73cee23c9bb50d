//! Queues: one lane to every poller in one sealed segment, a wake fd for the client, doorbells to
//! ring.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use kvrail_memory::{Pinned, Region, descriptor_remedy};
use kvrail_poller::{
    LANES_MAX, LaneSeat, PollerCommand, QueueDoorbell, SessionSlot, TenantSlot, Waking,
};
use kvrail_protocol::ControlReply;
use kvrail_ring::{Doorbell, QueueSegment, RegionId, Status};
use rustix::io::Errno;

use crate::failure::{Failure, invalid, quota};
use crate::kept::Kept;
use crate::memory_worker::MemoryWorker;
use crate::policy::Limits;
use crate::pollers::{PollerSet, Pollers};
use crate::reply::Reply;
use crate::watch::Watch;

/// One queue.
#[derive(Debug)]
enum QueueStage {
    /// The client maps it.
    Offered {
        /// Its memory, which is sealed then.
        segment: Arc<Region>,
        /// The lanes, by poller.
        seats: Vec<LaneSeat>,
    },
    /// Pollers take up its lanes.
    Opening {
        /// The request to be answered.
        seq: u64,
        /// Pollers that have not.
        waiting: PollerSet,
    },
    /// In use.
    Live,
    /// Pollers finish what they took from its lanes.
    Closing {
        /// The request to be answered, if it was not.
        seq: Option<u64>,
        /// Pollers that have not.
        waiting: PollerSet,
    },
}

impl QueueStage {
    /// Whether a request waits for these pollers, and for no other.
    fn waits_only_for(&self, pollers: PollerSet) -> bool {
        match self {
            Self::Opening { waiting, .. } | Self::Closing { seq: Some(_), waiting } => {
                waiting.is_some_of(pollers)
            }
            Self::Offered { .. } | Self::Closing { seq: None, .. } | Self::Live => false,
        }
    }

    /// Drops a queue that no poller has.
    fn retire(self, worker: &MemoryWorker) {
        if let Self::Offered { seats, .. } = self {
            seats.into_iter().for_each(|seat| drop(Kept::new(Box::new(seat), worker)));
        }
    }
}

/// Session and number of a queue.
pub(crate) type QueueKey = (u64, u32);

/// The queues of one session.
#[derive(Debug)]
struct SessionQueues {
    /// The session's place in the pollers' tables.
    slot: SessionSlot,
    /// The thread that closes the resources that no poller has.
    worker: MemoryWorker,
    queues: BTreeMap<u32, QueueStage>,
    /// Arenas with their tails.
    tails: BTreeMap<u32, RegionId>,
    /// Bytes of their segments.
    bytes: BTreeMap<u32, u64>,
    /// The number that the next queue tries.
    next: u32,
}

impl SessionQueues {
    /// Forgets a queue.
    fn remove(&mut self, queue: u32) -> Option<QueueStage> {
        debug_assert!(self.bytes.contains_key(&queue), "every queue has a segment");
        self.tails.remove(&queue);
        self.bytes.remove(&queue);
        self.queues.remove(&queue)
    }

    /// The next number; skips those of queues that still live after four billion.
    fn number(&mut self) -> u32 {
        loop {
            let number = self.next;
            self.next = number.wrapping_add(1);
            if !self.queues.contains_key(&number) {
                debug_assert!(!self.tails.contains_key(&number), "tails go with their queue");
                debug_assert!(!self.bytes.contains_key(&number), "segments go with their queue");
                return number;
            }
        }
    }
}

/// Bytes of the segment of a queue with `lanes` lanes. 0 for an impossible shape: its creation
/// fails with the reason.
pub(crate) fn segment_bytes(lanes: usize, depth: u32) -> u64 {
    let lanes = u32::try_from(lanes).unwrap_or(u32::MAX);
    QueueSegment::bytes_needed(lanes, depth).map_or(0, |bytes| bytes as u64)
}

/// All queues of all sessions.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    sessions: BTreeMap<u64, SessionQueues>,
}

impl Queues {
    pub(crate) fn total(&self) -> usize {
        self.sessions.values().map(|owned| owned.queues.len()).sum()
    }

    /// Queues of a session.
    pub(crate) fn of(&self, session: u64) -> usize {
        self.sessions.get(&session).map_or(0, |owned| owned.queues.len())
    }

    /// Bytes of the segments of each session's queues.
    pub(crate) fn bytes(&self) -> BTreeMap<u64, u64> {
        let bytes = |owned: &SessionQueues| owned.bytes.values().sum();
        self.sessions.iter().map(|(session, owned)| (*session, bytes(owned))).collect()
    }

    fn get(&mut self, (session, queue): QueueKey) -> Option<&mut QueueStage> {
        self.sessions.get_mut(&session)?.queues.get_mut(&queue)
    }

    /// Checks the limits for one more queue. Comes before the seat, so that a refused request takes
    /// none.
    pub(crate) fn check(&self, session: u64, depth: u32, limits: &Limits) -> Result<(), Failure> {
        let most_depth = limits.queue_depth;
        if depth > most_depth {
            return Err(quota(format!(
                "a queue of depth {depth} requested, the most is {most_depth} \
                 (limits.lane_depth); request less or raise the limit"
            )));
        }
        let most = limits.queues_per_session;
        if self.of(session) >= most {
            return Err(quota(format!(
                "this client has {most} queues, the most it may have \
                 (limits.queues_per_session); close one or raise the limit"
            )));
        }
        if self.total() >= LANES_MAX {
            return Err(quota(format!(
                "the sidecar's clients have {LANES_MAX} queues, the most it can serve; close some"
            )));
        }
        Ok(())
    }

    /// Whether an arena may be detached: it may not hold the tails of a queue.
    pub(crate) fn check_tails(&self, (session, region): (u64, RegionId)) -> Result<(), Failure> {
        let owned = self.sessions.get(&session);
        let mut tails = owned.into_iter().flat_map(|owned| &owned.tails);
        match tails.find(|(_, tails)| **tails == region) {
            None => Ok(()),
            Some((queue, _)) => Err(invalid(format!(
                "arena {} holds the tails of queue {queue}; close the queue first",
                region.0
            ))),
        }
    }

    /// Makes a queue and offers it to the client.
    pub(crate) fn open(
        &mut self,
        (session, slot): (u64, SessionSlot),
        seq: u64,
        (shape, tails, tenant): ((usize, u32), Option<RegionId>, TenantSlot),
        worker: &MemoryWorker,
        waking: &Arc<Waking>,
    ) -> Result<Reply, Failure> {
        let (worker, queues, none) = (worker.clone(), BTreeMap::new(), BTreeMap::new());
        let owned = self.sessions.entry(session);
        let owned = owned.or_insert_with(|| {
            let bytes = BTreeMap::new();
            SessionQueues { slot, worker, queues, tails: none, bytes, next: 0 }
        });
        debug_assert_eq!(owned.slot, slot, "a session keeps its place");
        let queue = owned.number();
        let ((segment, fds), seats) = make(shape, (tails, tenant), (queue, waking))?;
        debug_assert_eq!(seats.len(), shape.0, "a lane for each poller");
        let answer = ControlReply::Queue { queue, segment_bytes: segment.bytes() as u64 };
        owned.queues.insert(queue, QueueStage::Offered { segment: Arc::clone(&segment), seats });
        owned.bytes.insert(queue, segment.bytes() as u64);
        owned.tails.extend(tails.map(|tails| (queue, tails)));
        Ok(Reply::new(session, seq, answer).with(segment, fds))
    }

    /// The client has mapped a queue: seals its memory, and gives its lanes to the pollers. Not
    /// earlier, because an access to a hole in a lane waits for a page.
    pub(crate) fn mapped(
        &mut self,
        (session, queue): QueueKey,
        seq: u64,
        pollers: &mut Pollers,
    ) -> Result<(), Failure> {
        let Some(owned) = self.sessions.get_mut(&session) else { return Err(no_queue(queue)) };
        let Some(entry) = owned.queues.get_mut(&queue) else { return Err(no_queue(queue)) };
        let QueueStage::Offered { segment, .. } = entry else { return Err(no_queue(queue)) };
        segment.close().map_err(|error| invalid(format!("the queue's segment: {error}")))?;
        let opening = QueueStage::Opening { seq, waiting: pollers.all() };
        let QueueStage::Offered { seats, .. } = std::mem::replace(entry, opening) else {
            return Ok(());
        };
        debug_assert_eq!(seats.len(), pollers.count(), "a lane for each poller");
        for (poller, seat) in seats.into_iter().enumerate() {
            pollers.send(poller, PollerCommand::AddLane(owned.slot, Box::new(seat)));
        }
        Ok(())
    }

    /// A poller serves the queue's lane.
    pub(crate) fn lane_added(&mut self, poller: usize, key: QueueKey) -> Option<Reply> {
        let entry = self.get(key)?;
        let QueueStage::Opening { waiting, .. } = entry else { return None };
        debug_assert!(waiting.contains(poller), "a poller takes a lane up once");
        waiting.remove(poller);
        if waiting.is_empty() { opened(key, entry) } else { None }
    }

    /// Answers what only stalled pollers keep from being answered, of sessions that live. Requests
    /// to them wait in their lanes, which they take up when they turn again.
    pub(crate) fn answer_past(&mut self, watch: &Watch, lives: impl Fn(u64) -> bool) -> Vec<Reply> {
        let stalled = watch.stalled();
        let living = self.sessions.iter_mut().filter(|(session, _)| lives(**session));
        let all = living.flat_map(|(session, owned)| {
            owned.queues.iter_mut().map(|(queue, entry)| ((*session, *queue), entry))
        });
        let waiting = all.filter(|(_, entry)| entry.waits_only_for(stalled));
        let answered = waiting.filter_map(|(key, entry)| match entry {
            QueueStage::Closing { seq, waiting } => {
                let failure = watch.kept(&format!("queue {}", key.1), *waiting);
                Some(Reply::failure(key.0, seq.take()?, failure))
            }
            _ => opened(key, entry),
        });
        answered.collect()
    }

    /// Requests all pollers to finish a queue; one that was never mapped is removed at once.
    pub(crate) fn close(
        &mut self,
        key: QueueKey,
        seq: u64,
        pollers: &mut Pollers,
    ) -> Result<Option<Reply>, Failure> {
        let (session, queue) = key;
        let Some(owned) = self.sessions.get_mut(&session) else { return Err(no_queue(queue)) };
        let slot = owned.slot;
        match owned.queues.get_mut(&queue) {
            // A repeated request, while a stalled poller keeps the queue.
            Some(QueueStage::Closing { seq: answered @ None, .. }) => {
                *answered = Some(seq);
                Ok(None)
            }
            Some(entry @ QueueStage::Live) => {
                let waiting = pollers.all();
                *entry = QueueStage::Closing { seq: Some(seq), waiting };
                pollers.send_each(waiting, || PollerCommand::CloseLane(slot, queue));
                Ok(None)
            }
            Some(QueueStage::Offered { .. }) => {
                if let Some(offered) = owned.remove(queue) {
                    offered.retire(&owned.worker);
                }
                Ok(Some(Reply::new(session, seq, ControlReply::QueueClosed { queue })))
            }
            _ => Err(no_queue(queue)),
        }
    }

    /// A poller gave a lane back. An error ends the session.
    pub(crate) fn lane_closed(
        &mut self,
        poller: usize,
        key: QueueKey,
    ) -> Result<Option<Reply>, String> {
        let (session, queue) = key;
        let Some(owned) = self.sessions.get_mut(&session) else { return Ok(None) };
        match owned.queues.get_mut(&queue) {
            Some(QueueStage::Closing { seq, waiting }) => {
                let seq = *seq;
                waiting.remove(poller);
                if !waiting.is_empty() {
                    return Ok(None);
                }
                owned.remove(queue);
                Ok(seq.map(|seq| Reply::new(session, seq, ControlReply::QueueClosed { queue })))
            }
            // It could not watch the doorbell.
            Some(QueueStage::Opening { .. } | QueueStage::Live) => Err(format!(
                "poller {poller} cannot serve queue {queue}: no room in its epoll set; raise \
                 fs.epoll.max_user_watches"
            )),
            // Its lanes are with no poller.
            Some(QueueStage::Offered { .. }) | None => Ok(None),
        }
    }

    /// Drops all queues of a session that no poller has any more.
    pub(crate) fn forget_all(&mut self, session: u64) {
        let Some(owned) = self.sessions.remove(&session) else { return };
        owned.queues.into_values().for_each(|queue| queue.retire(&owned.worker));
    }
}

/// The answer to a client whose queue is served.
fn opened((session, queue): QueueKey, entry: &mut QueueStage) -> Option<Reply> {
    let QueueStage::Opening { seq, .. } = *entry else { return None };
    *entry = QueueStage::Live;
    Some(Reply::new(session, seq, ControlReply::QueueServed { queue }))
}

/// The client's part: the memory, its wake fd, the doorbells.
type Offer = (Arc<Region>, Vec<OwnedFd>);

/// Makes both ends of a queue.
fn make(
    (lanes, depth): (usize, u32),
    (tails, tenant): (Option<RegionId>, TenantSlot),
    (queue, waking): (u32, &Arc<Waking>),
) -> Result<(Offer, Vec<LaneSeat>), Failure> {
    let count = u32::try_from(lanes).expect("pollers are few");
    let shape = |error: kvrail_ring::SegmentError| invalid(error.to_string());
    let bytes = QueueSegment::bytes_needed(count, depth).map_err(shape)?;
    let segment = Region::create_open("kvrail-queue", bytes)
        .map_err(|error| (Status::NoSpace, format!("the queue's segment: {error}")))?;
    let segment = Arc::new(segment);
    let memory = Arc::clone(&segment) as Arc<dyn Pinned>;
    let servers = QueueSegment::format(memory, count, depth).map_err(shape)?.into_server();
    let (bell, hear) = Doorbell::heard().map_err(descriptors)?;
    let bell = QueueDoorbell::new(bell, waking);
    let mut fds = vec![hear];
    let mut seats = Vec::with_capacity(lanes);
    for lane in servers {
        let doorbell = Doorbell::eventfd().map_err(descriptors)?;
        fds.push(doorbell.as_fd().try_clone_to_owned().map_err(descriptors_io)?);
        seats.push(LaneSeat { queue, lane, bell: Arc::clone(&bell), doorbell, tails, tenant });
    }
    Ok(((segment, fds), seats))
}

fn no_queue(queue: u32) -> Failure {
    invalid(format!("this client has no queue {queue} that could do that"))
}

fn descriptors(errno: Errno) -> Failure {
    quota(format!(
        "the sidecar cannot make the queue's bells ({errno}); of the sidecar: {}",
        descriptor_remedy(errno)
    ))
}

fn descriptors_io(error: std::io::Error) -> Failure {
    descriptors(Errno::from_io_error(&error).unwrap_or(Errno::MFILE))
}
