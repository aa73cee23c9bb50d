//! Deadlines: which requests are to be reported late, and when.

use kvrail_device::SlotId;

use crate::sessions::REQUESTS_MAX;

/// How often deadlines are looked at: a tenth of the 10 ms a notice may be late.
const LOOK_NS: u64 = 1_000_000;

/// A request with a deadline. It may have been completed meanwhile; its slot's generation tells.
#[derive(Clone, Copy, Debug)]
struct Timer {
    due_ns: u64,
    id: SlotId,
}

/// All deadlines of a poller, in no order.
#[derive(Debug)]
pub(crate) struct Timers {
    timers: Vec<Timer>,
    next_look_ns: u64,
    /// Where the present look continues.
    at: usize,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { timers: Vec::with_capacity(2 * REQUESTS_MAX as usize), next_look_ns: 0, at: 0 }
    }

    /// Sets a deadline. When the table is full of deadlines long completed, the notice of this
    /// one is dropped, as notices may be.
    pub(crate) fn set(&mut self, due_ns: u64, id: SlotId) {
        if self.timers.len() < self.timers.capacity() {
            self.timers.push(Timer { due_ns, id });
            self.next_look_ns = self.next_look_ns.min(due_ns);
        }
    }

    /// The next request whose deadline has passed; nothing when the look is over.
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<SlotId> {
        if self.timers.is_empty() || now_ns < self.next_look_ns {
            return None;
        }
        while let Some(timer) = self.timers.get(self.at) {
            if timer.due_ns <= now_ns {
                return Some(self.timers.swap_remove(self.at).id);
            }
            self.at += 1;
        }
        self.at = 0;
        self.next_look_ns = now_ns + LOOK_NS;
        None
    }

    /// How long a sleep may last without missing a deadline.
    pub(crate) fn sleep_ns(&self, now_ns: u64, longest_ns: u64) -> u64 {
        if self.timers.is_empty() {
            return longest_ns;
        }
        self.next_look_ns.saturating_sub(now_ns).clamp(1, longest_ns)
    }
}

#[cfg(test)]
mod tests {
    use kvrail_device::SlotId;

    use super::Timers;

    #[test]
    fn each_deadline_is_due_once_and_in_time() {
        let mut timers = Timers::new();
        timers.set(5_000_000, SlotId::from_u64(5));
        timers.set(2_000_000, SlotId::from_u64(2));
        timers.set(9_000_000, SlotId::from_u64(9));
        let mut seen = Vec::new();
        for now in (0..12_000_000).step_by(100_000) {
            while let Some(id) = timers.next_due(now) {
                seen.push((id.to_u64(), now));
            }
        }
        let order: Vec<u64> = seen.iter().map(|(id, _)| *id).collect();
        assert_eq!(order, [2, 5, 9]);
        for (id, at) in seen {
            assert!((id * 1_000_000..=id * 1_000_000 + 1_100_000).contains(&at), "{id} at {at}");
        }
        assert_eq!(timers.sleep_ns(0, 77), 77);
    }
}
