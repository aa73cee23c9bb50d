//! A store and the end of power: writes that a drive may have lost, the content after a reset, and
//! the placement of a store's writes on a drive with data placement.
//!
//! `KVRAIL_STORE_POINTS` sets the number of flushes at which the replay stops; by default a few.

mod history;
mod load;
mod log;
mod placement;
mod replay;
mod reset;

use std::path::PathBuf;

use crate::rig::{Outcome, Place, StoreShape};

/// Bytes of a segment: three of the largest block.
const SEGMENT_BYTES: u64 = 1 << 20;

/// A place for a store on this device, in a mode.
fn place_on(device: PathBuf, mode: &str) -> Place {
    let mut place = Place::empty(0);
    place.members = vec![device];
    place.extra.clear(); // O_DIRECT is required, as it is by default
    place.configure(&format!("device.mode = {mode:?}"));
    place
}

/// Makes the store, for small blocks.
fn create(place: &Place, member_bytes: u64) -> Outcome {
    let (segment_bytes, block_mean) = (SEGMENT_BYTES, 8 << 10);
    place.create_store(&StoreShape { member_bytes, segment_bytes, block_mean })
}
