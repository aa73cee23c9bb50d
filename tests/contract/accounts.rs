//! The accounts of a device under test: every tag comes back once, OK means every byte.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use kvrail_device::{BufferIndex, Device, Event, Events, Finished, Operation};
use kvrail_ring::Status;

/// No operation on a healthy machine takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Operations that a device has, and the results of those that it had.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    lengths: HashMap<u64, u32>,
    last_tag: u64,
    pub(crate) finished: Vec<Finished>,
    pub(crate) detached: Vec<BufferIndex>,
}

impl Accounts {
    pub(crate) fn fresh_tag(&mut self) -> u64 {
        self.last_tag += 1;
        self.last_tag
    }

    /// Prepares an operation; true when the device took it. A refused operation comes back
    /// unchanged.
    pub(crate) fn offer(&mut self, device: &mut impl Device, operation: Operation) -> bool {
        let before = device.in_flight();
        match device.prepare(operation) {
            Ok(()) => {
                assert_eq!(device.in_flight(), before + 1);
                assert_eq!(self.lengths.insert(operation.tag, operation.length), None);
                true
            }
            Err(back) => {
                assert_eq!(back, operation, "given back changed");
                assert_eq!(device.in_flight(), before);
                false
            }
        }
    }

    /// One `reap`, entered into the accounts.
    pub(crate) fn reap(&mut self, device: &mut impl Device) {
        let mut events = Events::new();
        device.reap(&mut events);
        for event in events {
            match event {
                Event::Detached(at) => self.detached.push(at),
                Event::Finished(finished) => {
                    let length = self.lengths.remove(&finished.tag);
                    let length = length.expect("invariant 1: finished twice or never prepared");
                    if finished.status == Status::Ok {
                        assert_eq!(finished.bytes, length, "invariant 3: OK means every byte");
                    } else {
                        assert!(finished.bytes <= length);
                    }
                    self.finished.push(finished);
                }
            }
        }
        let open = u32::try_from(self.lengths.len()).expect("few");
        assert_eq!(device.in_flight(), open, "in_flight disagrees with the accounts");
    }
}

/// A device under test with all that drives it.
pub(crate) trait Driven {
    fn accounts(&mut self) -> &mut Accounts;

    /// Offers an operation to the device; true when the device took it.
    fn offer(&mut self, operation: Operation) -> bool;

    /// One turn of everything.
    fn turn(&mut self);
}

/// Turns until the condition holds.
pub(crate) fn turn_until<R: Driven>(rig: &mut R, what: &str, done: impl Fn(&R) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done(rig) {
        assert!(Instant::now() < deadline, "waited too long: {what}");
        rig.turn();
    }
}

/// Runs all operations, with the largest number in flight that the device takes; returns their
/// results in order.
pub(crate) fn run(rig: &mut impl Driven, operations: &[Operation]) -> Vec<Finished> {
    let already = rig.accounts().finished.len();
    let mut waiting = operations.iter().copied().peekable();
    let deadline = Instant::now() + PATIENCE;
    while rig.accounts().finished.len() - already < operations.len() {
        while waiting.next_if(|operation| rig.offer(*operation)).is_some() {}
        rig.turn();
        assert!(Instant::now() < deadline, "waited too long for {operations:?}");
    }
    let ended = rig.accounts().finished.drain(already..);
    let ended: HashMap<u64, Finished> = ended.map(|finished| (finished.tag, finished)).collect();
    operations.iter().map(|operation| ended[&operation.tag]).collect()
}
