//! The bells of clients, and who rings them: their poller, as long as that is cheap.
//!
//! To wake a client costs whoever rings as much as the client likes: the kernel looks at everything
//! that watches the bell, one after the other, and a client can have a hundred thousand watchers.
//! No descriptor that can be waited for is without that. So a poller looks at what its rings cost,
//! and a session whose rings are dear is handed to the ringer, a thread that nobody else waits for:
//! then its wake-ups are late, and only its own.
//!
//! What a ring costs is its CPU time. Real time would blame clients for what others do with the
//! core; but it is cheap to read, so it tells whose CPU time is to be read from then on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use kvrail_device::{Clock, MonotonicClock};
use kvrail_ring::{Doorbell, drain_doorbell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::time::{ClockId, clock_gettime};

use crate::limits::LANES_MAX;

/// A ring that takes longer is expensive. Usual ones take 1 us, and 10 with a cold cache.
pub(crate) const DEAR_NS: u64 = 200_000;

/// Expensive rings after which a session is handed to the ringer. One may be the machine's fault:
/// a hypervisor takes processors away from its guests now and then.
const STRIKES_MAX: u32 = 2;

/// Rung by its pollers.
const TRUSTED: u32 = 0;
/// The same, and the CPU time of every ring is read.
const MEASURED: u32 = 1;
/// Rung by the ringer.
const HANDED_OVER: u32 = 2;

/// Calls in flight at once. A bell is called once until it rings, so these are more than there are;
/// of queues that were closed meanwhile, too.
const CALLS_MAX: usize = 4 * LANES_MAX;

/// What pollers call: bells on their way to the thread that rings them.
#[derive(Debug)]
pub struct Ringer {
    calls: ArrayQueue<Arc<QueueDoorbell>>,
    bell: Doorbell,
    stops: AtomicBool,
}

impl Ringer {
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub(crate) fn new() -> Result<Self, rustix::io::Errno> {
        let (calls, stops) = (ArrayQueue::new(CALLS_MAX), AtomicBool::new(false));
        Ok(Self { calls, bell: Doorbell::eventfd()?, stops })
    }

    /// Has a bell rung; gives it back when there are too many.
    fn call(&self, bell: Arc<QueueDoorbell>) -> Result<(), Arc<QueueDoorbell>> {
        self.calls.push(bell)?;
        self.bell.ring();
        Ok(())
    }

    /// Bells called since the last look, as long as the thread is to go on.
    pub(crate) fn calls(&self) -> Option<impl Iterator<Item = Arc<QueueDoorbell>>> {
        drain_doorbell(self.bell.as_fd()); // before the look: what comes later rings again
        // Pairs with Release in `stop`.
        let goes_on = !self.stops.load(Ordering::Acquire);
        goes_on.then(|| std::iter::from_fn(|| self.calls.pop()))
    }

    /// Waits for a call, for so long at most.
    pub(crate) fn wait(&self, longest: Option<Duration>) {
        let longest = longest.and_then(|longest| Timespec::try_from(longest).ok());
        let _woken = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], longest.as_ref());
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Release); // pairs with Acquire in `calls`
        self.bell.ring();
    }
}

/// How the client of one session is woken. Shared by all its queues.
#[derive(Debug)]
pub struct Waking {
    /// None where a poller rings whatever it costs.
    ringer: Option<Arc<Ringer>>,
    state: AtomicU32,
    strikes: AtomicU32,
    /// CPU time of its last ring by the ringer, and of all of them.
    last_ns: AtomicU64,
    spent_ns: AtomicU64,
}

/// Who rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WokenBy {
    /// The poller that has something to tell.
    Poller,
    /// The ringer, because the session's bells are dear, or were.
    Ringer,
}

/// What became of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Rung {
    /// The client hears, or will.
    Done,
    /// It was dear once too often: the session is the ringer's from now on.
    LastTime,
}

impl Waking {
    /// A session that is woken so at first.
    #[must_use]
    pub fn new(ringer: &Arc<Ringer>, by: WokenBy) -> Arc<Self> {
        let state = match by {
            WokenBy::Poller => TRUSTED,
            WokenBy::Ringer => HANDED_OVER,
        };
        Arc::new(Self::with(Some(Arc::clone(ringer)), state))
    }

    fn with(ringer: Option<Arc<Ringer>>, state: u32) -> Self {
        Self {
            ringer,
            state: AtomicU32::new(state),
            strikes: AtomicU32::new(0),
            last_ns: AtomicU64::new(u64::MAX), // dear until it was seen to be cheap
            spent_ns: AtomicU64::new(0),
        }
    }

    /// Who rings now.
    #[must_use]
    pub fn by(&self) -> WokenBy {
        if self.state() == HANDED_OVER { WokenBy::Ringer } else { WokenBy::Poller }
    }

