//! What one queue has in flight: requests for ranges, groups of blocks and lookups, submitted now
//! and fetched when they have ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use kvrail_client::{
    BlockKey, ClientError, Completed, Lookup, Namespace, PendingLookup, Queue, Status,
    SubmitErrorKind,
};
use pyo3::PyResult;

use crate::bounce::Bounce;
use crate::group::{Group, Halt};
use crate::results::{Found, Results};

/// An end that waits to be handed out.
#[derive(Debug)]
pub(crate) enum FlightEnd {
    /// Of a request for a range, or a notice.
    Range(Completed),
    /// Of the group with this ticket.
    Group(u32, PyResult<Results>),
    /// Of the lookup with this ticket.
    Lookup(u32, PyResult<Found>),
}

/// What a lookup is about: enough to ask again.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) space: Namespace,
    pub(crate) keys: Vec<BlockKey>,
    pub(crate) how: Lookup,
    /// When it is given up.
    pub(crate) until: Option<Instant>,
    /// Whether the namespace was found cleared before.
    pub(crate) again: bool,
}

/// A lookup that has ended.
pub(crate) type EndedLookup = (u32, Question, Result<kvrail_client::Found, ClientError>);

/// A queue with what it has in flight. The queue is dropped first: what is in flight has memory of
/// the others.
#[derive(Debug)]
pub(crate) struct Flight {
    queue: Queue,
    bounce: Bounce,
    /// Requests for ranges that have not ended.
    ranges: usize,
    /// By ticket, in the order in which they go out.
    groups: BTreeMap<u32, Group>,
    lookups: BTreeMap<u32, (Question, PendingLookup)>,
    done: Vec<Completed>,
    /// In the order in which they ended.
    ended: VecDeque<FlightEnd>,
    last_ticket: u32,
}

