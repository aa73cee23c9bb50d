//! The ringer: a thread that rings the bells that are dear, so that no poller does.
//!
//! Clients that ended here by mistake must not wait for those that did not. Cheap bells come first,
//! and of all its time the ringer spends a tenth on dear ones, shared by their sessions.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use kvrail_device::{Clock, MonotonicClock};

use crate::bells::{DEAR_NS, QueueDoorbell, Ringer};

/// A dear ring is followed by so many times its own time without one.
const PAUSE: u64 = 9;

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub struct RingerThread {
    ringer: Arc<Ringer>,
    /// Bells that nobody but the ringer had any more.
    left_over: Receiver<QueueDoorbell>,
}

impl RingerThread {
    /// Starts it.
    ///
    /// # Errors
    /// The kernel's, when descriptors or threads run out.
    pub fn start() -> io::Result<Self> {
        let ringer = Arc::new(Ringer::new()?);
        let (to_close, left_over) = channel();
        let mut rounds = BellRounds { waiting: VecDeque::new(), dear_from_ns: 0, to_close };
        let calls = Arc::clone(&ringer);
        let run = move || while rounds.round(&calls) {};
        thread::Builder::new().name("kvrail-ringer".into()).spawn(run)?;
        Ok(Self { ringer, left_over })
    }

    /// What sessions call it with.
    #[must_use]
    pub fn ringer(&self) -> &Arc<Ringer> {
        &self.ringer
    }

    /// A bell whose queue went while the ringer had it, to be closed.
    #[must_use]
    pub fn left_over(&self) -> Option<QueueDoorbell> {
        self.left_over.try_recv().ok()
    }
}

impl Drop for RingerThread {
    fn drop(&mut self) {
        self.ringer.stop();
    }
}

/// What is to be done.
enum RingStep {
    Ring(Arc<QueueDoorbell>),
    /// Nothing for so long, or until somebody calls.
    Pause(Option<Duration>),
}

/// Bells that wait, and whose turn it is.
#[derive(Debug)]
struct BellRounds {
    /// In the order of their calls.
    waiting: VecDeque<Arc<QueueDoorbell>>,
    /// When a dear bell may be rung again.
    dear_from_ns: u64,
    to_close: Sender<QueueDoorbell>,
}

impl BellRounds {
    /// Looks at the calls and rings one bell, or waits; false when the thread is to end.
    fn round(&mut self, ringer: &Ringer) -> bool {
        let Some(calls) = ringer.calls() else { return false };
        self.waiting.extend(calls);
        self.forget_closed();
        match self.next(MonotonicClock.now_ns()) {
            RingStep::Ring(bell) => self.ring(bell),
            RingStep::Pause(pause) => ringer.wait(pause),
        }
        true
    }

    /// Bells of queues that are gone: a client could make them faster than they are rung.
    fn forget_closed(&mut self) {
        for _ in 0..self.waiting.len() {
            let bell = self.waiting.pop_front().expect("as many as counted");
            if Arc::strong_count(&bell) > 1 {
                self.waiting.push_back(bell);
            } else {
                self.release(bell);
            }
        }
    }

    fn next(&mut self, now_ns: u64) -> RingStep {
        let cheap = self.waiting.iter().position(|bell| !bell.waking().is_dear());
        let dear = || {
            let spent = |at: &usize| self.waiting[*at].waking().spent_ns();
            (0..self.waiting.len()).min_by_key(spent)
        };
        let at = match cheap {
            Some(at) => at,
            None => match dear() {
                None => return RingStep::Pause(None),
                Some(_) if now_ns < self.dear_from_ns => {
                    return RingStep::Pause(Some(Duration::from_nanos(self.dear_from_ns - now_ns)));
                }
                Some(at) => at,
            },
        };
        RingStep::Ring(self.waiting.remove(at).expect("just seen"))
    }

    fn ring(&mut self, bell: Arc<QueueDoorbell>) {
        bell.begin();
        let took_ns = bell.ring_measured();
        self.note(&bell, took_ns, MonotonicClock.now_ns());
        self.release(bell);
    }

