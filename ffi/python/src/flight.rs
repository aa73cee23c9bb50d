//! Groups that one queue has under way: submitted now, fetched when they have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use kvrail_client::{ClientError, Completed, Queue, Status, SubmitErrorKind};

use crate::bounce::Bounce;
use crate::group::{Group, Halt};
use crate::results::{Found, Results};

/// What a group or a lookup came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    Results(Results),
    Found(Found),
}

/// A queue with its groups. The queue is dropped first: what is in flight has memory of the others.
#[derive(Debug)]
pub(crate) struct Flight {
    queue: Queue,
    bounce: Bounce,
    /// By ticket, in the order in which they go out.
    groups: BTreeMap<u32, Group>,
    done: Vec<Completed>,
    /// Ended, and not handed out yet.
    ended: Vec<(u32, Outcome)>,
    last_ticket: u32,
}

impl Flight {
    pub(crate) fn new(queue: Queue) -> Self {
        Self {
            queue,
            bounce: Bounce::default(),
            groups: BTreeMap::new(),
            done: Vec::new(),
            ended: Vec::new(),
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
        self.groups.len() + self.ended.len()
    }

    /// What has ended and was not handed out yet.
    pub(crate) fn ended(&self) -> usize {
        self.ended.len()
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

    /// Takes an answer that is there already; returns its ticket.
    pub(crate) fn answer(&mut self, found: Found) -> u32 {
        let ticket = self.next_ticket();
        self.ended.push((ticket, Outcome::Found(found)));
        ticket
    }

    /// Submits what there is room for, group by group.
    fn stage(&mut self) {
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

    /// Takes what has completed, and submits what there is room for then. Returns the groups that
    /// have ended.
    pub(crate) fn poll(&mut self) -> Vec<(u32, Group)> {
        self.queue.poll(&mut self.done);
        for done in self.done.drain(..) {
            if let Some(group) = self.groups.get_mut(&Group::number_of(&done)) {
                group.take(done);
            }
        }
        self.stage();
        let over = self.groups.iter().filter(|(_, group)| group.is_over());
        let over: Vec<u32> = over.map(|(ticket, _)| *ticket).collect();
        over.into_iter().filter_map(|ticket| self.groups.remove_entry(&ticket)).collect()
    }

    /// Waits for something to take.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<(), ClientError> {
        self.queue.wait_for(1, &mut self.done, timeout).map(drop)
    }

    /// Keeps what ended, to be handed out.
    pub(crate) fn keep(&mut self, ticket: u32, results: Results) {
        self.ended.push((ticket, Outcome::Results(results)));
    }

    /// Hands out up to `most`, in the order in which they ended.
    pub(crate) fn hand_out(&mut self, most: Option<usize>) -> Vec<(u32, Outcome)> {
        let count = most.unwrap_or(usize::MAX).min(self.ended.len());
        self.ended.drain(..count).collect()
    }

    /// The queue alone, to be closed, and what it held.
    pub(crate) fn into_queue(self) -> (Queue, (Bounce, BTreeMap<u32, Group>)) {
        (self.queue, (self.bounce, self.groups))
    }
}
