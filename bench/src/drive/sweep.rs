//! The whole pattern area once, in order: the first fill, and the last comparison. Not timed.

use anyhow::{Result, ensure};
use uuid::Uuid;

use crate::drive::Window;
use crate::drive::client::{BlockCheck, Client};
use crate::drive::tally::Tally;
use crate::pattern::Pattern;
use crate::port::{Direction, Operation, Port, PortShape, Target, TurnWait};
use crate::versions::VersionMap;

/// Bytes a sweep keeps in flight.
const IN_FLIGHT_BYTES: u32 = 8 << 20;
/// Operations it keeps in flight at most.
const DEPTH_MAX: u32 = 32;

/// The operation of a sweep on every block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sweep {
    /// Writes the next version.
    Fill,
    /// Reads and compares every byte.
    Verify,
}

/// Goes once over the whole area. `progress` gets the number of bytes done.
///
/// # Errors
/// When the target fails, or (filling) a write does: nothing can be verified on such a volume.
pub fn sweep(
    target: &dyn Target,
    volume: Uuid,
    map: &mut VersionMap,
    what: Sweep,
    progress: &dyn Fn(u64),
) -> Result<Tally> {
    // The last operation of a sweep may be shorter.
    let piece = target.sweep_bytes(map.unit_bytes());
    let slots = (IN_FLIGHT_BYTES / piece).clamp(1, DEPTH_MAX);
    let (shape, piece) = (PortShape { slots, buffer_bytes: piece }, u64::from(piece));
    let (mut share, mut tally) = (map.whole(), Tally::default());
    target.with_port(shape, &mut |port: &mut dyn Port| {
        let mut client = Client::new(port, &mut share, Pattern::new(volume), shape.slots);
        go_over(&mut client, what, piece, progress)?;
        tally = std::mem::take(&mut client.tally);
        Ok(())
    })?;
    let filled = what == Sweep::Verify || tally.errors == 0;
    ensure!(filled, "what is measured could not be filled: {}", tally.failures.join("; "));
    Ok(tally)
}

fn go_over(
    client: &mut Client<'_, '_>,
    what: Sweep,
    piece: u64,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let (base, bytes) = client.extent();
    let direction = match what {
        Sweep::Fill => Direction::Write,
        Sweep::Verify => Direction::Read,
    };
    let mut left = (0..bytes).step_by(usize::try_from(piece)?).map(|at| Operation {
        direction,
        offset: base + at,
        bytes: u32::try_from(piece.min(bytes - at)).expect("a piece fits"),
    });
    let (mut done, mut swept) = (Vec::new(), 0);
    for (slot, operation) in (0..client.slots()).zip(&mut left) {
        client.start(slot, operation, None, Window::NONE)?;
    }
    while client.in_flight() > 0 {
        client.port.turn(TurnWait::ForOne, &mut done)?;
        for done in done.drain(..) {
            let ended = client.finish(done, BlockCheck::All);
            swept += u64::from(ended.bytes);
            if let Some(operation) = left.next() {
                client.start(ended.slot, operation, None, Window::NONE)?;
            }
        }
        progress(swept);
    }
    Ok(())
}
