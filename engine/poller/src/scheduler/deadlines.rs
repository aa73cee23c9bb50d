//! Deadlines: which requests are to be reported late, and when.

use kvrail_device::SlotId;

/// How often deadlines are looked at: a tenth of the 10 ms a notice may be late.
const LOOK_NS: u64 = 1_000_000;

/// No place.
const NONE: u32 = u32::MAX;

/// A request in flight with a deadline.
#[derive(Clone, Copy, Debug)]
struct Timer {
    due_ns: u64,
    id: SlotId,
}

/// All deadlines of a poller, in no order.
#[derive(Debug)]
pub(crate) struct Deadlines {
    timers: Vec<Timer>,
    /// Where in `timers` the request of each slot has its deadline.
    places: Vec<u32>,
    last_look_ns: u64,
    next_look_ns: u64,
    /// Where the present look continues, and the earliest deadline it has passed by.
    at: usize,
    earliest_ns: u64,
}

impl Deadlines {
    /// Of this many requests at most.
    pub(crate) fn new(most: u32) -> Self {
        let most = most as usize;
        Self {
            timers: Vec::with_capacity(most),
            places: vec![NONE; most],
            last_look_ns: 0,
            next_look_ns: u64::MAX,
            at: 0,
            earliest_ns: u64::MAX,
        }
    }

    /// Sets the deadline of a request.
    pub(crate) fn set(&mut self, due_ns: u64, id: SlotId) {
        let place = u32::try_from(self.timers.len()).expect("one deadline for each request");
        let set = std::mem::replace(&mut self.places[id.index() as usize], place);
        debug_assert_eq!(set, NONE, "a request has one deadline");
        self.timers.push(Timer { due_ns, id });
        let soonest_ns = self.last_look_ns.saturating_add(LOOK_NS);
        self.next_look_ns = self.next_look_ns.min(due_ns.max(soonest_ns));
    }

    /// The request is completed; it may have no deadline, or none any more.
    #[inline]
    pub(crate) fn clear(&mut self, id: SlotId) {
        if self.timers.is_empty() {
            return; // the usual case
        }
        let place = self.places[id.index() as usize];
        if place != NONE {
            debug_assert_eq!(self.timers[place as usize].id, id, "a deadline goes with its task");
            self.remove(place as usize);
        }
    }

    fn remove(&mut self, at: usize) -> SlotId {
        let gone = self.timers.swap_remove(at).id;
        self.places[gone.index() as usize] = NONE;
        if let Some(moved) = self.timers.get(at) {
            self.places[moved.id.index() as usize] = u32::try_from(at).expect("it fitted before");
        }
        gone
    }

    /// The next request whose deadline has passed; nothing when the look is over.
    pub(crate) fn next_due(&mut self, now_ns: u64) -> Option<SlotId> {
        if now_ns < self.next_look_ns {
            return None;
        }
        while let Some(timer) = self.timers.get(self.at) {
            if timer.due_ns <= now_ns {
                return Some(self.remove(self.at));
            }
            self.earliest_ns = self.earliest_ns.min(timer.due_ns);
            self.at += 1;
        }
        self.next_look_ns = self.earliest_ns.max(now_ns.saturating_add(LOOK_NS));
        self.last_look_ns = now_ns;
        (self.at, self.earliest_ns) = (0, u64::MAX);
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

    use super::Deadlines;

    #[test]
    fn each_deadline_is_due_once_and_in_time() {
        let mut timers = Deadlines::new(16);
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

    #[test]
    fn completed_requests_are_forgotten_and_the_next_look_waits_for_a_deadline() {
        let mut timers = Deadlines::new(16);
        for index in 0..4 {
            timers.set(10_000_000 + index, SlotId::from_u64(index));
        }
        timers.clear(SlotId::from_u64(0));
        timers.clear(SlotId::from_u64(2));
        timers.clear(SlotId::from_u64(2));
        assert_eq!(timers.next_due(1_000_000), None);
        assert_eq!(timers.sleep_ns(1_000_000, u64::MAX), 9_000_000);
        let due = || timers.next_due(11_000_000).map(SlotId::to_u64);
        let mut due: Vec<u64> = std::iter::from_fn(due).collect();
        due.sort_unstable();
        assert_eq!(due, [1, 3]);
    }
}
