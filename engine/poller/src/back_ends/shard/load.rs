//! How much a shard has in flight.

/// Counts of a shard's work; each begins and ends once (invariant 1).
#[derive(Debug, Default)]
pub(super) struct ShardLoad {
    /// Tasks at the device, or on their way there, beside clients' own.
    tasks: u32,
    /// Clients' puts and drops that are not answered.
    requests: u32,
    /// Gets that are being read.
    reads: u32,
}

impl ShardLoad {
    pub(super) fn begin_tasks(&mut self, count: usize) {
        self.tasks += u32::try_from(count).expect("two at most");
    }

    pub(super) fn end_task(&mut self) {
        let left = self.tasks.checked_sub(1);
        self.tasks = left.expect("invariant 1: more ends than tasks");
    }

    pub(super) fn begin_request(&mut self) {
        self.requests += 1;
    }

    pub(super) fn end_request(&mut self) {
        let left = self.requests.checked_sub(1);
        self.requests = left.expect("invariant 1: more answers than requests");
    }

    #[inline(always)]
    pub(super) fn begin_reads(&mut self, count: u32) {
        self.reads += count;
    }

    #[inline]
    pub(super) fn end_reads(&mut self, count: u32) {
        let left = self.reads.checked_sub(count);
        self.reads = left.expect("invariant 1: more ends than reads");
    }

    pub(super) fn tasks(&self) -> u32 {
        self.tasks
    }

    pub(super) fn requests(&self) -> u32 {
        self.requests
    }

    /// Gets that are being read.
    pub(super) fn reads(&self) -> u32 {
        self.reads
    }

    /// Clients' requests that are not answered, gets included.
    pub(super) fn unanswered(&self) -> u32 {
        self.requests + self.reads
    }

    /// Whether nothing is at the device, or on its way there.
    pub(super) fn is_off_device(&self) -> bool {
        self.tasks + self.reads == 0
    }
}
