//! What the control thread is told of the stores at start.

use kvrail_ring::DeviceIndex;
use kvrail_store::{Config, Start};

/// A volume that is a store.
#[derive(Clone, Debug)]
pub struct ServedStore {
    /// Its id.
    pub volume: u16,
    /// Its members, in order.
    pub shards: Vec<ServedShard>,
}

/// A member of a store.
#[derive(Clone, Debug)]
pub struct ServedShard {
    /// Its device.
    pub device: DeviceIndex,
    /// Its sizes.
    pub config: Config,
    /// How it begins when its device is back after it was gone.
    pub restart: Start,
}