    /// Forgets a dear ring that was none of many. What the ringer has stays with it.
    pub fn trust(&self) {
        let (from, to) = (MEASURED, TRUSTED);
        // Relaxed, here and below: the state orders nothing, and a late view costs one ring.
        self.strikes.store(0, Ordering::Relaxed);
        let _other = self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Has its pollers ring again.
    pub fn forgive(&self) {
        self.strikes.store(0, Ordering::Relaxed);
        self.state.store(TRUSTED, Ordering::Relaxed);
    }

    fn state(&self) -> u32 {
        self.state.load(Ordering::Relaxed)
    }

    /// A dear ring, in CPU time.
    #[cold]
    fn strike(&self) -> Rung {
        let strikes = self.strikes.fetch_add(1, Ordering::Relaxed) + 1;
        if self.ringer.is_none() || strikes < STRIKES_MAX {
            return Rung::Done;
        }
        // Several pollers may come here; one of them tells.
        let before = self.state.swap(HANDED_OVER, Ordering::Relaxed);
        if before == HANDED_OVER { Rung::Done } else { Rung::LastTime }
    }

    /// Whether its last ring by the ringer was dear, or there was none yet.
    pub(crate) fn is_dear(&self) -> bool {
        self.last_ns.load(Ordering::Relaxed) >= DEAR_NS // written by the ringer alone
    }

    /// CPU time that the ringer spent on it.
    pub(crate) fn spent_ns(&self) -> u64 {
        self.spent_ns.load(Ordering::Relaxed) // written by the ringer alone
    }

    /// Notes what a ring by the ringer cost.
    pub(crate) fn spend(&self, took_ns: u64) {
        self.last_ns.store(took_ns, Ordering::Relaxed); // one writer, who alone reads it
        self.spent_ns.store(self.spent_ns() + took_ns, Ordering::Relaxed); // as above
    }
}

/// The bell of one queue. Whoever gives one up does so with `Arc::into_inner` and gives what comes
/// out to who closes descriptors: to close it may wait for its client.
#[derive(Debug)]
pub struct QueueDoorbell {
    bell: Doorbell,
    waking: Arc<Waking>,
    /// The ringer was called for it, and has not begun to ring.
    called: AtomicBool,
}

impl QueueDoorbell {
    /// The bell of a queue of this session.
    #[must_use]
    pub fn new(bell: Doorbell, waking: &Arc<Waking>) -> Arc<Self> {
        Arc::new(Self { bell, waking: Arc::clone(waking), called: AtomicBool::new(false) })
    }

    /// The bell of a queue whose client is trusted, such as this process: nobody else ever rings.
    #[must_use]
    pub fn trusted(bell: Doorbell) -> Arc<Self> {
        Self::new(bell, &Arc::new(Waking::with(None, TRUSTED)))
    }

    /// Wakes the client, now or soon.
    #[inline]
    pub fn ring(self: &Arc<Self>) -> Rung {
        match self.waking.state() {
            TRUSTED => {
                let start_ns = MonotonicClock.now_ns();
                self.bell.ring();
                if MonotonicClock.now_ns() - start_ns >= DEAR_NS {
                    self.waking.state.store(MEASURED, Ordering::Relaxed); // as in `trust`
                }
                Rung::Done
            }
            MEASURED if self.ring_measured() < DEAR_NS => Rung::Done,
            MEASURED => self.waking.strike(),
            _ => {
                self.call_ringer();
                Rung::Done
            }
        }
    }

    /// Rings, and says how much CPU time that took.
    pub(crate) fn ring_measured(&self) -> u64 {
        let start_ns = cpu_ns();
        self.bell.ring();
        cpu_ns() - start_ns
    }

    #[cold]
    fn call_ringer(self: &Arc<Self>) {
        // Who finds it called has published before the ringer's `begin`, which is to come and sees
        // that: this pairs with the swap there.
        if self.called.swap(true, Ordering::AcqRel) {
            return;
        }
        let ringer = self.waking.ringer.as_ref().expect("who was handed over has one");
        if ringer.call(Arc::clone(self)).is_err() {
            self.bell.ring(); // rather dear than lost
            self.begin();
        }
    }

    /// A ring begins: whatever is published from now on calls anew.
    pub(crate) fn begin(&self) {
        self.called.swap(false, Ordering::AcqRel); // pairs with the swap in `call_ringer`
    }

    /// How its session is woken.
    pub(crate) fn waking(&self) -> &Waking {
        &self.waking
    }
}

/// CPU time of this thread. A system call.
fn cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{Rung, STRIKES_MAX, Waking, WokenBy};
    use crate::ringer::RingerThread;

    #[test]
    fn a_dear_ring_now_and_then_is_not_held_against_a_session() {
        let thread = RingerThread::start().unwrap();
        let waking = Waking::new(thread.ringer(), WokenBy::Poller);
        for _ in 0..10 {
            assert_eq!(waking.strike(), Rung::Done);
            waking.trust();
        }
        let strikes: Vec<Rung> = (0..STRIKES_MAX).map(|_| waking.strike()).collect();
        assert_eq!(strikes.last(), Some(&Rung::LastTime), "but several in a row are");
        assert_eq!(waking.by(), WokenBy::Ringer);
        waking.trust();
        assert_eq!(waking.by(), WokenBy::Ringer, "what the ringer has stays with it");
    }
}
