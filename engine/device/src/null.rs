//! A device that does nothing, at once: the ceiling of everything around it.

use std::sync::Arc;

use kvrail_memory::Pinned;
use kvrail_ring::Status;

use crate::buffer_table::{BufferTable, Leave};
use crate::contract::{
    Attached, AttachedBytes, BUFFERS_MAX, BufferIndex, Description, Device, Event, Events,
    Finished, Operation, Wait,
};
use crate::error::DeviceResult;

/// Pretended properties of a null device.
#[derive(Clone, Copy, Debug)]
pub struct NullOptions {
    /// Bytes it claims to have.
    pub capacity_bytes: u64,
    /// Unit of offsets and lengths, in bytes.
    pub logical_block: u32,
    /// Operations it takes at once.
    pub depth: u32,
}

impl Default for NullOptions {
    /// 1 TiB of 512-byte blocks, 1,024 deep.
    fn default() -> Self {
        Self { capacity_bytes: 1 << 40, logical_block: 512, depth: 1024 }
    }
}

/// Completes everything at the first `reap` after its `submit`; moves no bytes.
#[derive(Debug)]
pub struct NullDevice {
    description: Description,
    /// Everything prepared, in order, as it will end; never longer than `depth`.
    queue: Vec<Event>,
    depth: usize,
    /// How many at the front of the queue were submitted.
    submitted: usize,
    table: BufferTable,
    /// Regions to be given back once the queue is empty.
    leaving: Vec<BufferIndex>,
}

impl NullDevice {
    /// Makes one.
    #[must_use]
    pub fn new(options: NullOptions) -> Self {
        let description = Description {
            name: "null".into(),
            kind: "null".into(),
            mode: "null".into(),
            reason: "configured".into(),
            features: vec!["moves no bytes".into()],
            io: "direct".into(),
            capacity_bytes: options.capacity_bytes,
            logical_block: options.logical_block,
            memory_alignment: 1,
            transfer_bytes_max: u32::MAX,
            depth: options.depth,
            bytes_per_second: Some(u64::MAX),
        };
        let depth = options.depth as usize;
        let queue = Vec::with_capacity(depth);
        let (table, leaving) = (BufferTable::new(), Vec::with_capacity(usize::from(BUFFERS_MAX)));
        Self { description, queue, depth, submitted: 0, table, leaving }
    }

    /// Regions leave once nothing is in flight.
    fn free_leaving(&mut self, events: &mut Events) {
        while self.queue.is_empty() && !events.is_full() {
            let Some(at) = self.leaving.pop() else { break };
            self.table.free(at);
            events.push(Event::Detached(at));
        }
    }
}

impl Device for NullDevice {
    fn description(&self) -> &Description {
        &self.description
    }

    fn begin_attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        self.table.attach(at, region)?;
        Ok(Attached::Whole)
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        assert_eq!(self.table.leave(at)?, Leave::Now, "the null device counts no uses");
        self.leaving.push(at);
        Ok(())
    }

    fn attached(&self) -> AttachedBytes {
        self.table.attached()
    }

    #[inline(always)]
    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        if self.queue.len() >= self.depth {
            return Err(operation);
        }
        let Operation { tag, length, .. } = operation;
        self.queue.push(Event::Finished(Finished { tag, status: Status::Ok, bytes: length }));
        Ok(())
    }

    #[inline]
    fn submit(&mut self) {
        self.submitted = self.queue.len();
    }

    #[inline]
    fn reap(&mut self, events: &mut Events) {
        let count = self.submitted.min(events.remaining_capacity());
        let taken = events.try_extend_from_slice(&self.queue[..count]);
        taken.expect("no more than there is room for");
        self.queue.drain(..count);
        self.submitted -= count;
        if !self.leaving.is_empty() {
            self.free_leaving(events);
        }
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.queue.len()).expect("at most `depth`")
    }

    fn wait(&self) -> Wait<'_> {
        Wait::Poll
    }
}
