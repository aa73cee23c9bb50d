//! Completions: from the lanes to the program.

use std::time::{Duration, Instant};

use kvrail_protocol::Hardware;
use kvrail_ring::Status;

use crate::arena::Lease;
use crate::done::Done;
use crate::flights::{Flights, Sink, Untrue};
use crate::queue::{LaneEnd, Life, Queue};

/// Empty polls between two looks at the clock; a power of two.
const EMPTY_POLLS: u32 = 256;

/// Time between two looks at the socket while polling.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is wrong with a lane. Boxed where it is returned: no trouble fits into a register then.
#[derive(Debug)]
enum Trouble {
    /// One completion cannot be true; the lane goes on.
    Untrue(String),
    /// The lane cannot be used any more.
    Lane(String),
}

impl LaneEnd {
    /// Takes what has ended in this lane.
    #[inline(always)]
    fn reap(
        &mut self,
        index: u16,
        flights: &mut Flights,
        sink: &mut impl Sink,
    ) -> Result<(), Box<Trouble>> {
        let (mut ended, mut trouble) = (0, Ok(()));
        // No more than were under way: whoever polls gets back to its work.
        for _ in 0..self.outstanding {
            let taken =
                self.lane.take_into(|completion| match flights.settle(index, &completion, sink) {
                    Ok(one) => ended += u32::from(one),
                    Err(untrue) => {
                        ended += u32::from(matches!(untrue, Untrue::Short { .. }));
                        trouble = Err(Box::new(Trouble::Untrue(describe(index, untrue))));
                    }
                });
            match taken {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    let what = format!("completion lane {index}: {fault}");
                    return Err(Box::new(Trouble::Lane(what))); // nothing is under way after this
                }
            }
        }
        self.outstanding -= ended;
        self.lane.release();
        trouble
    }
}

#[cold]
fn describe(lane: u16, untrue: Untrue) -> String {
    match untrue {
        Untrue::Unknown(user_data) => {
            format!("completion of {user_data:#x} in lane {lane}, where that is not under way")
        }
        Untrue::Short { asked, moved } => {
            format!("OK in lane {lane} for {moved} of {asked} bytes")
        }
    }
}

impl Queue {
    /// Fetches what has ended, without waiting. Pushes to `done` and returns how many. Makes no
    /// system call and allocates nothing but room in `done`; meant to be called in a loop.
    #[inline]
    pub fn poll(&mut self, done: &mut Vec<Done>) -> usize {
        let before = done.len();
        if self.armed {
            self.disarm();
        }
        if !self.ready.is_empty() {
            done.extend(self.ready.drain(..));
        }
        self.reap(done);
        if done.len() == before {
            self.empty_poll(done);
        } else {
            self.empty_polls = 0;
        }
        done.len() - before
    }

    /// Now and then a fruitless poll looks whether the sidecar still lives.
    #[inline]
    fn empty_poll(&mut self, done: &mut Vec<Done>) {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.empty_polls.is_multiple_of(EMPTY_POLLS) {
            self.look_up(done);
        }
    }

    #[cold]
    fn look_up(&mut self, done: &mut Vec<Done>) {
        self.publish(); // a program that staged and forgot would wait for ever
        let control = &self.client.shared().control;
        let now = Instant::now();
        let due = now.duration_since(self.looked) >= LOOK_EVERY;
        if due {
            self.looked = now;
        }
        if control.is_gone() || (due && control.look()) {
            self.bury(done);
        }
    }

    /// Takes what has ended in all lanes.
    #[inline]
    pub(crate) fn reap(&mut self, sink: &mut impl Sink) {
        for index in 0..self.lanes.len() {
            let end = &mut self.lanes[index];
            if end.outstanding == 0 {
                continue;
            }
            let number = u16::try_from(index).expect("a queue has few lanes");
            if let Err(trouble) = end.reap(number, &mut self.flights, sink) {
                self.complain(*trouble, sink);
            }
        }
    }

    #[cold]
    fn complain(&mut self, trouble: Trouble, sink: &mut impl Sink) {
        match trouble {
            Trouble::Untrue(what) => {
                self.fault = Some(what);
                if self.life == Life::Open {
                    self.life = Life::Broken;
                }
            }
            Trouble::Lane(what) => {
                self.fault = Some(what);
                self.abandon(Life::Broken, Status::Internal, Hardware::MayBeActive, sink);
            }
        }
    }

    /// The sidecar's indices cannot be believed: nothing more can come out of the lanes.
    #[cold]
    pub(crate) fn break_off(&mut self, what: &str) {
        let mut ready = std::mem::take(&mut self.ready);
        self.complain(Trouble::Lane(what.to_owned()), &mut ready);
        self.ready = ready;
    }

    /// The session has ended: first what did complete, then the rest as RESTARTED. After a drain
    /// the rest was never accepted, since everything accepted is complete: that is DRAINING.
    #[cold]
    pub(crate) fn bury(&mut self, sink: &mut impl Sink) {
        if self.life == Life::Gone {
            return;
        }
        self.reap(sink);
        let ended = self.client.shared().control.ended();
        let hardware = ended.map_or(Hardware::MayBeActive, |ended| ended.hardware);
        let status = match hardware {
            Hardware::Settled => Status::Draining,
            Hardware::MayBeActive => Status::Restarted,
        };
        self.abandon(Life::Gone, status, hardware, sink);
    }

    /// Ends everything under way.
    fn abandon(&mut self, life: Life, status: Status, hardware: Hardware, sink: &mut impl Sink) {
        self.life = life;
        self.flights.abandon(status, hardware, sink);
        for end in &mut self.lanes {
            end.outstanding = 0;
        }
        self.fence(Vec::new());
    }

    /// Keeps memory that hardware may still write out of everybody's reach.
    pub(crate) fn fence(&mut self, mut leases: Vec<Lease>) {
        leases.extend(self.flights.take_fenced());
        self.client.shared().fence(leases);
    }
}