impl Flight {
    pub(crate) fn new(queue: Queue) -> Self {
        Self {
            queue,
            bounce: Bounce::default(),
            ranges: 0,
            groups: BTreeMap::new(),
            lookups: BTreeMap::new(),
            done: Vec::new(),
            ended: VecDeque::new(),
            last_ticket: 0,
        }
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn queue_mut(&mut self) -> &mut Queue {
        &mut self.queue
    }

    pub(crate) fn bounce(&self) -> &Bounce {
        &self.bounce
    }

    /// Groups and lookups that were not handed out yet.
    pub(crate) fn outstanding(&self) -> usize {
        self.groups.len() + self.lookups.len() + self.ended.len()
    }

    /// What has ended and was not handed out yet.
    pub(crate) fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Whether something was fetched that the program has not got.
    pub(crate) fn has_news(&self) -> bool {
        !self.ended.is_empty() || !self.done.is_empty()
    }

    /// Whether nothing is in flight that could end.
    pub(crate) fn is_idle(&self) -> bool {
        self.ranges == 0 && self.groups.is_empty() && self.lookups.is_empty()
    }

    /// Submits requests for ranges with `submit`, which returns the first ticket and how many were
    /// submitted.
    pub(crate) fn submit_ranges(
        &mut self,
        submit: impl FnOnce(&mut Queue) -> PyResult<(Option<u64>, usize)>,
    ) -> PyResult<(Option<u64>, usize)> {
        let (first, count) = submit(&mut self.queue)?;
        self.ranges += count;
        Ok((first, count))
    }

    fn next_ticket(&mut self) -> u32 {
        self.last_ticket = self.last_ticket.wrapping_add(1);
        self.last_ticket
    }

    /// Takes a group and submits what there is room for; returns its ticket.
    pub(crate) fn submit(&mut self, group: Group) -> u32 {
        let ticket = self.next_ticket();
        self.groups.insert(ticket, group.numbered(ticket));
        self.stage();
        ticket
    }

    /// Begins a lookup; returns its ticket.
    pub(crate) fn look_up(&mut self, question: Question) -> Result<u32, ClientError> {
        let ticket = self.next_ticket();
        self.look_up_again(ticket, question)?;
        Ok(ticket)
    }

    /// Begins a lookup under a ticket that was given out.
    pub(crate) fn look_up_again(
        &mut self,
        ticket: u32,
        question: Question,
    ) -> Result<(), ClientError> {
        let Question { space, keys, how, .. } = &question;
        let pending = self.queue.begin_lookup(space, keys, how)?;
        self.lookups.insert(ticket, (question, pending));
        Ok(())
    }

    /// Submits what there is room for, group by group.
    pub(crate) fn stage(&mut self) {
        for group in self.groups.values_mut().filter(|group| !group.is_staged()) {
            match group.stage(&mut self.queue, &self.bounce) {
                Ok(()) if group.is_staged() => {}
                Ok(()) => break,
                // It ends when what went out before has ended.
                Err(Halt::Refused(SubmitErrorKind::SidecarGone)) => group.fail(Status::Restarted),
                Err(_) => group.fail(Status::Internal),
            }
        }
        self.queue.publish();
    }

    /// Takes what has completed, and submits what there is room for then. Returns the groups and
    /// the lookups that have ended.
    pub(crate) fn poll(&mut self) -> (Vec<(u32, Group)>, Vec<EndedLookup>) {
        // What was in flight at most: whoever polls gets back to its work.
        for _ in 0..self.queue.outstanding().max(1) {
            let came = self.queue.poll_some(&mut self.done);
            for done in self.done.drain(..) {
                // A queue of a volume has no groups, and one of a namespace no ranges.
                if self.ranges > 0 {
                    self.ranges -= usize::from(!done.is_notice());
                    self.ended.push_back(FlightEnd::Range(done));
                } else if let Some(group) = self.groups.get_mut(&Group::number_of(&done)) {
                    group.take(done);
                }
            }
            self.stage(); // before the next are verified
            if came == 0 {
                break;
            }
        }
        let answers = self.answers();
        let over = self.groups.iter().filter(|(_, group)| group.is_over());
        let over: Vec<u32> = over.map(|(ticket, _)| *ticket).collect();
        let over = over.into_iter().filter_map(|ticket| self.groups.remove_entry(&ticket));
        (over.collect(), answers)
    }

    /// The lookups that have ended, or whose time is over.
    fn answers(&mut self) -> Vec<EndedLookup> {
        let Self { queue, lookups, .. } = self;
        let mut over = Vec::new();
        for (ticket, (question, pending)) in &mut *lookups {
            match queue.poll_lookup(pending) {
                Ok(Some(found)) => over.push((*ticket, Ok(found))),
                Ok(None) if question.until.is_some_and(|until| until <= Instant::now()) => {
                    let after = question.how.timeout;
                    over.push((*ticket, Err(ClientError::Timeout { what: "a lookup", after })));
                }
                Ok(None) => {}
                Err(error) => over.push((*ticket, Err(error))),
            }
        }
        let ended = |(ticket, outcome)| {
            let (question, pending) = lookups.remove(&ticket).expect("it was there just now");
            queue.end_lookup(pending);
            (ticket, question, outcome)
        };
        over.into_iter().map(ended).collect()
    }

    /// The groups whose namespace was cleared under them.
    pub(crate) fn cleared(&mut self) -> impl Iterator<Item = &mut Group> {
        self.groups.values_mut().filter(|group| group.is_cleared())
    }

    /// Waits for something to take: for `count` ends of ranges, or any news of blocks.
    pub(crate) fn wait(&mut self, count: usize, timeout: Duration) -> Result<(), ClientError> {
        let wanted = if self.ranges > 0 { count } else { 1 };
        self.queue.wait_for(wanted, &mut self.done, timeout).map(drop)
    }

    /// Keeps an end, to be handed out.
    pub(crate) fn keep(&mut self, end: FlightEnd) {
        self.ended.push_back(end);
    }

    /// Hands out up to `most`, in the order in which they ended.
    pub(crate) fn hand_out(&mut self, most: Option<usize>) -> Vec<FlightEnd> {
        let count = most.unwrap_or(usize::MAX).min(self.ended.len());
        self.ended.drain(..count).collect()
    }

    /// The queue alone, to be closed, and what it held.
    pub(crate) fn into_queue(self) -> (Queue, (Bounce, BTreeMap<u32, Group>)) {
        (self.queue, (self.bounce, self.groups))
    }
}
