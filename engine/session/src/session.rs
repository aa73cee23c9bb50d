//! One client: its socket, what it has, where it is in its life.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kvrail_poller::{SessionSlot, Waking};
use kvrail_protocol::Channel;
use kvrail_ring::RegionId;

use crate::access::Peer;
use crate::arenas::Arena;
use crate::hand::Hand;
use crate::kept::Kept;
use crate::pollers::PollerSet;
use crate::queues::Queue;
use crate::report::Counts;

/// Characters of a client's names that are kept.
const NAME_CHARS: usize = 64;

/// Life of a session.
#[derive(Debug)]
pub(crate) enum Phase {
    /// Connected, has not said hello.
    Greeting {
        /// When we lose patience.
        deadline: Instant,
    },
    /// May ask for everything.
    Attached,
    /// The client is gone; pollers still give back what is theirs.
    Reclaiming {
        /// Why it ended.
        reason: String,
        /// Pollers that have not said that nothing is left.
        waiting: PollerSet,
    },
}

/// One client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) peer: Peer,
    pub(crate) name: String,
    pub(crate) library: String,
    /// None once the session has ended.
    pub(crate) channel: Option<Kept<Channel>>,
    /// The thread for what may take long.
    pub(crate) hand: Hand,
    /// A message with descriptors is being taken in. Until then its socket is not watched.
    pub(crate) fetching: bool,
    pub(crate) phase: Phase,
    /// When this phase began.
    pub(crate) since: Instant,
    /// When the client last said something.
    pub(crate) heard: Instant,
    /// Its place in the pollers' tables, from the first arena or queue on.
    pub(crate) slot: Option<SessionSlot>,
    /// What earlier sessions in that place had counted.
    pub(crate) counted_before: Counts,
    /// Arenas and regions of GPU memory.
    pub(crate) arenas: BTreeMap<RegionId, Arena>,
    pub(crate) queues: BTreeMap<u32, Queue>,
    pub(crate) next_queue: u32,
    /// How it is woken, from its first queue on.
    pub(crate) waking: Option<Arc<Waking>>,
}

impl Session {
    pub(crate) fn new(id: u64, peer: Peer, channel: Kept<Channel>, deadline: Instant) -> Self {
        Self {
            hand: channel.hand().clone(),
            fetching: false,
            id,
            peer,
            name: String::new(),
            library: String::new(),
            channel: Some(channel),
            phase: Phase::Greeting { deadline },
            since: Instant::now(),
            heard: Instant::now(),
            slot: None,
            counted_before: Counts::default(),
            arenas: BTreeMap::new(),
            queues: BTreeMap::new(),
            next_queue: 0,
            waking: None,
        }
    }

    /// Arenas in host memory.
    pub(crate) fn arena_count(&self) -> usize {
        self.arenas.values().filter(|arena| arena.gpu().is_none()).count()
    }

    /// Bytes of them.
    pub(crate) fn arena_bytes(&self) -> u64 {
        let host = self.arenas.values().filter(|arena| arena.gpu().is_none());
        host.map(Arena::bytes).sum()
    }

    /// Regions on this GPU, or on all, and their bytes.
    pub(crate) fn gpu_regions(&self, on: Option<usize>) -> (usize, u64) {
        let there = |arena: &&Arena| arena.gpu().is_some_and(|at| on.is_none_or(|on| on == at));
        let sizes = self.arenas.values().filter(there).map(Arena::bytes);
        sizes.fold((0, 0), |(count, bytes), more| (count + 1, bytes + more))
    }

    /// Whether it is attached and has nothing.
    pub(crate) fn is_visitor(&self) -> bool {
        matches!(self.phase, Phase::Attached) && self.slot.is_none()
    }

    /// Pollers that have not said that nothing of it is left, if it has ended.
    pub(crate) fn waits_for(&self) -> PollerSet {
        match self.phase {
            Phase::Reclaiming { waiting, .. } => waiting,
            Phase::Greeting { .. } | Phase::Attached => PollerSet::default(),
        }
    }

    pub(crate) fn is_reclaiming(&self) -> bool {
        matches!(self.phase, Phase::Reclaiming { .. })
    }

    /// The next number of a queue; skips those of queues that still live after four billion.
    pub(crate) fn number_queue(&mut self) -> u32 {
        loop {
            let number = self.next_queue;
            self.next_queue = number.wrapping_add(1);
            if !self.queues.contains_key(&number) {
                return number;
            }
        }
    }
}

/// A client's own words about itself, fit for logs and terminals.
pub(crate) fn printable(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn names_are_cut_and_cleaned() {
        assert_eq!(printable("vllm\n\u{1b}[31mworker"), "vllm[31mworker");
        assert_eq!(printable(&"é".repeat(1000)).chars().count(), 64);
    }
}
