//! The open loop: operations start when they were planned; shows latency at a load.
//!
//! Latency runs from the planned start. An arm that falls behind pays for it in every operation
//! that had to wait, as its callers would (no coordinated omission).

use std::collections::VecDeque;

use anyhow::Result;
use kvrail_device::{Clock, MonotonicClock};

use crate::drive::Window;
use crate::drive::client::{BlockCheck, Client};
use crate::port::TurnWait;
use crate::stream::{Schedule, SlotStream};

/// No arm gives up sooner: the machine may stand still for a moment, and short windows with it.
const LATE_NS: u64 = 5_000_000_000;

/// Follows the schedule from `begun_ns` to the end of the window, and waits for the rest. Counts
/// what was planned within the window. An arm that is as late again as the window is long, and by
/// more than `LATE_NS`, stops; what it never started counts as errors.
pub(super) fn timed(
    client: &mut Client<'_, '_>,
    streams: &mut [SlotStream],
    schedule: &mut Schedule,
    begun_ns: u64,
    window: Window,
) -> Result<()> {
    let mut done = Vec::with_capacity(streams.len());
    // In turn, so that every slot's blocks come up however low the load.
    let mut free: VecDeque<u32> = (0..client.slots()).collect();
    let give_up_ns = window.end_ns + (window.end_ns - window.start_ns).max(LATE_NS);
    let mut planned_ns = begun_ns + schedule.next_ns();
    while planned_ns < window.end_ns || client.in_flight() > 0 {
        let now_ns = MonotonicClock.now_ns();
        if now_ns > give_up_ns && planned_ns < window.end_ns {
            let mut missed = 0;
            while planned_ns < window.end_ns {
                missed += 1;
                planned_ns = begun_ns + schedule.next_ns();
            }
            client.tally.overrun(missed);
        }
        while planned_ns <= now_ns && planned_ns < window.end_ns {
            let Some(slot) = free.pop_front() else { break };
            let operation = streams[slot as usize].next_operation();
            client.start(slot, operation, Some(planned_ns), window)?;
            planned_ns = begun_ns + schedule.next_ns();
        }
        let wait = if free.is_empty() { TurnWait::ForOne } else { TurnWait::No };
        client.port.turn(wait, &mut done)?;
        let now_ns = MonotonicClock.now_ns();
        for done in done.drain(..) {
            let ended = client.finish(done, BlockCheck::Headers);
            free.push_back(ended.slot);
            if ended.well && window.holds(ended.from_ns) {
                client.tally.count(now_ns.saturating_sub(ended.from_ns), ended.bytes);
                client.tally.last_ns = now_ns;
            }
        }
    }
    Ok(())
}
