//! Latencies of clients' calls: read from memory that each client shares, and added up over all
//! sessions, ended ones included.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use kvrail_memory::{MemoryError, View};
use kvrail_poller::LatencyCounts;
use kvrail_protocol::{CallLatencyReport, SessionLatencyReport};
use kvrail_ring::{CALL_LATENCIES_BYTES, CallLatenciesReader, TimedCall};

use crate::failure::{Failure, invalid};
use crate::report::{histogram, quantiles};

/// Most bytes that a client shares: the counts take one page, of 64 KiB at most.
const BYTES_MAX: u64 = 64 << 10;
const _: () = assert!(CALL_LATENCIES_BYTES as u64 <= BYTES_MAX);

/// How often the memory of all sessions is read. Its sums come round after 73 minutes of latency.
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
    reader: CallLatenciesReader,
    counts: Counts,
}

impl ClientLatencies {
    /// Reads the memory behind this descriptor from now on.
    pub(crate) fn share(&mut self, id: u64, fds: &[OwnedFd], bytes: u64) -> Result<(), Failure> {
        if self.shared.contains_key(&id) {
            return Err(invalid("latencies are shared once in a session".into()));
        }
        if bytes > BYTES_MAX {
            let message = format!("latencies in {bytes} bytes; {BYTES_MAX} at most");
            return Err(invalid(message));
        }
        let open = |fd: &OwnedFd| CallLatenciesReader::new(View::open(fd.as_fd(), bytes)?);
        let reader = fds.first().ok_or(MemoryError::NotMemfd).and_then(open);
        let reader = reader.map_err(|error| invalid(format!("latencies: {error}")))?;
        self.shared.insert(id, Shared { reader, counts: Counts::default() });
        Ok(())
    }

    /// Takes in what clients have counted, at most once a second.
    pub(crate) fn look(&mut self, now: Instant) {
        if self.looked.is_some_and(|looked| now.duration_since(looked) < LOOK) {
            return;
        }
        self.looked = Some(now);
        self.shared.values_mut().for_each(|session| session.take(&mut self.all));
    }

    /// The session has ended: the last of its counts are taken in.
    pub(crate) fn end(&mut self, id: u64) {
        if let Some(mut session) = self.shared.remove(&id) {
            session.take(&mut self.all);
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
}
