//! Runs: requests that ended at one device, one after the other, and have in common whatever is
//! counted of them. All but the completion itself is done once for each run, not for each request.

use kvrail_ring::{Completion, Status};

use crate::accept::{Accepted, Kin};
use crate::budget::held_bytes;
use crate::mailbox::SessionSlot;

/// How many requests ended, and what they have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    accepted_ns: u64,
    submitted_ns: u64,
    pub(crate) kin: Kin,
    pub(crate) lane: u16,
    pub(crate) session: SessionSlot,
    pub(crate) status: Status,
    /// From submission to completion, and from acceptance to submission.
    pub(crate) device_ns: u64,
    pub(crate) queue_ns: u64,
    /// The same as completions say it: saturating.
    told_ns: [u32; 2],
    /// Requests.
    pub(crate) count: u32,
    /// Bytes they asked for.
    pub(crate) length: u64,
    /// Bytes of them that their device held at once.
    pub(crate) held: u64,
    /// Bytes they moved, where that was not all.
    moved: u64,
}

impl Run {
    /// A run that this request would begin.
    #[inline]
    pub(crate) fn of(accepted: &Accepted, status: Status, now_ns: u64) -> Self {
        let Accepted { accepted_ns, submitted_ns, kin, lane, session, .. } = *accepted;
        let device_ns = now_ns.saturating_sub(submitted_ns);
        let queue_ns = submitted_ns - accepted_ns;
        Self {
            accepted_ns,
            submitted_ns,
            kin,
            lane,
            session,
            status,
            device_ns,
            queue_ns,
            told_ns: [device_ns, queue_ns].map(|ns| u32::try_from(ns).unwrap_or(u32::MAX)),
            count: 0,
            length: 0,
            held: 0,
            moved: 0,
        }
    }

    /// Whether this request goes on with it.
    #[inline(always)]
    pub(crate) fn continues(&self, accepted: &Accepted, status: Status) -> bool {
        self.accepted_ns == accepted.accepted_ns
            && self.submitted_ns == accepted.submitted_ns
            && self.kin == accepted.kin
            && self.lane == accepted.lane
            && self.status == status
    }

    /// Counts a request in that moved all bytes, in a run of such; returns its completion.
    #[inline(always)]
    pub(crate) fn add_whole(&mut self, accepted: &Accepted) -> Completion {
        self.count += 1;
        self.length += u64::from(accepted.length);
        self.held += u64::from(held_bytes(accepted.length));
        self.completion(accepted, accepted.length)
    }

    /// Bytes its requests moved. OK means all bytes.
    pub(crate) fn bytes(&self) -> u64 {
        if self.status == Status::Ok { self.length } else { self.moved }
    }

    /// Counts a request in; returns its completion. OK means all bytes.
    #[inline(always)]
    pub(crate) fn add(&mut self, accepted: &Accepted, bytes: u32) -> Completion {
        let bytes = if self.status == Status::Ok { accepted.length } else { bytes };
        self.count += 1;
        self.length += u64::from(accepted.length);
        self.held += u64::from(held_bytes(accepted.length));
        self.moved += u64::from(bytes);
        self.completion(accepted, bytes)
    }

    /// How a request of this run ends.
    #[inline(always)]
    pub(crate) fn completion(&self, accepted: &Accepted, bytes: u32) -> Completion {
        Completion {
            user_data: accepted.user_data,
            status: self.status.number(),
            flags: 0,
            lap: 0,
            bytes,
            checksum: accepted.sum,
            device_ns: self.told_ns[0],
            queue_ns: self.told_ns[1],
        }
    }
}
