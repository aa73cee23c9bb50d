//! What a poller shows of itself while it has nothing to do.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kvrail_device::{Clock, FakeClock, MonotonicClock};
use kvrail_poller::{
    InFlightBytes, Mailbox, Poller, PollerStats, Setup, SleepOutcome, TickOutcome,
};
use kvrail_ring::Doorbell;

use super::held::{Held, Shelf};
use super::rig::geometry;
use crate::rig::one_device;

const HEARTBEAT_NS: u64 = 1_000_000;

/// Made-up time that the loop reads as seldom as the real clock.
#[derive(Clone, Debug, Default)]
struct SparseClock(FakeClock);

impl Clock for SparseClock {
    const UNREAD_TURNS_MAX: u32 = MonotonicClock::UNREAD_TURNS_MAX;

    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }
}

#[test]
fn the_heartbeat_of_an_idle_poller_is_as_old_as_its_last_sleep() {
    let clock = SparseClock::default();
    let mailbox = Arc::new(Mailbox::new(Arc::new(Doorbell::eventfd().unwrap())).unwrap());
    let one = one_device(geometry(), 8, InFlightBytes::Fixed(1 << 20));
    let setup = Setup { beat_ns: HEARTBEAT_NS, ..one };
    let stats = Arc::new(PollerStats::new(1));
    let devices = vec![Held::new(8, &Rc::new(RefCell::new(Shelf::default())))];
    let mut poller =
        Poller::new(setup, devices, clock.clone(), mailbox, Arc::clone(&stats)).unwrap();
    for _ in 0..100 {
        assert_eq!(poller.tick(), TickOutcome::Idle);
        clock.0.advance(HEARTBEAT_NS);
        assert_eq!(poller.sleep(HEARTBEAT_NS), SleepOutcome::Over);
        assert_eq!(stats.beat_ns.get(), clock.now_ns(), "it woke this very moment");
    }
}
