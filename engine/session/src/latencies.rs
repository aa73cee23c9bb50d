//! Latencies of clients' calls: read from memory that each client is given, and added up over all
//! sessions, ended ones included.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_memory::{Pinned, Region};
use kvrail_poller::LatencyCounts;
use kvrail_protocol::{CallLatencyReport, SessionLatencyReport};
use kvrail_ring::{CALL_COUNTS_BYTES, CallCountsReader, TimedCall};

use crate::failure::{Failure, invalid, quota};
use crate::report::{histogram, quantiles};

/// How often the memory of all sessions is read.
const LOOK: Duration = Duration::from_secs(1);

/// One for each call, in the order of `TimedCall::ALL`.
type Counts = [LatencyCounts; TimedCall::ALL.len()];

/// Latencies of all sessions.
#[derive(Debug, Default)]
pub(crate) struct ClientLatencies {
    shared: BTreeMap<u64, Shared>,
    all: Counts,
    looked: Option<Instant>,
}

/// Latencies of one session.
#[derive(Debug)]
struct Shared {
    reader: CallCountsReader,
    counts: Counts,
}

impl ClientLatencies {
    /// Memory for the counts of a session, which is read from now on.
    pub(crate) fn share(&mut self, id: u64) -> Result<Arc<Region>, Failure> {
        if self.shared.contains_key(&id) {
            return Err(invalid("latencies are shared once in a session".into()));
        }
        let memory = Region::create_open("kvrail-latencies", CALL_COUNTS_BYTES);
        let memory = memory.map_err(|error| quota(format!("memory for latencies: {error}")))?;
        let memory = Arc::new(memory);
        let pinned: Arc<dyn Pinned> = Arc::<Region>::clone(&memory);
        let reader = CallCountsReader::new(&pinned);
        self.shared.insert(id, Shared { reader, counts: Counts::default() });
        Ok(memory)
    }

    /// Takes in what clients have counted, at most once a second, and forgets idle connections that
    /// had to make room. `hits` gets the gets from memory, by session and handle.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        lives: impl Fn(u64) -> bool,
        hits: impl FnMut((u64, u16), u64),
    ) {
        if self.looked.is_some_and(|looked| now.duration_since(looked) < LOOK) {
            return;
        }
        self.looked = Some(now);
        self.take_in(hits);
        self.shared.retain(|id, _| lives(*id));
    }

    /// Takes in what clients have counted until now.
    pub(crate) fn take_in(&mut self, mut hits: impl FnMut((u64, u16), u64)) {
        for (id, session) in &mut self.shared {
            session.take(&mut self.all);
            session.take_hits(*id, &mut hits);
        }
    }

    /// The session has ended: the last of its counts are taken in.
    pub(crate) fn end(&mut self, id: u64, mut hits: impl FnMut((u64, u16), u64)) {
        if let Some(mut session) = self.shared.remove(&id) {
            session.take(&mut self.all);
            session.take_hits(id, &mut hits);
        }
    }

    /// The calls of all sessions that were counted.
    pub(crate) fn report(&self) -> Vec<CallLatencyReport> {
        let calls = TimedCall::ALL.iter().zip(&self.all);
        let counted = calls.filter(|(_, counts)| counts.count() > 0);
        let report = counted.map(|(call, counts)| CallLatencyReport {
            operation: call.operation().into(),
            size: call.size().into(),
            latency: histogram(counts),
        });
        report.collect()
    }

    /// The calls of one session that were counted.
    pub(crate) fn of(&self, id: u64) -> Vec<SessionLatencyReport> {
        let counts = self.shared.get(&id).map(|session| &session.counts);
        let calls = counts.into_iter().flat_map(|counts| TimedCall::ALL.iter().zip(counts));
        let report = calls.filter(|(_, counts)| counts.count() > 0).map(|(call, counts)| {
            SessionLatencyReport {
                operation: call.operation().into(),
                size: call.size().into(),
                count: counts.count(),
                latency: quantiles(counts),
            }
        });
        report.collect()
    }
}

impl Shared {
    fn take(&mut self, all: &mut Counts) {
        for news in self.reader.take() {
            let at = news.call.index();
            self.counts[at].add_new(&news);
            all[at].add_new(&news);
        }
    }

    fn take_hits(&mut self, id: u64, hits: &mut impl FnMut((u64, u16), u64)) {
        self.reader.take_hits().for_each(|(handle, new)| hits((id, handle), new.into()));
    }
}
