//! Runs: requests that ended at one device, one after the other, and have in common whatever is
//! counted of them. All but the completion itself is done once for each run, not for each request.

use kvrail_ring::{Completion, Opcode, RegionId, Status};

use crate::accept::Accepted;
use crate::mailbox::SessionSlot;
use crate::unit::Side;

/// How many requests ended, and what they have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    accepted_ns: u64,
    submitted_ns: u64,
    pub(crate) lane: u16,
    pub(crate) session: SessionSlot,
    pub(crate) region: Option<RegionId>,
    pub(crate) side: Side,
    pub(crate) opcode: Opcode,
    pub(crate) status: Status,
    /// From submission to completion, and from acceptance to submission.
    pub(crate) device_ns: u64,
    pub(crate) queue_ns: u64,
    /// Requests.
    pub(crate) count: u32,
    /// Bytes they asked for.
    pub(crate) length: u64,
    /// Bytes they moved.
    pub(crate) bytes: u64,
}

impl Run {
    /// A run that this request would begin.
    #[inline]
    pub(crate) fn of(accepted: &Accepted, status: Status, now_ns: u64) -> Self {
        let Accepted { accepted_ns, submitted_ns, lane, session, opcode, .. } = *accepted;
        Self {
            accepted_ns,
            submitted_ns,
            lane,
            session,
            region: accepted.region(),
            side: accepted.side,
            opcode,
            status,
            device_ns: now_ns.saturating_sub(submitted_ns),
            queue_ns: submitted_ns - accepted_ns,
            count: 0,
            length: 0,
            bytes: 0,
        }
    }

    /// Whether this request goes on with it. A lane is of one session, a region of one side.
    #[inline(always)]
    pub(crate) fn continues(&self, accepted: &Accepted, status: Status) -> bool {
        self.accepted_ns == accepted.accepted_ns
            && self.submitted_ns == accepted.submitted_ns
            && (self.lane, self.opcode, self.status) == (accepted.lane, accepted.opcode, status)
            && self.region == accepted.region()
    }

    /// Counts a request in; returns its completion. OK means all bytes.
    #[inline(always)]
    pub(crate) fn add(&mut self, accepted: &Accepted, bytes: u32) -> Completion {
        let bytes = if self.status == Status::Ok { accepted.length } else { bytes };
        self.count += 1;
        self.length += u64::from(accepted.length);
        self.bytes += u64::from(bytes);
        self.completion(accepted, bytes)
    }

    /// How a request of this run ends.
    #[inline(always)]
    pub(crate) fn completion(&self, accepted: &Accepted, bytes: u32) -> Completion {
        let clip = |ns: u64| u32::try_from(ns).unwrap_or(u32::MAX);
        Completion {
            user_data: accepted.user_data,
            status: self.status.number(),
            flags: 0,
            lap: 0,
            bytes,
            checksum: accepted.sum,
            device_ns: clip(self.device_ns),
            queue_ns: clip(self.queue_ns),
        }
    }
}
