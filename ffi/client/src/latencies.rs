//! Latencies of this client's calls, counted in memory that its sidecar gives and reads.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kvrail_memory::{Pinned, Region, Sealing};
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::{CallCounts, TimedCall};

use crate::control::Control;
use crate::error::ClientError;

/// The counts of a session, from its first queue on.
#[derive(Debug, Default)]
pub(crate) struct SharedLatencies(OnceLock<Option<Arc<CallCounts>>>);

impl SharedLatencies {
    /// The counts for a queue. None for a sidecar of an earlier release, and where they cannot be
    /// shared: a queue without statistics is better than none.
    pub(crate) fn of(&self, control: &Control) -> QueueLatencies {
        let counts = self.0.get_or_init(|| share(control).ok().flatten()).clone();
        QueueLatencies { counts, ..QueueLatencies::none() }
    }
}

fn share(control: &Control) -> Result<Option<Arc<CallCounts>>, ClientError> {
    if !control.protocol().shares_latencies() {
        return Ok(None);
    }
    let packet = control.call("sharing latencies", ControlRequest::ShareLatencies, &[])?;
    let (answer, [file]) = packet.exactly()?;
    let ControlReply::Latencies { bytes } = answer else {
        return Err(ClientError::protocol(format!("answer to latencies: {answer:?}")));
    };
    let memory: Arc<dyn Pinned> = Arc::new(Region::import_with(file, bytes, Sealing::Size)?);
    Ok(CallCounts::new(&memory).map(Arc::new))
}

/// Blocks up to this size share a look at the clock, which costs a twentieth of a get of 4 KiB. The
/// checksum of a longer one delays the begin of the next call noticeably.
const SHARED_BYTES: u64 = 16 << 10;

/// A queue's way to the counts, and its clock, in nanoseconds since the queue was opened.
#[derive(Debug)]
pub(crate) struct QueueLatencies {
    counts: Option<Arc<CallCounts>>,
    opened: Instant,
    /// When the first call was staged that is not published yet.
    staged_ns: Option<u64>,
    /// When the first call ended of those that are being fetched.
    ended_ns: Option<u64>,
}

impl QueueLatencies {
    /// Counts nothing.
    pub(crate) fn none() -> Self {
        Self { counts: None, opened: Instant::now(), staged_ns: None, ended_ns: None }
    }

    /// The begin of a call for a block of this length.
    #[inline]
    pub(crate) fn begin(&mut self, bytes: u64) -> u64 {
        look(self.opened, &mut self.staged_ns, bytes)
    }

    /// What was staged is published.
    pub(crate) fn published(&mut self) {
        self.staged_ns = None;
    }

    /// What has ended is fetched from now on.
    pub(crate) fn fetching(&mut self) {
        self.ended_ns = None;
    }

    /// Counts a call that has ended, for a block of this length.
    #[inline]
    pub(crate) fn end(&mut self, call: TimedCall, begun_ns: u64, bytes: u64) {
        if let Some(counts) = &self.counts {
            let ended_ns = look(self.opened, &mut self.ended_ns, bytes);
            counts.count(call, ended_ns.saturating_sub(begun_ns));
        }
    }

    /// Counts a get that ended without a request, of a block of this length in the namespace with
    /// this handle.
    #[inline]
    pub(crate) fn end_in_memory(&mut self, handle: u16, begun_ns: u64, bytes: u64) {
        self.end(TimedCall::GetFromMemory, begun_ns, bytes);
        if let Some(counts) = &self.counts {
            counts.count_hit(handle);
        }
    }

    /// Counts a call that took this time.
    pub(crate) fn count(&self, call: TimedCall, took: Duration) {
        if let Some(counts) = &self.counts {
            counts.count(call, ns_of(took));
        }
    }
}

#[inline]
fn look(opened: Instant, shared_ns: &mut Option<u64>, bytes: u64) -> u64 {
    if bytes > SHARED_BYTES {
        *shared_ns = None;
    }
    *shared_ns.get_or_insert_with(|| ns_of(opened.elapsed()))
}

fn ns_of(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