    fn note(&mut self, bell: &QueueDoorbell, took_ns: u64, now_ns: u64) {
        bell.waking().spend(took_ns);
        if took_ns >= DEAR_NS {
            self.dear_from_ns = now_ns + PAUSE * took_ns;
        }
    }

    fn release(&self, bell: Arc<QueueDoorbell>) {
        if let Some(last) = Arc::into_inner(bell) {
            let _nobody_left = self.to_close.send(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use kvrail_ring::Doorbell;

    use super::{BellRounds, PAUSE, RingStep, RingerThread};
    use crate::bells::{QueueDoorbell, Waking, WokenBy};

    const DEAR_NS: u64 = 30_000_000;

    /// Rounds, and bells of so many sessions.
    fn rounds(thread: &RingerThread, sessions: usize) -> (BellRounds, Vec<Arc<QueueDoorbell>>) {
        let bells = (0..sessions).map(|_| {
            let waking = Waking::new(thread.ringer(), WokenBy::Ringer);
            QueueDoorbell::new(Doorbell::eventfd().unwrap(), &waking)
        });
        let rounds =
            BellRounds { waiting: VecDeque::new(), dear_from_ns: 0, to_close: channel().0 };
        (rounds, bells.collect())
    }

    /// Which of the bells is rung now; its cost is noted.
    fn ring(
        rounds: &mut BellRounds,
        bells: &[Arc<QueueDoorbell>],
        now_ns: u64,
        cost_ns: impl Fn(usize) -> u64,
    ) -> Option<usize> {
        let RingStep::Ring(bell) = rounds.next(now_ns) else { return None };
        let at = bells.iter().position(|other| Arc::ptr_eq(other, &bell)).unwrap();
        rounds.note(&bell, cost_ns(at), now_ns + cost_ns(at));
        Some(at)
    }

    #[test]
    fn a_cheap_bell_waits_for_no_dear_one_but_that_which_rings() {
        let thread = RingerThread::start().unwrap();
        let (mut rounds, bells) = rounds(&thread, 5);
        let cost_ns = |at| if at == 4 { 1_000 } else { DEAR_NS };
        bells[4].waking().spend(1_000); // it was rung before
        let (mut now_ns, mut dear_ns) = (0, 0);
        for _ in 0..2_000 {
            // All are called again as soon as they were rung, and once a millisecond at least.
            for bell in &bells {
                if !rounds.waiting.iter().any(|other| Arc::ptr_eq(other, bell)) {
                    rounds.waiting.push_back(Arc::clone(bell));
                }
            }
            assert_eq!(ring(&mut rounds, &bells, now_ns, cost_ns), Some(4), "first in any case");
            if let Some(at) = ring(&mut rounds, &bells, now_ns, cost_ns) {
                (now_ns, dear_ns) = (now_ns + cost_ns(at), dear_ns + cost_ns(at));
            }
            now_ns += 1_000_000;
        }
        assert!(dear_ns <= now_ns / PAUSE + DEAR_NS, "{dear_ns} of {now_ns} ns for dear bells");
        assert!(dear_ns >= now_ns / 20, "but they are rung");
    }

    #[test]
    fn dear_sessions_take_turns() {
        let thread = RingerThread::start().unwrap();
        let (mut rounds, bells) = rounds(&thread, 3);
        let (mut now_ns, mut rung) = (0, [0; 3]);
        rounds.waiting.extend(bells.iter().cloned());
        for _ in 0..3_000 {
            if let Some(at) = ring(&mut rounds, &bells, now_ns, |_| DEAR_NS) {
                rung[at] += 1;
                rounds.waiting.push_front(Arc::clone(&bells[at]));
            }
            now_ns += DEAR_NS;
        }
        assert!(rung.iter().all(|count| (90..=110).contains(count)), "{rung:?}");
    }

    #[test]
    fn bells_of_queues_that_are_gone_are_not_rung() {
        let thread = RingerThread::start().unwrap();
        let (mut rounds, mut bells) = rounds(&thread, 3);
        rounds.waiting.extend(bells.iter().cloned());
        bells.truncate(1);
        rounds.forget_closed();
        assert_eq!(rounds.waiting.len(), 1);
    }
}
