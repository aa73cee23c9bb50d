//! Waiting for completions: spin while that is worth it, then sleep on the bell.

use std::time::{Duration, Instant};

use kvrail_ring::{unhear, wake};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;

use crate::done::Done;
use crate::error::ClientError;
use crate::flights::Sink;
use crate::queue::{Life, Queue};

/// Looks at the lanes between two looks at the clock.
const LOOKS: u32 = 16;

/// Time between two yields of a spin. The scheduler may have put this thread on its poller's CPU,
/// and the poller cannot move: without a yield it would wait for the spin's end, or for that of a
/// slice of milliseconds. A yield to nobody takes a quarter of a microsecond.
const YIELD_AFTER: Duration = Duration::from_micros(5);

/// The outcome of [`Queue::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// Something has ended already: poll, do not wait.
    Ready,
    /// [`Queue::event_fd`] becomes readable when something ends.
    Armed,
}

/// Who woke a sleeper.
#[derive(Clone, Copy, Debug, Default)]
struct Woken {
    bell: bool,
    socket: bool,
}

impl Queue {
    /// Waits for the next end or notice. `None` when the time is over, or when nothing is under
    /// way that could end. `Duration::MAX` waits as long as the sidecar lives.
    ///
    /// # Errors
    /// `Protocol`, once, when the sidecar broke the protocol on this queue. Its end is no error
    /// here: what was under way comes back as RESTARTED.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<Done>, ClientError> {
        if self.ready.is_empty() {
            let mut ready = std::mem::take(&mut self.ready);
            let outcome = self.block(&mut ready, deadline(timeout));
            // What a broken lane handed out meanwhile is behind what was reaped.
            ready.append(&mut self.ready);
            self.ready = ready;
            outcome?;
        }
        Ok(self.ready.pop_front())
    }

    /// Waits until `count` more ends or notices were pushed to `done`; returns how many were:
    /// fewer when the time is over or nothing is under way.
    ///
    /// # Errors
    /// As `wait`; what was pushed before stays in `done`.
    pub fn wait_for(
        &mut self,
        count: usize,
        done: &mut Vec<Done>,
        timeout: Duration,
    ) -> Result<usize, ClientError> {
        let (before, deadline) = (done.len(), deadline(timeout));
        while done.len() - before < count {
            let room = done.len();
            if self.poll(done) > 0 {
                continue;
            }
            self.block(done, deadline)?;
            if done.len() == room {
                break;
            }
        }
        Ok(done.len() - before)
    }

    /// Waits until nothing is under way; the ends wait to be fetched.
    pub(crate) fn drain(&mut self, patience: Duration) -> Result<(), ClientError> {
        let deadline = deadline(patience);
        let mut ready = std::mem::take(&mut self.ready);
        let mut outcome = Ok(());
        while self.outstanding() > 0 && outcome.is_ok() {
            let before = ready.len();
            outcome = self.block(&mut ready, deadline);
            if ready.len() == before {
                break;
            }
        }
        ready.append(&mut self.ready);
        self.ready = ready;
        outcome
    }

    /// Prepares to wait on [`Queue::event_fd`]: says that this thread sleeps, then looks once more.
    /// After waiting, call `poll`, which says that it is awake.
    pub fn arm(&mut self) -> Armed {
        self.publish();
        let mut ready = std::mem::take(&mut self.ready);
        self.reap(&mut ready);
        if self.client.shared().control.is_gone() {
            self.bury(&mut ready);
        }
        ready.append(&mut self.ready);
        self.ready = ready;
        if !self.ready.is_empty() || self.life == Life::Gone {
            return Armed::Ready;
        }
        if !self.armed {
            self.armed = true;
            self.sleep.announce();
        }
        wake::settle();
        if self.look_again() {
            self.armed = false;
            self.sleep.retract();
            return Armed::Ready;
        }
        Armed::Armed
    }

    /// The program is back from its event loop.
    #[cold]
    pub(crate) fn disarm(&mut self) {
        self.armed = false;
        self.sleep.retract();
        unhear(self.hear.as_fd());
        // It may have been the end of the session: the next empty poll looks.
        self.empty_polls = u32::MAX;
        if let Some(before) = self.looked.checked_sub(Duration::from_secs(1)) {
            self.looked = before;
        }
    }

    /// Blocks until something was pushed, nothing is under way, or the time is over.
    fn block(
        &mut self,
        sink: &mut impl Sink,
        deadline: Option<Instant>,
    ) -> Result<(), ClientError> {
        if self.armed {
            self.disarm();
        }
        self.publish();
        let before = sink.count();
        self.reap(sink);
        if self.settled(sink, before)? {
            return Ok(());
        }
        let (started, limit_ns) = (Instant::now(), self.client.shared().spin.spin_ns);
        let favoured = limit_ns > 0 && self.odds.favour_spinning();
        let spun = favoured && self.spin(sink, started, deadline);
        while !self.settled(sink, before)? {
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                break;
            }
            self.sleep(sink, deadline);
        }
        let waited_ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // A spin that was not allowed, or was cut short in vain, says nothing.
        if spun == favoured && (sink.count() > before || waited_ns >= limit_ns) {
            self.odds.learn(waited_ns, limit_ns);
        }
        Ok(())
    }

    /// Whether there is nothing (more) to wait for.
    fn settled(&mut self, sink: &impl Sink, before: usize) -> Result<bool, ClientError> {
        if sink.count() > before {
            return Ok(true);
        }
        match self.fault.take() {
            Some(what) => Err(ClientError::Protocol { what }),
            None => Ok(self.outstanding() == 0),
        }
    }

    /// Looks at the lanes for as long as a short wait may take; false if this thread may not spin.
    fn spin(&mut self, sink: &mut impl Sink, started: Instant, deadline: Option<Instant>) -> bool {
        let limits = self.client.shared().spin;
        let Some(_spinning) = limits.enter() else { return false };
        let until = started + Duration::from_nanos(limits.spin_ns);
        let until = deadline.map_or(until, |deadline| until.min(deadline));
        let (before, mut yielded) = (sink.count(), started);
        loop {
            for _ in 0..LOOKS {
                self.reap(sink);
                if sink.count() > before || self.fault.is_some() {
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now >= until {
                return true;
            }
            if now.duration_since(yielded) >= YIELD_AFTER {
                std::thread::yield_now();
                yielded = now;
            }
        }
    }

    /// Sleeps once: until the bell, the end of the session, or the deadline.
    fn sleep(&mut self, sink: &mut impl Sink, deadline: Option<Instant>) {
        self.sleep.announce();
        wake::settle();
        let woken = if self.look_again() { Woken::default() } else { self.doze(deadline) };
        self.sleep.retract();
        if woken.bell {
            unhear(self.hear.as_fd());
        }
        self.reap(sink);
        let control = &self.client.shared().control;
        if (woken.socket && control.look()) || control.is_gone() {
            self.bury(sink);
        }
    }

    /// Looks at all lanes although nothing was known to be there.
    fn look_again(&mut self) -> bool {
        let mut trouble = None;
        let mut found = false;
        for (index, end) in self.lanes.iter_mut().enumerate() {
            match end.lane.is_ready() {
                Ok(ready) => found |= ready && end.outstanding > 0,
                Err(fault) => trouble = Some(format!("completion lane {index}: {fault}")),
            }
        }
        if let Some(what) = trouble {
            self.break_off(&what);
            return true;
        }
        found
    }

    fn doze(&self, deadline: Option<Instant>) -> Woken {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [
            PollFd::new(&self.hear, PollFlags::IN),
            PollFd::new(&self.client.shared().control, PollFlags::RDHUP),
        ];
        if poll(&mut fds, left.as_ref()).is_err() {
            return Woken::default(); // EINTR: like any other wake-up
        }
        let [bell, socket] = [0, 1].map(|at: usize| !fds[at].revents().is_empty());
        Woken { bell, socket }
    }
}

/// `None` is never.
fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}
