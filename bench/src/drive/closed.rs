//! The closed loop: a new operation when one has ended; shows throughput.

use anyhow::Result;
use kvrail_device::{Clock, MonotonicClock};

use crate::drive::Window;
use crate::drive::client::{BlockCheck, Client};
use crate::port::{Direction, Operation, TurnWait};
use crate::stream::SlotStream;

/// Keeps every slot busy until the window ends, and waits for the rest. Counts what ends within
/// the window.
pub(super) fn timed(
    client: &mut Client<'_, '_>,
    streams: &mut [SlotStream],
    window: Window,
) -> Result<()> {
    let mut done = Vec::with_capacity(streams.len());
    for (stream, slot) in streams.iter_mut().zip(0..) {
        client.start(slot, stream.next_operation(), None, window)?;
    }
    while client.in_flight() > 0 {
        client.port.turn(TurnWait::ForOne, &mut done)?;
        let now_ns = MonotonicClock.now_ns();
        for done in done.drain(..) {
            let ended = client.finish(done, BlockCheck::Headers);
            if ended.well && window.holds(now_ns) {
                client.tally.count(now_ns.saturating_sub(ended.from_ns), ended.bytes);
                client.tally.last_ns = now_ns;
            }
            if now_ns < window.end_ns {
                let operation = streams[ended.slot as usize].next_operation();
                client.start(ended.slot, operation, None, window)?;
            }
        }
    }
    Ok(())
}

/// Lookups one after the other until the window ends, each of the blocks behind a place of the
/// stream.
pub(super) fn lookups(
    client: &mut Client<'_, '_>,
    stream: &mut SlotStream,
    window: Window,
) -> Result<()> {
    let mut begun_ns = MonotonicClock.now_ns();
    while begun_ns < window.end_ns {
        let offset = stream.next_operation().offset;
        let found = client.port.lookup(offset)?;
        let now_ns = MonotonicClock.now_ns();
        match found {
            Ok(()) if window.holds(now_ns) => client.tally.count(now_ns - begun_ns, 0),
            Ok(()) => {}
            Err(fault) => client.tally.failed("lookup", offset, fault),
        }
        begun_ns = now_ns;
    }
    Ok(())
}

/// Reads back what the streams touched, from their beginning, and compares every byte; at least
/// one block for each slot, then until `until_ns`. Not timed.
pub(super) fn read_back(
    client: &mut Client<'_, '_>,
    streams: &mut [SlotStream],
    until_ns: u64,
) -> Result<()> {
    client.port.begin_read_back();
    let mut done = Vec::with_capacity(streams.len());
    let untimed = Window::NONE;
    let mut next = |slot: u32| Operation {
        direction: Direction::Read,
        ..streams[slot as usize].next_operation()
    };
    let slots = client.slots();
    for slot in 0..slots {
        client.start(slot, next(slot), None, untimed)?;
    }
    while client.in_flight() > 0 {
        client.port.turn(TurnWait::ForOne, &mut done)?;
        for done in done.drain(..) {
            let ended = client.finish(done, BlockCheck::All);
            if MonotonicClock.now_ns() < until_ns {
                client.start(ended.slot, next(ended.slot), None, untimed)?;
            }
        }
    }
    Ok(())
}
