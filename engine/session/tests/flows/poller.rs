//! Pollers that keep volumes in memory and obey a test's switches.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvrail_device::DeviceError;
use kvrail_memory::{Pinned, load, store};
use kvrail_poller::{LaneSeat, Mailbox, Notice, PollerCommand, PollerStats, SessionSlot, Tracer};
use kvrail_ring::{Completion, Geometry, Opcode, RegionId, Request, RingBell, Status};

use crate::shards::Shard;

/// A switch of a test. It orders no other memory: tests check their conditions themselves.
#[derive(Debug, Default)]
pub(crate) struct Switch(AtomicBool);

impl Switch {
    pub(crate) fn on(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn off(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Something a test counts.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The switches of a test's pollers.
#[derive(Debug, Default)]
pub(crate) struct Switches {
    /// Requests are taken but not completed.
    pub(crate) hold_requests: Switch,
    /// Regions and sessions are not given back: hardware hangs.
    pub(crate) hold_detach: Switch,
    /// Poller 1 cannot register regions.
    pub(crate) refuse_attach: Switch,
    /// This poller does not turn.
    pub(crate) stall: [Switch; 2],
    /// Drain is not answered.
    pub(crate) hold_drain: Switch,
    /// Commands are read, nothing is answered; then the thread ends.
    pub(crate) die: Switch,
    pub(crate) attached: Count,
    pub(crate) detached: Count,
    pub(crate) taken: Count,
    pub(crate) completed: Count,
}

pub(crate) type Bytes = Arc<Mutex<Vec<u8>>>;

pub(crate) struct FakePoller {
    pub(crate) index: usize,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) stats: Arc<PollerStats>,
    pub(crate) switches: Arc<Switches>,
    pub(crate) geometry: Geometry,
    pub(crate) volume: Bytes,
    pub(crate) lanes: Vec<(SessionSlot, Box<LaneSeat>)>,
    pub(crate) regions: HashMap<(SessionSlot, RegionId), Arc<dyn Pinned>>,
    pub(crate) held: Vec<(SessionSlot, u32, Request)>,
    pub(crate) owed: Vec<PollerCommand>,
    /// Of slow requests.
    pub(crate) tracer: Option<Box<Tracer>>,
    pub(crate) draining: bool,
    /// The store on its device.
    pub(crate) shard: Option<Arc<Mutex<Shard>>>,
}

impl FakePoller {
    pub(crate) fn run(mut self) {
        loop {
            if self.switches.die.is_on() {
                return;
            }
            if self.switches.stall[self.index].is_on() {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            self.stats.counters.ticks.add(1);
            let mut stop = false;
            for command in std::mem::take(&mut self.owed) {
                stop |= self.handle(command);
            }
            while let Some(command) = self.mailbox.next_command() {
                stop |= self.handle(command);
            }
            if stop {
                return;
            }
            self.serve();
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Returns whether to stop.
    fn handle(&mut self, command: PollerCommand) -> bool {
        let hold = self.switches.hold_detach.is_on();
        match command {
            PollerCommand::Store(device, mut call) => {
                if let Some(shard) = &self.shard {
                    shard.lock().unwrap().answer(&mut call);
                }
                self.mailbox.post(Notice::Store(device, call));
            }
            PollerCommand::AddLane(slot, seat) => {
                let queue = seat.queue;
                self.lanes.push((slot, seat));
                self.mailbox.post(Notice::LaneAdded(slot, queue));
            }
            PollerCommand::CloseLane(slot, queue) => {
                if self.held.iter().any(|held| held.0 == slot && held.1 == queue) {
                    self.owed.push(PollerCommand::CloseLane(slot, queue));
                } else {
                    self.give_back(slot, Some(queue));
                }
            }
            PollerCommand::Attach { session, region, memory, .. } => {
                let refuse = self.index == 1 && self.switches.refuse_attach.is_on();
                let outcome = if refuse {
                    Err(DeviceError::Register {
                        device: "fake".into(),
                        bytes: memory.bytes() as u64,
                        errno: rustix::io::Errno::NOMEM,
                        remedy: "raise memlock".into(),
                    })
                } else {
                    self.switches.attached.add();
                    self.regions.insert((session, region), memory);
                    Ok(())
                };
                self.mailbox.post(Notice::Attached(session, region, outcome));
            }
            PollerCommand::AttachRemote { .. } => panic!("the session room attaches arenas only"),
            PollerCommand::Detach(slot, region) if hold => {
                self.owed.push(PollerCommand::Detach(slot, region))
            }
            PollerCommand::Detach(slot, region) => self.forget(slot, region),
            PollerCommand::CloseSession(slot) if hold => {
                self.owed.push(PollerCommand::CloseSession(slot))
            }
            PollerCommand::CloseSession(slot) => self.close(slot),
            PollerCommand::Drain => {
                self.draining = true;
                if self.switches.hold_drain.is_on() || !self.held.is_empty() {
                    self.owed.push(PollerCommand::Drain);
                } else {
                    self.mailbox.post(Notice::Drained);
                }
            }
            PollerCommand::Replace(..) | PollerCommand::Retire(_) | PollerCommand::Release(..) => {
                unreachable!("no device comes back or is retired here")
            }
            PollerCommand::Trace(with) => {
                if let Some(before) = self.tracer.replace(with) {
                    self.mailbox.post(Notice::Traced(before));
                }
            }
            PollerCommand::Stop => return true,
        }
        false
    }

    fn forget(&mut self, slot: SessionSlot, region: RegionId) {
        if self.regions.remove(&(slot, region)).is_some() {
            self.switches.detached.add();
        }
        self.mailbox.post(Notice::Detached(slot, region));
    }

    fn give_back(&mut self, slot: SessionSlot, queue: Option<u32>) {
        let (back, keep) = std::mem::take(&mut self.lanes)
            .into_iter()
            .partition(|lane| lane.0 == slot && queue.is_none_or(|queue| lane.1.queue == queue));
        self.lanes = keep;
        for (slot, seat) in back {
            self.mailbox.post(Notice::LaneClosed(slot, seat));
        }
    }

    fn close(&mut self, slot: SessionSlot) {
        self.held.retain(|held| held.0 != slot);
        self.give_back(slot, None);
        let regions: Vec<RegionId> =
            self.regions.keys().filter(|key| key.0 == slot).map(|key| key.1).collect();
        for region in regions {
            self.forget(slot, region);
        }
        self.mailbox.post(Notice::SessionClosed(slot));
    }

    fn serve(&mut self) {
        let hold = self.switches.hold_requests.is_on();
        let mut work = Vec::new();
        if !hold {
            work.append(&mut self.held);
        }
        let mut faults = Vec::new();
        for (slot, seat) in &mut self.lanes {
            loop {
                match seat.lane.take() {
                    Ok(Some(request)) => {
                        self.switches.taken.add();
                        work.push((*slot, seat.queue, request.fields()));
                    }
                    Ok(None) => break,
                    Err(fault) => {
                        faults.push((*slot, seat.queue, fault));
                        break;
                    }
                }
            }
            seat.lane.release();
        }
        for (slot, queue, fault) in faults {
            self.lanes.retain(|lane| lane.0 != slot || lane.1.queue != queue);
            self.mailbox.post(Notice::LaneFault(slot, queue, fault));
        }
        if hold {
            self.held.append(&mut work);
            return;
        }
        for (slot, queue, request) in work {
            let completion = self.perform(slot, &request);
            let lane = self.lanes.iter_mut().find(|lane| lane.0 == slot && lane.1.queue == queue);
            let Some((_, seat)) = lane else { continue };
            seat.lane.complete(completion);
            self.switches.completed.add();
            if seat.lane.publish() == RingBell::Now {
                let _rung = seat.bell.ring();
            }
        }
    }

    fn perform(&self, slot: SessionSlot, request: &Request) -> Completion {
        let user_data = request.user_data;
        if self.draining {
            return Completion::refused(user_data, Status::Draining);
        }
        let moved = match Opcode::from_number(request.opcode) {
            Some(Opcode::Nop | Opcode::Flush) => Some(0),
            Some(Opcode::Read | Opcode::Write) => self.copy(slot, request),
            _ => None,
        };
        match moved {
            Some(bytes) => Completion {
                user_data,
                status: Status::Ok.number(),
                bytes,
                ..Completion::default()
            },
            None => Completion::refused(user_data, Status::Invalid),
        }
    }

    /// Moves the bytes; the volume is addressed by volume offset, members aside.
    fn copy(&self, slot: SessionSlot, request: &Request) -> Option<u32> {
        let length = request.length as usize;
        let extent = self.geometry.locate(request.volume_offset, u64::from(request.length)).ok()?;
        if usize::from(extent.member) % 2 != self.index {
            return None;
        }
        let memory = self.regions.get(&(slot, request.region_id()))?;
        let at = usize::try_from(request.region_offset).ok()?;
        if at.checked_add(length)? > memory.bytes() {
            return None;
        }
        let from = usize::try_from(request.volume_offset).ok()?;
        let mut volume = self.volume.lock().unwrap();
        let range = &mut volume[from..from + length];
        match Opcode::from_number(request.opcode)? {
            Opcode::Read => store(memory.as_ref(), at, range),
            _ => load(memory.as_ref(), at, range),
        }
        Some(request.length)
    }
}
