//! Replay of a trace: operations start when the trace says, or as soon after as they may.

use std::time::Duration;

use anyhow::Result;
use kvrail_device::{Clock, MonotonicClock};
use uuid::Uuid;

use crate::cpu::{Account, CpuSeconds};
use crate::drive::Window;
use crate::drive::client::{Check, Client};
use crate::drive::run::{Sample, Way};
use crate::drive::tally::Tally;
use crate::pattern::Pattern;
use crate::port::{Direction, Operation, Port, Shape, Wait};
use crate::trace::Trace;
use crate::versions::VersionMap;

/// Time between the call and the first operation of the trace.
const LEAD_NS: u64 = 1_000_000;

/// A trace and how it is played.
#[derive(Clone, Copy, Debug)]
pub struct Replay<'a> {
    /// The operations.
    pub trace: &'a Trace,
    /// How much faster than its own times; 1 is as recorded.
    pub speed: f64,
    /// Operations in flight at most.
    pub depth: u32,
    /// The volume's uuid.
    pub volume: Uuid,
}

/// Plays a trace once, from one thread, with latencies from the planned starts. Operations that
/// meet one in flight (where either writes) wait for it: otherwise nobody could say which bytes
/// are right. After it, nothing is read back: the last sweep does that.
///
/// # Errors
/// When the arm breaks down.
pub fn replay(way: Way<'_>, replay: Replay<'_>, map: &mut VersionMap) -> Result<Sample> {
    assert!(replay.trace.end_bytes() <= map.span_bytes(), "the options were checked");
    let shape = Shape { slots: replay.depth, buffer_bytes: replay.trace.largest_bytes() };
    let (mut share, mut tally) = (map.whole(), Tally::default());
    let (mut window, mut cpu) = (Window::NONE, CpuSeconds::default());
    way.target.with_port(shape, &mut |port: &mut dyn Port| {
        let mut client = Client::new(port, &mut share, Pattern::new(replay.volume), shape.slots);
        let mut account = Account::open(way.meters);
        account.begin()?;
        let start_ns = MonotonicClock.now_ns() + LEAD_NS;
        window = Window { start_ns, end_ns: u64::MAX };
        Player::new(&replay, start_ns).play(&mut client)?;
        window.end_ns = MonotonicClock.now_ns();
        cpu = account.close()?;
        tally = std::mem::take(&mut client.tally);
        Ok(())
    })?;
    let seconds = (window.end_ns - window.start_ns) as f64 / 1e9;
    let cpu = cpu.adjusted(1.0, tally.pattern_ns);
    Ok(Sample { tally, seconds, cpu, begun_ns: window.start_ns })
}

struct Player<'a> {
    replay: &'a Replay<'a>,
    start_ns: u64,
    next: usize,
    free: Vec<u32>,
    /// What each slot runs, to see who meets whom.
    running: Vec<Option<Operation>>,
}

impl<'a> Player<'a> {
    fn new(replay: &'a Replay<'a>, start_ns: u64) -> Self {
        let free = (0..replay.depth).rev().collect();
        Self { replay, start_ns, next: 0, free, running: vec![None; replay.depth as usize] }
    }

    /// Planned start of an entry, with the speed applied.
    fn planned_ns(&self, at_ns: u64) -> u64 {
        let scaled = Duration::from_nanos(at_ns).div_f64(self.replay.speed);
        self.start_ns + u64::try_from(scaled.as_nanos()).unwrap_or(u64::MAX - self.start_ns)
    }

    fn play(&mut self, client: &mut Client<'_, '_>) -> Result<()> {
        let window = Window { start_ns: self.start_ns, end_ns: u64::MAX };
        let mut done = Vec::with_capacity(self.free.len());
        while self.next < self.replay.trace.entries.len() || client.in_flight() > 0 {
            let blocked = self.start_due(client, window)?;
            let wait = if blocked { Wait::ForOne } else { Wait::No };
            client.port.turn(wait, &mut done)?;
            let now_ns = MonotonicClock.now_ns();
            for done in done.drain(..) {
                let ended = client.finish(done, Check::Headers);
                self.running[ended.slot as usize] = None;
                self.free.push(ended.slot);
                if ended.well {
                    client.tally.count(now_ns.saturating_sub(ended.from_ns), ended.bytes);
                    client.tally.last_ns = now_ns;
                }
            }
        }
        Ok(())
    }

    /// Starts what is due. Says whether the next one is due and cannot start yet.
    fn start_due(&mut self, client: &mut Client<'_, '_>, window: Window) -> Result<bool> {
        let now_ns = MonotonicClock.now_ns();
        while let Some(entry) = self.replay.trace.entries.get(self.next) {
            let planned_ns = self.planned_ns(entry.at_ns);
            if planned_ns > now_ns {
                return Ok(false);
            }
            let operation = entry.operation;
            let met = self.running.iter().flatten().any(|other| meet(*other, operation));
            let Some(slot) = self.free.pop_if(|_| !met) else { return Ok(true) };
            self.running[slot as usize] = Some(operation);
            self.next += 1;
            client.start(slot, operation, Some(planned_ns), window)?;
        }
        Ok(false)
    }
}

/// Whether two operations touch the same bytes and at least one writes.
fn meet(one: Operation, other: Operation) -> bool {
    let reads = one.direction == Direction::Read && other.direction == Direction::Read;
    let apart = one.offset + u64::from(one.bytes) <= other.offset
        || other.offset + u64::from(other.bytes) <= one.offset;
    !reads && !apart
}

#[cfg(test)]
mod tests {
    use super::meet;
    use crate::port::{Direction, Operation};

    #[test]
    fn only_writes_that_overlap_meet() {
        let op = |direction, offset| Operation { direction, offset, bytes: 4096 };
        let (read, write) = (Direction::Read, Direction::Write);
        assert!(!meet(op(read, 0), op(read, 0)));
        assert!(meet(op(read, 0), op(write, 512)));
        assert!(meet(op(write, 4095), op(write, 0)));
        assert!(!meet(op(write, 4096), op(write, 0)));
    }
}
