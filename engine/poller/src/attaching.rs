//! Regions on their way into the devices' tables: one entry in each tick, because pinning the pages
//! of an entry takes up to milliseconds, and every client of this poller waits for it.

use std::collections::VecDeque;

use kvrail_device::{Attached, Device};
use kvrail_ring::RegionId;

use crate::device_queue::DeviceQueue;
use crate::front_end::FrontEnd;
use crate::limits::{REGIONS_MAX, SessionSlot};
use crate::mailbox::{Mailbox, Notice};
use crate::regions::DetachOutcome;
use crate::stats::PollerStats;
use crate::teardown::deregister;

/// A region that some devices have and others do not have yet.
#[derive(Clone, Copy, Debug)]
struct AttachingRegion {
    id: RegionId,
    session: SessionSlot,
    /// The device whose turn it is; those before it have the whole region.
    device: usize,
    /// Whether that device has some of it.
    begun: bool,
}

/// All of them. They take turns, so that a small one does not wait for a large one.
#[derive(Debug)]
pub(crate) struct AttachQueue(VecDeque<AttachingRegion>);

impl AttachQueue {
    pub(crate) fn new() -> Self {
        Self(VecDeque::with_capacity(REGIONS_MAX))
    }

    /// Attaches a region that is in the table.
    pub(crate) fn push(&mut self, session: SessionSlot, id: RegionId) {
        self.0.push_back(AttachingRegion { id, session, device: 0, begun: false });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes one step with one region; returns how many steps were taken. `Attached` is posted when
    /// every device has the region.
    #[cold]
    pub(crate) fn step<D: Device>(
        &mut self,
        front_end: &mut FrontEnd,
        queues: &mut [DeviceQueue<D>],
        (mailbox, stats): (&Mailbox, &PollerStats),
    ) -> u64 {
        let Some(step) = self.0.pop_front() else { return 0 };
        let AttachingRegion { id, session, device, begun } = step;
        let Some(queue) = queues.get_mut(device) else {
            front_end.regions().open(id);
            mailbox.post(Notice::Attached(session, id, Ok(())));
            return 1;
        };
        match queue.attach_step(front_end.regions().memory(id), begun) {
            Ok(Attached::Partly) => self.0.push_back(AttachingRegion { begun: true, ..step }),
            Ok(Attached::Whole) => {
                queue.count_attached(&stats.devices[device]);
                self.0.push_back(AttachingRegion { device: device + 1, begun: false, ..step });
            }
            Err(error) => {
                deregister(front_end, &mut queues[..device], id, DetachOutcome::Failed(error));
            }
        }
        1
    }

    /// Gives up what a session was about to attach.
    pub(crate) fn cancel<D: Device>(
        &mut self,
        session: SessionSlot,
        front_end: &mut FrontEnd,
        queues: &mut [DeviceQueue<D>],
    ) {
        self.0.retain(|&AttachingRegion { id, session: owner, device, begun }| {
            if owner == session {
                let begun = &mut queues[..device + usize::from(begun)];
                deregister(front_end, begun, id, DetachOutcome::Detached);
            }
            owner != session
        });
    }
}
