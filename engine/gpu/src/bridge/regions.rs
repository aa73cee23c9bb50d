//! GPU regions of a bridge, by their entry, and whether they are leaving.

use std::sync::Arc;

use kvrail_device::{BUFFERS_MAX, BufferIndex, REMOTES_MAX};

use crate::region::GpuRegion;

/// One attached region.
#[derive(Debug)]
pub(super) struct BridgeRegion {
    pub(super) region: Arc<GpuRegion>,
    /// The port to its GPU.
    pub(super) port: usize,
    /// Transfers in flight.
    open: u32,
    leaving: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct BridgeRegions {
    table: Box<[Option<BridgeRegion>]>,
}

/// The place of a remote entry.
fn place(at: BufferIndex) -> Option<usize> {
    at.0.checked_sub(BUFFERS_MAX).map(usize::from)
}

impl BridgeRegions {
    pub(super) fn new() -> Self {
        Self { table: (0..REMOTES_MAX).map(|_| None).collect() }
    }

    /// Whether the entry is one of remote memory.
    #[inline]
    pub(super) fn is_remote(at: BufferIndex) -> bool {
        at.0 >= BUFFERS_MAX
    }

    /// Enters a region; returns the fault of the entry otherwise.
    pub(super) fn insert(
        &mut self,
        at: BufferIndex,
        region: Arc<GpuRegion>,
        port: usize,
    ) -> Result<(), &'static str> {
        let entry = place(at).and_then(|place| self.table.get_mut(place));
        match entry {
            None => Err("there are 512 entries for remote memory"),
            Some(Some(_)) => Err("taken"),
            Some(free) => {
                *free = Some(BridgeRegion { region, port, open: 0, leaving: false });
                Ok(())
            }
        }
    }

    /// The region of an operation the poller has checked.
    #[inline]
    pub(super) fn enter(&mut self, at: BufferIndex) -> &BridgeRegion {
        let entry = place(at).and_then(|place| self.table.get_mut(place)?.as_mut());
        let entry = entry.expect("operations name attached regions");
        entry.open += 1;
        entry
    }

    /// A region without counting anything.
    #[inline]
    pub(super) fn get(&self, at: BufferIndex) -> &BridgeRegion {
        let entry = place(at).and_then(|place| self.table.get(place)?.as_ref());
        entry.expect("operations name attached regions")
    }

    /// Counts a transfer out; true when the region is gone now.
    #[inline]
    pub(super) fn leave(&mut self, at: BufferIndex) -> bool {
        let slot = place(at).and_then(|place| self.table.get_mut(place));
        let slot = slot.expect("a transfer keeps its region");
        let entry = slot.as_mut().expect("a transfer keeps its region");
        entry.open -= 1;
        let gone = entry.open == 0 && entry.leaving;
        if gone {
            *slot = None;
        }
        gone
    }

    /// Starts to forget a region; `Ok(true)` when it is gone already.
    pub(super) fn detach(&mut self, at: BufferIndex) -> Result<bool, &'static str> {
        let slot = place(at).and_then(|place| self.table.get_mut(place));
        let Some(slot) = slot else { return Err("there are 512 entries for remote memory") };
        match slot {
            None => Err("nothing is attached"),
            Some(entry) if entry.leaving => Err("it is being detached already"),
            Some(entry) if entry.open > 0 => {
                entry.leaving = true;
                Ok(false)
            }
            Some(_) => {
                *slot = None;
                Ok(true)
            }
        }
    }
}
