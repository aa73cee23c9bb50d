//! Regions on their way into the devices' tables: one entry in each tick, because pinning the pages
//! of an entry takes up to milliseconds, and everybody at this poller waits for it.

use std::collections::VecDeque;
use std::sync::Arc;

use kvrail_device::{Attached, BufferIndex, Clock, Device, DeviceError};
use kvrail_ring::RegionId;

use crate::mailbox::{Notice, REGIONS_MAX, SessionSlot};
use crate::poller::Poller;
use crate::regions::{Farewell, Memory};

/// A region that some devices have and others do not have yet.
#[derive(Clone, Copy, Debug)]
struct Attaching {
    id: RegionId,
    session: SessionSlot,
    /// The device whose turn it is; those before it have the whole region.
    device: usize,
    /// What that device has of it, if anything.
    begun: bool,
}

/// All of them. They take turns, so that a small one does not wait for a large one.
#[derive(Debug)]
pub(crate) struct Queue(VecDeque<Attaching>);

impl Queue {
    pub(crate) fn new() -> Self {
        Self(VecDeque::with_capacity(REGIONS_MAX))
    }
}

impl<D: Device, C: Clock> Poller<D, C> {
    /// Begins to attach a region. `Attached` is posted when every device has it, or one refused.
    pub(crate) fn begin_attach(
        &mut self,
        session: SessionSlot,
        id: RegionId,
        buffer: BufferIndex,
        memory: Memory,
    ) {
        self.regions.insert(id, session, buffer, memory);
        self.attaching.0.push_back(Attaching { id, session, device: 0, begun: false });
    }

    /// Takes one step with one region; returns how many steps were taken.
    #[inline]
    pub(crate) fn attach_more(&mut self) -> u64 {
        match self.attaching.0.pop_front() {
            Some(next) => self.attach_step(next),
            None => return 0,
        }
        1
    }

    #[cold]
    fn attach_step(&mut self, step: Attaching) {
        let Attaching { id, session, device, .. } = step;
        match self.attach_at(step) {
            None => {
                self.regions.open(id);
                self.mailbox.post(Notice::Attached(session, id, Ok(())));
            }
            Some(Ok(Attached::Partly)) => {
                self.attaching.0.push_back(Attaching { begun: true, ..step });
            }
            Some(Ok(Attached::Whole)) => {
                let device = device + 1;
                self.attaching.0.push_back(Attaching { device, begun: false, ..step });
            }
            Some(Err(error)) => self.let_go_of(id, device, Farewell::Failed(error)),
        }
    }

    /// One entry at one device; `None` when every device has the region.
    fn attach_at(&mut self, step: Attaching) -> Option<Result<Attached, DeviceError>> {
        let device = &mut self.units.get_mut(step.device)?.device;
        let region = self.regions.get(step.id).expect("a region that attaches is in the table");
        Some(match &region.memory {
            _ if step.begun => device.attach_more(region.buffer),
            Memory::Host(memory) => device.begin_attach(region.buffer, Arc::clone(memory)),
            Memory::Remote(memory) => {
                let attached = device.attach_remote(region.buffer, Arc::clone(memory));
                attached.map(|()| Attached::Whole)
            }
        })
    }

    /// Gives up what a session was about to attach.
    pub(crate) fn stop_attaching(&mut self, session: SessionSlot) {
        while let Some(at) = self.attaching.0.iter().position(|it| it.session == session) {
            let Attaching { id, device, begun, .. } =
                self.attaching.0.remove(at).expect("found just now");
            self.let_go_of(id, device + usize::from(begun), Farewell::Detached);
        }
    }
}
