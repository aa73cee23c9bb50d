//! Everything that happened in one run, in order: printed when it fails, compared when it is
//! replayed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use kvrail_device::{Finished, Operation};
use kvrail_ring::{Opcode, Status};

use super::options::Options;

/// Events printed for a failed run.
const SHOWN: usize = 100;

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Posted { slot: u8, queue: u32, id: u64, opcode: u8, offset: u64, length: u32 },
    Taken { slot: u8, queue: u32, count: usize },
    Done { slot: u8, id: u64, status: Status, bytes: u32 },
    Late { slot: u8, id: u64 },
    Prepared { device: u8, operation: Operation },
    Ended { device: u8, opcode: Opcode, finished: Finished },
    Forgot { device: u8, buffer: u16 },
    Told { what: &'static str, slot: u8, number: u32 },
    Heard { what: &'static str, slot: u8, number: u32 },
}

/// When it happened and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    tick: u32,
    now_ns: u64,
    what: What,
}

/// The events of one run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    tick: Cell<u32>,
    now_ns: Cell<u64>,
    events: RefCell<Vec<Event>>,
}

impl Trace {
    /// The next tick begins.
    pub(crate) fn tick(&self, tick: u32, now_ns: u64) {
        self.tick.set(tick);
        self.now_ns.set(now_ns);
    }

    pub(crate) fn note(&self, what: What) {
        let event = Event { tick: self.tick.get(), now_ns: self.now_ns.get(), what };
        self.events.borrow_mut().push(event);
    }

    /// All events, for the comparison with a replay.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.borrow().clone()
    }
}

/// Says what is needed to repeat a run, if it is left by a panic.
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) options: Rc<Options>,
    pub(crate) trace: Rc<Trace>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let events = self.trace.events.borrow();
        eprintln!("the last {SHOWN} of {} events:", events.len());
        for Event { tick, now_ns, what } in &events[events.len().saturating_sub(SHOWN)..] {
            eprintln!("{tick:>6} {now_ns:>12} ns  {what:?}");
        }
        eprintln!("{:#?}", self.options);
        let seed = self.options.seed;
        eprintln!("seed {seed}; KVRAIL_SIM_SEED={seed} with the same test repeats this run");
    }
}
