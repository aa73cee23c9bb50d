//! Data of block reads: their expected checksums, and ends of which the store is not notified yet.

use kvrail_device::SlotId;
use kvrail_ring::{Completion, Status};

use crate::completion_batch::CompletionBatch;
use crate::task::{BlockRead, ClientRequest, Task};

/// Reads of blocks that hold the same and have ended: their clients have their completions, their
/// store does not know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadEnds {
    pub(crate) read: BlockRead,
    pub(crate) status: Status,
    pub(crate) count: u32,
}

/// Checks of those under way, and those that have ended.
#[derive(Debug)]
pub(crate) struct BlockReads {
    /// Check of the block that the task in each slot reads.
    checks: Box<[u64]>,
    /// Those that no store knows of: room for all.
    ended: Vec<ReadEnds>,
}

impl BlockReads {
    pub(crate) fn new(tasks_max: u32, stores: bool) -> Self {
        let most = if stores { tasks_max as usize } else { 0 };
        Self { checks: vec![0; most].into_boxed_slice(), ended: Vec::with_capacity(most) }
    }

    /// The task in this slot reads a block with this check.
    #[inline(always)]
    pub(crate) fn begin(&mut self, id: SlotId, check: u64) {
        debug_assert!(self.ended.len() < self.ended.capacity(), "a place for each end");
        self.checks[id.index() as usize] = check;
    }

    /// The next ones that have ended.
    #[inline(always)]
    pub(crate) fn next_ends(&mut self) -> Option<ReadEnds> {
        self.ended.pop()
    }

    /// Counts a client's task into its batch; returns its completion. The store of a block that was
    /// read is notified later.
    #[inline(always)]
    pub(crate) fn completion(
        &mut self,
        (id, task, client): (SlotId, &Task, ClientRequest),
        bytes: u32,
        batch: &mut CompletionBatch,
    ) -> Completion {
        let completion = batch.add(task, client, bytes);
        // All of a batch are: its header is not loaded for each task.
        if !batch.header.is_of_block() {
            return completion;
        }
        let (read, status) = (task.owner.block_read(), batch.status);
        match self.ended.last_mut() {
            // Blocks that were put one after the other are mostly read so.
            Some(ends) if (ends.read, ends.status) == (read, status) => ends.count += 1,
            _ => self.ended.push(ReadEnds { read, status, count: 1 }),
        }
        if batch.status == Status::Ok {
            Completion { checksum: self.checks[id.index() as usize], ..completion }
        } else {
            Completion { bytes: 0, ..completion }
        }
    }
}
