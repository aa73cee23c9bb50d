//! Latencies of this client's calls, counted in memory that its sidecar gives and reads.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kvrail_memory::{Pinned, Region, Sealing};
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::{CallLatencies, TimedCall};

use crate::control::Control;
use crate::error::ClientError;

/// The counts of a session, from its first queue on.
#[derive(Debug, Default)]
pub(crate) struct SharedLatencies(OnceLock<Option<Arc<CallLatencies>>>);

impl SharedLatencies {
    /// The counts for a queue. None for a sidecar of an earlier release, and where they cannot be
    /// shared: a queue without statistics is better than none.
    pub(crate) fn of(&self, control: &Control) -> QueueLatencies {
        QueueLatencies(self.0.get_or_init(|| share(control).ok().flatten()).clone())
    }
}

fn share(control: &Control) -> Result<Option<Arc<CallLatencies>>, ClientError> {
    if !control.protocol().shares_latencies() {
        return Ok(None);
    }
    let packet = control.call("sharing latencies", ControlRequest::ShareLatencies, &[])?;
    let (answer, [file]) = packet.exactly()?;
    let ControlReply::Latencies { bytes } = answer else {
        return Err(ClientError::protocol(format!("answer to latencies: {answer:?}")));
    };
    let memory: Arc<dyn Pinned> = Arc::new(Region::import_with(file, bytes, Sealing::Size)?);
    Ok(CallLatencies::new(&memory).map(Arc::new))
}

/// A queue's way to the counts.
#[derive(Debug, Default)]
pub(crate) struct QueueLatencies(Option<Arc<CallLatencies>>);

impl QueueLatencies {
    /// Counts a call that has ended.
    pub(crate) fn count(&self, call: TimedCall, took: Duration) {
        if let Some(counts) = &self.0 {
            counts.count(call, took);
        }
    }
}
