//! When a shard is due: for its next step, and for showing its counters.

/// Counters are shown this often.
const SHOW_NS: u64 = 10_000_000;

/// Times of one shard.
#[derive(Debug)]
pub(super) struct Pulse {
    /// A step is due in this tick.
    dirty: bool,
    /// When a step is due at the latest.
    due_ns: u64,
    /// When there was work last.
    active_ns: u64,
    shown_ns: u64,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self { dirty: true, due_ns: 0, active_ns: 0, shown_ns: 0 }
    }

    /// There is work in this tick.
    pub(super) fn touch(&mut self, now_ns: u64) {
        (self.dirty, self.active_ns) = (true, now_ns);
    }

    /// A step is due in this tick, or the next.
    pub(super) fn mark(&mut self) {
        self.dirty = true;
    }

    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.dirty || now_ns >= self.due_ns
    }

    /// A step begins.
    pub(super) fn begin_step(&mut self) {
        self.dirty = false;
    }

    /// The next step is due after this time at the latest.
    pub(super) fn end_step(&mut self, now_ns: u64, after_ns: u64) {
        self.due_ns = now_ns + after_ns;
    }

    /// How long there was no work.
    pub(super) fn idle_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.active_ns)
    }

    /// Whether counters are to be shown now.
    pub(super) fn take_show(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.shown_ns + SHOW_NS;
        if due {
            self.shown_ns = now_ns;
        }
        due
    }
}
