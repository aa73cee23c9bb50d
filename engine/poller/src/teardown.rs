//! Teardown: what leaves goes when its last request is completed. Lanes go back to the control
//! thread, regions leave the devices' tables and then the poller, and a session is gone when
//! neither is left of it.

use std::os::fd::AsFd;

use kvrail_device::Device;
use kvrail_ring::RegionId;

use crate::bells::Rung;
use crate::device_queue::DeviceQueue;
use crate::epoll::EpollSet;
use crate::front_end::FrontEnd;
use crate::mailbox::{Mailbox, Notice};
use crate::regions::DetachOutcome;

/// Looks at everything that leaves.
#[cold]
pub(crate) fn tear_down<D: Device>(
    front_end: &mut FrontEnd,
    queues: &mut [DeviceQueue<D>],
    epoll: &EpollSet,
    mailbox: &Mailbox,
) {
    while let Some(lane) = front_end.lanes().take_closed() {
        let (session, mut seat) = (lane.session(), lane.into_seat());
        let _nobody_waits = seat.lane.publish();
        if seat.bell.ring() == Rung::LastTime {
            mailbox.post(Notice::DearBell(session));
        }
        epoll.unwatch(seat.doorbell.as_fd());
        mailbox.post(Notice::LaneClosed(session, seat));
    }
    while let Some(id) = front_end.regions().next_leaving() {
        deregister(front_end, queues, id, DetachOutcome::Detached);
    }
    // The memory is dropped before the notice: the control thread may unmap right after it.
    while let Some((session, id, outcome)) = front_end.regions().take_gone() {
        mailbox.post(match outcome {
            DetachOutcome::Detached => Notice::Detached(session, id),
            DetachOutcome::Failed(error) => Notice::Attached(session, id, Err(error)),
        });
    }
    while let Some(session) = front_end.take_closed_session() {
        mailbox.post(Notice::SessionClosed(session));
    }
}

/// Tells these devices to deregister a region.
pub(crate) fn deregister<D: Device>(
    front_end: &mut FrontEnd,
    queues: &mut [DeviceQueue<D>],
    id: RegionId,
    outcome: DetachOutcome,
) {
    let buffer = front_end.regions().deregister(id, queues.len(), outcome);
    queues.iter_mut().for_each(|queue| queue.deregister(buffer));
    front_end.request_teardown();
}
