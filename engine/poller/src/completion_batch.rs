//! Completion batches: tasks that ended at one device, one after the other, and have in common
//! whatever is counted of them. All but the completion itself is done once for each batch.

use kvrail_device::WINDOW_BYTES;
use kvrail_ring::{Completion, Opcode, Status};

use crate::task::{ClientRequest, EndedRequests, RequestHeader, Task, TaskOwner};

/// How many tasks ended, and what they have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompletionBatch {
    accepted_ns: u64,
    submitted_ns: u64,
    pub(crate) header: RequestHeader,
    pub(crate) owner: TaskOwner,
    pub(crate) status: Status,
    /// From submission to completion, and from acceptance to submission.
    pub(crate) device_ns: u64,
    pub(crate) queue_ns: u64,
    /// The same as completions carry it: saturating.
    reported_ns: [u32; 2],
    pub(crate) count: u32,
    /// Bytes they asked for.
    pub(crate) length: u64,
    /// Bytes they moved, where that was not all.
    moved: u64,
}

impl CompletionBatch {
    /// A batch that this task would begin.
    #[inline]
    pub(crate) fn of(task: &Task, status: Status, now_ns: u64) -> Self {
        let Task { accepted_ns, submitted_ns, header, owner, .. } = *task;
        debug_assert!(submitted_ns >= accepted_ns, "a task is accepted before it is submitted");
        let device_ns = now_ns.saturating_sub(submitted_ns);
        let queue_ns = submitted_ns - accepted_ns;
        Self {
            accepted_ns,
            submitted_ns,
            header,
            owner,
            status,
            device_ns,
            queue_ns,
            reported_ns: [device_ns, queue_ns].map(|ns| u32::try_from(ns).unwrap_or(u32::MAX)),
            count: 0,
            length: 0,
            moved: 0,
        }
    }

    /// What was asked of the device, or of the store where the read is a block's.
    pub(crate) fn opcode(&self) -> Opcode {
        if self.header.is_of_block() { Opcode::Get } else { self.header.opcode() }
    }

    /// When its tasks were taken from their lane.
    pub(crate) fn accepted_ns(&self) -> u64 {
        self.accepted_ns
    }

    /// Whether this task goes on with it.
    #[inline(always)]
    pub(crate) fn continues(&self, task: &Task, status: Status) -> bool {
        self.accepted_ns == task.accepted_ns
            && self.submitted_ns == task.submitted_ns
            && self.header == task.header
            && self.owner.joins(task.owner)
            && self.status == status
    }

    /// Counts a task in; returns its completion. OK means all bytes.
    #[inline(always)]
    pub(crate) fn add(&mut self, task: &Task, client: ClientRequest, bytes: u32) -> Completion {
        self.count(task, bytes);
        self.completion(client, if self.status == Status::Ok { task.length } else { bytes })
    }

    /// Counts a task in.
    #[inline(always)]
    pub(crate) fn count(&mut self, task: &Task, bytes: u32) {
        debug_assert!(bytes <= task.length, "a task moves its bytes at most");
        self.count += 1;
        self.length += u64::from(task.length);
        if self.status != Status::Ok {
            self.moved += u64::from(bytes);
        }
    }

    /// How a task of this batch ends.
    #[inline(always)]
    pub(crate) fn completion(&self, client: ClientRequest, bytes: u32) -> Completion {
        Completion {
            user_data: client.user_data,
            status: self.status.number(),
            flags: 0,
            lap: 0,
            bytes,
            checksum: 0,
            device_ns: self.reported_ns[0],
            queue_ns: self.reported_ns[1],
        }
    }

    /// Bytes of them that their device held at once.
    #[inline(always)]
    pub(crate) fn held_bytes(&self) -> u64 {
        let windows = u64::from(self.count) * u64::from(WINDOW_BYTES);
        if self.header.is_long() { windows } else { self.length }
    }

    /// Bytes its tasks moved. OK means all bytes.
    #[inline(always)]
    pub(crate) fn bytes(&self) -> u64 {
        if self.status == Status::Ok { self.length } else { self.moved }
    }

    /// How its tasks are counted out at their client.
    #[inline(always)]
    pub(crate) fn ended(&self, client: ClientRequest) -> EndedRequests {
        debug_assert!(self.moved <= self.length, "a batch moves its bytes at most");
        let (status, count, bytes) = (self.status, self.count, self.bytes());
        EndedRequests { client, status, count, bytes, regions: [self.header.region(), None] }
    }
}
