//! The control thread's hold on one poller.

use std::sync::Arc;
use std::thread::JoinHandle;

use kvrail_device::Description;
use kvrail_ring::{DeviceIndex, PollerIndex};

use crate::mailbox::Mailbox;
use crate::stats::PollerStats;

/// A running poller.
#[derive(Debug)]
pub struct PollerHandle {
    /// Which one; also the index of its lane in every queue.
    pub index: PollerIndex,
    /// The CPU it is pinned to, or nothing when it floats.
    pub cpu: Option<u32>,
    /// Its devices: sidecar-wide index and description, in local order.
    pub devices: Vec<(DeviceIndex, Description)>,
    /// Commands to it and notices from it.
    pub mailbox: Arc<Mailbox>,
    /// What it counts.
    pub stats: Arc<PollerStats>,
    /// The thread; it ends after `PollerCommand::Stop`.
    pub thread: JoinHandle<()>,
}
