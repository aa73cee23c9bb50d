//! What is answered although a stalled poller has not: its clients wait for no device that hangs.
//!
//! What is new is given out when all other pollers have it. The stalled one has its command in its
//! mailbox, and obeys before it takes requests, so a request that relies on it comes later. What is
//! to be given back is kept until the stalled poller let go of it (invariant 2), and the client is
//! told so; nobody hears when it is done.

use kvrail_poller::{Command, SessionSlot};
use kvrail_protocol::Hardware;
use kvrail_ring::{RegionId, Status};

use crate::asks::Failure;
use crate::leaving::Ending;
use crate::pollers::PollerSet;
use crate::server::Server;
use crate::session::Session;

impl Server {
    /// Answers whatever only stalled pollers keep from being answered.
    pub(crate) fn answer_past_stalled(&mut self) {
        let stalled = self.watch.stalled();
        if stalled.is_empty() {
            return;
        }
        let living = || self.sessions.values().filter(|session| !session.is_reclaiming());
        let of = |session: &Session| {
            let id = session.id;
            let waiting = session.queues.iter().filter(|(_, it)| it.waits_only_for(stalled));
            waiting.map(|(&queue, _)| (id, queue)).collect::<Vec<_>>()
        };
        let queues: Vec<_> = living().flat_map(of).collect();
        let of = |session: &Session| {
            let id = session.id;
            let waiting = session.arenas.iter().filter(|(_, it)| it.waits_only_for(stalled));
            waiting.map(|(&region, _)| (id, region)).collect::<Vec<_>>()
        };
        let regions: Vec<_> = living().flat_map(of).collect();
        for (id, queue) in queues {
            self.queue_past(id, queue);
        }
        for (id, region) in regions {
            self.region_past(id, region);
        }
    }

    /// What these pollers do not give back yet, and why.
    pub(crate) fn kept(&self, what: &str, by: PollerSet) -> Failure {
        let words = self.watch.words(by);
        let message = format!(
            "{what} is given back when {words} turns again: a device keeps it in the kernel (see \
             `kvrail status` and the log); hardware may still touch its memory"
        );
        (Status::DeviceDegraded, message)
    }

    /// Dead clients that keep their places because a poller is stalled, in words; empty when
    /// there are none.
    pub(crate) fn kept_places(&self) -> String {
        let stalled = self.watch.stalled();
        let kept = self.sessions.values().filter(|it| !it.waits_for().common(stalled).is_empty());
        match kept.count() {
            0 => String::new(),
            count => format!("; {count} of ended clients wait for {}", self.watch.words(stalled)),
        }
    }

    /// A poller could not do what its client was told is done.
    pub(crate) fn broke_word(&mut self, id: u64, poller: usize, what: &str) {
        let reason = format!("poller {poller} turns again after it was stalled, and {what}");
        self.end(id, Ending::Dismissed(reason, Hardware::MayBeActive));
    }

    /// Has pollers forget a region.
    pub(crate) fn detach_from(&mut self, from: PollerSet, slot: SessionSlot, region: RegionId) {
        self.pollers.send_each(from, || Command::Detach(slot, region));
    }
}
