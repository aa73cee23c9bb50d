//! The bridge as a device: where operations go, and how parts travel.

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_device::{
    Attached, AttachedBytes, BUFFERS_MAX, BufferIndex, Description, Device, DeviceError,
    DeviceResult, Event, Events, Failure, Finished, Operation, RemoteMemory, Replacement, SlotId,
    Wait,
};
use kvrail_memory::{Pinned, Region};
use kvrail_ring::wake::Waker;
use kvrail_ring::{Opcode, Status};

use super::regions::BridgeRegions;
use super::transfers::{TransferPart, Transfers};
use crate::contract::{DirectWay, Way};
use crate::port::{CopyDone, CopyRoute, JOBS_MAX, Job, Port, Work};
use crate::region::GpuRegion;
use crate::staging::{STAGING_ENTRIES, SlotIndex};

/// Marks tags of parts in the device within; pollers' tags never have this bit.
const PART: u64 = 1 << 63;

/// Largest part of a direct transfer.
const DIRECT_BYTES_MAX: u32 = 16 << 20;

/// Ends that wait to be reported: one for each transfer that fails at once or region that leaves.
const READY_MAX: usize = 1024;

/// Largest part of a read that is announced to the GPU's poller in advance: a device answers in
/// tens of microseconds, and a wait for 64 KiB would notice the 6 us and more of a wake-up.
const SMALL_BYTES_MAX: u32 = 64 << 10;

/// One port and the bridge's state of it.
#[derive(Debug)]
struct PortLink {
    port: Arc<Port>,
    /// How bytes travel: the port's way, until the device is replaced.
    route: CopyRoute,
    /// The log line of that, where it makes a difference; written before the poller starts.
    farewell: Option<String>,
    waker: Waker,
    /// Entry of its staging memory in the device within.
    staging: BufferIndex,
    /// Jobs were pushed, or small parts went to the device, since the last nudge.
    pushed: bool,
    /// Small parts of reads at the device.
    coming: u32,
}

/// A device with ports to GPUs.
#[derive(Debug)]
pub struct Bridge<D> {
    inner: D,
    description: Description,
    links: Vec<PortLink>,
    regions: BridgeRegions,
    transfers: Transfers,
    /// Parts the device within did not take at once.
    stalled: VecDeque<SlotId>,
    ready: VecDeque<Event>,
    scratch: Events,
    /// Operations of any kind, taken and not yet reported.
    in_flight: u32,
    /// Copies that are with GPUs' pollers.
    copying: u32,
    /// Regions that the inner device is unregistering.
    leaving: u32,
    /// Something was prepared within since its last submit.
    prepared: bool,
    /// The link that had no slot for us, and how many had to stay free.
    starving: Option<(usize, usize)>,
}

impl<D: Device> Bridge<D> {
    /// Bridges a device to the GPUs of these ports; attaches their staging memory to it, in the
    /// last entries of its table.
    ///
    /// # Errors
    /// The device's, when it cannot register staging memory.
    pub fn new(mut inner: D, ports: Vec<Arc<Port>>) -> Result<Self, DeviceError> {
        let mut description = inner.description().clone();
        let mut links = Vec::with_capacity(ports.len());
        let entries = (0..BUFFERS_MAX).step_by(usize::from(STAGING_ENTRIES)).rev();
        for (entry, port) in entries.map(BufferIndex).zip(ports) {
            let staging: Arc<Region> = Arc::clone(port.staging.region());
            inner.attach(entry, staging)?;
            description.features.push(port.description());
            let (route, waker) = (port.route, Waker::default());
            let direct = matches!(route, CopyRoute::Direct(_));
            let name = &description.name;
            let farewell = direct.then(|| format!("{name} was replaced, and is staged since"));
            let staging = entry;
            links.push(PortLink {
                port,
                route,
                farewell,
                waker,
                staging,
                pushed: false,
                coming: 0,
            });
        }
        Ok(Self {
            inner,
            description,
            links,
            regions: BridgeRegions::new(),
            transfers: Transfers::new(),
            stalled: VecDeque::with_capacity(JOBS_MAX as usize),
            ready: VecDeque::with_capacity(READY_MAX),
            scratch: Events::new(),
            in_flight: 0,
            copying: 0,
            leaving: 0,
            prepared: false,
            starving: None,
        })
    }

    /// The device within.
    #[must_use]
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Takes an operation on GPU memory, if its first part can begin now.
    fn take(&mut self, operation: Operation) -> Result<(), Operation> {
        let at = self.regions.get(operation.buffer).port;
        let port = &self.links[at].port;
        if !port.health.works() {
            let failed = Finished { tag: operation.tag, status: Status::GpuError, bytes: 0 };
            self.ready.push_back(Event::Finished(failed));
            return Ok(());
        }
        if !self.transfers.is_open() || self.ready.len() >= READY_MAX / 2 {
            return Err(operation);
        }
        let slot = match self.links[at].route {
            CopyRoute::Direct(_) => None,
            CopyRoute::Staged => Some(self.slot(at, operation.opcode).ok_or(operation)?),
        };
        self.regions.enter(operation.buffer);
        self.transfers.take(operation);
        self.begin(at, operation.opcode, slot);
        self.cut();
        Ok(())
    }

    /// A slot of the link's pool, or a note that we wait for one.
    fn slot(&mut self, at: usize, opcode: Opcode) -> Option<SlotIndex> {
        let staging = &self.links[at].port.staging;
        // Reads go before writes, because a user waits for them.
        let reserve = if opcode == Opcode::Write { staging.options().slots / 4 } else { 0 };
        let slot = staging.take(reserve);
        self.starving = if slot.is_none() { Some((at, usize::from(reserve))) } else { None };
        slot
    }

    /// Begins parts of the operation being cut, as far as slots go.
    fn cut(&mut self) {
        while let Some(operation) = self.transfers.cutting() {
            let (buffer, opcode) = (operation.buffer, operation.opcode);
            if !self.transfers.has_parts() {
                return;
            }
            let at = self.regions.get(buffer).port;
            let slot = match self.links[at].route {
                CopyRoute::Direct(_) => None,
                CopyRoute::Staged => match self.slot(at, opcode) {
                    None => return,
                    slot => slot,
                },
            };
            self.begin(at, opcode, slot);
        }
    }

    /// Cuts the next part and sends it on its way.
    fn begin(&mut self, at: usize, opcode: Opcode, slot: Option<SlotIndex>) {
        let port = &self.links[at].port;
        let most = match slot {
            None => DIRECT_BYTES_MAX,
            Some(_) => port.staging.options().slot_bytes,
        };
        let id = self.transfers.cut(most, slot);
        if slot.is_some() && opcode == Opcode::Read {
            self.hand_to_device(id);
        } else {
            self.hand_to_gpu(id);
        }
    }

    /// Hands a part to the device within, at once or as soon as it takes it.
    fn hand_to_device(&mut self, id: SlotId) {
        if !self.stalled.is_empty() || !self.offer(id) {
            self.stalled.push_back(id);
        }
    }

    fn offer(&mut self, id: SlotId) -> bool {
        let TransferPart { operation, slot, .. } = *self.transfers.part(id);
        let link = &self.links[self.regions.get(operation.buffer).port];
        let slot = slot.expect("a staged part has a slot");
        let staged = Operation {
            tag: id.to_u64() | PART,
            buffer: link.staging,
            buffer_offset: link.port.staging.offset(slot) as u64,
            ..operation
        };
        let taken = self.inner.prepare(staged).is_ok();
        self.prepared |= taken;
        if taken && is_small_read(&operation) {
            self.expect(operation.buffer, 1);
        }
        taken
    }

    /// Counts a small part to the device, or back: the GPU's poller stays awake for it, and if it
    /// sleeps, wakes up while the device works.
    fn expect(&mut self, at: BufferIndex, change: i32) {
        let link = &mut self.links[self.regions.get(at).port];
        link.coming = link.coming.checked_add_signed(change).expect("as many back as out");
        link.port.announce(link.coming);
        link.pushed |= change > 0;
    }

    /// Hands a part to the GPU's poller.
    fn hand_to_gpu(&mut self, id: SlotId) {
        let TransferPart { operation, slot, .. } = *self.transfers.part(id);
        let entry = self.regions.get(operation.buffer);
        let link = &mut self.links[entry.port];
        let read = operation.opcode == Opcode::Read;
        let work = match (link.route, slot) {
            (CopyRoute::Direct(file), None) => {
                let way = if read { DirectWay::Read } else { DirectWay::Write };
                Work::Direct { way, file, offset: operation.offset }
            }
            (_, slot) => {
                let way = if read { Way::Scatter } else { Way::Gather };
                let slot = slot.expect("a staged part has a slot");
                self.copying += 1;
                Work::Move { way, staged: link.port.staging.offset(slot) }
            }
        };
        let (block, start) = entry.region.place(operation.buffer_offset);
        let region = Arc::clone(&entry.region);
        let (id, length) = (id.to_u64(), operation.length);
        let pushed = link.port.jobs.push(Job { id, work, region, block, start, length });
        assert!(pushed.is_ok(), "a port has room for every part");
        link.pushed = true;
    }

    /// A part came back from the device within.
    fn device_ended(&mut self, id: SlotId, finished: Finished) {
        let part = *self.transfers.part(id);
        if is_small_read(&part.operation) {
            self.expect(part.operation.buffer, -1);
        }
        let short = finished.bytes != part.operation.length;
        let status = match finished.status {
            Status::Ok if short => Status::IoError,
            status => status,
        };
        if status == Status::Ok && part.operation.opcode == Opcode::Read {
            self.hand_to_gpu(id);
        } else {
            self.end(id, status);
        }
    }

    /// A part came back from the GPU's poller.
    fn gpu_ended(&mut self, done: CopyDone) {
        let id = SlotId::from_u64(done.id);
        let part = self.transfers.part(id);
        let staged = part.slot.is_some();
        self.copying -= u32::from(staged);
        let onward = done.status == Status::Ok && part.operation.opcode == Opcode::Write && staged;
        drop(done.region); // never the last reference: the entry has one while the part is open
        if onward {
            self.hand_to_device(id);
        } else {
            self.end(id, done.status);
        }
    }

    /// A part is over; its transfer perhaps too.
    fn end(&mut self, id: SlotId, status: Status) {
        let TransferPart { operation, slot, .. } = *self.transfers.part(id);
        let port = &self.links[self.regions.get(operation.buffer).port].port;
        if let Some(slot) = slot {
            port.staging.give_back(slot);
        }
        if let Some((operation, finished)) = self.transfers.end(id, status) {
            self.ready.push_back(Event::Finished(finished));
            if self.regions.leave(operation.buffer) {
                self.ready.push_back(Event::Detached(operation.buffer));
            }
        }
    }

    /// Moves everything on that can move: stalled parts and parts not cut yet.
    fn advance(&mut self) {
        while let Some(id) = self.stalled.front().copied() {
            if !self.offer(id) {
                break;
            }
            self.stalled.pop_front();
        }
        self.cut();
    }

    /// Hands over what was prepared within, then wakes GPU pollers: the device does not wait for
    /// that.
    fn hand_over(&mut self) {
        if self.prepared {
            self.prepared = false;
            self.inner.submit();
        }
        for link in self.links.iter_mut().filter(|link| link.pushed) {
            link.pushed = false;
            link.port.to_gpu.wake(&mut link.waker);
        }
    }

    /// Collects the ended operations, of the inner device and of GPUs, into `ready`, while there is
    /// room.
    fn collect(&mut self) {
        for at in 0..self.links.len() {
            // `pop` passes a full fence even when it finds nothing.
            if self.links[at].port.done.is_empty() {
                continue;
            }
            while self.ready.len() < READY_MAX / 2
                && let Some(done) = self.links[at].port.done.pop()
            {
                self.gpu_ended(done);
            }
        }
        if self.ready.len() >= READY_MAX / 2 {
            return;
        }
        // By index: the array stays where it is, 3 KiB are not moved out and back.
        self.inner.reap(&mut self.scratch);
        for at in 0..self.scratch.len() {
            match self.scratch[at] {
                Event::Finished(finished) if finished.tag & PART != 0 => {
                    self.device_ended(SlotId::from_u64(finished.tag & !PART), finished);
                }
                other => {
                    self.leaving -= u32::from(matches!(other, Event::Detached(_)));
                    self.ready.push_back(other);
                }
            }
        }
        self.scratch.clear();
    }
}

/// Whether a part goes to the device first, and will be back soon.
fn is_small_read(operation: &Operation) -> bool {
    operation.opcode == Opcode::Read && operation.length <= SMALL_BYTES_MAX
}

impl<D: Device> Device for Bridge<D> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn begin_attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        self.inner.begin_attach(at, region)
    }

    fn attach_more(&mut self, at: BufferIndex) -> DeviceResult<Attached> {
        self.inner.attach_more(at)
    }

    fn attach_remote(
        &mut self,
        at: BufferIndex,
        memory: Arc<dyn RemoteMemory>,
    ) -> DeviceResult<()> {
        let unknown = || DeviceError::NoRemote { device: self.description.name.clone() };
        let memory: Arc<dyn Any + Send + Sync> = memory;
        let region = memory.downcast::<GpuRegion>().map_err(|_| unknown())?;
        let port = self.links.iter().position(|link| link.port.gpu == region.gpu());
        let port = port.ok_or_else(unknown)?;
        self.regions.insert(at, region, port).map_err(|what| DeviceError::Table { at, what })
    }

    fn attached(&self) -> AttachedBytes {
        self.inner.attached()
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        if !BridgeRegions::is_remote(at) {
            self.inner.detach(at)?;
            self.leaving += 1;
            return Ok(());
        }
        let gone = self.regions.detach(at).map_err(|what| DeviceError::Table { at, what })?;
        if gone {
            self.ready.push_back(Event::Detached(at));
        }
        Ok(())
    }

    #[inline]
    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        let moves = matches!(operation.opcode, Opcode::Read | Opcode::Write);
        if moves && BridgeRegions::is_remote(operation.buffer) {
            self.take(operation)?;
        } else {
            self.inner.prepare(operation)?;
        }
        self.in_flight += 1;
        Ok(())
    }

    fn submit(&mut self) {
        self.advance();
        self.prepared = true; // operations of host memory went past us
        self.hand_over();
    }

    fn reap(&mut self, events: &mut Events) {
        if self.links.is_empty() {
            self.inner.reap(events);
            let finished = events.iter().filter(|event| matches!(event, Event::Finished(_)));
            self.in_flight -= u32::try_from(finished.count()).expect("at most 128");
            return;
        }
        self.collect();
        self.advance();
        self.hand_over();
        while !events.is_full()
            && let Some(event) = self.ready.pop_front()
        {
            self.in_flight -= u32::from(matches!(event, Event::Finished(_)));
            events.push(event);
        }
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    #[inline]
    fn has_handed_over(&self) -> bool {
        self.copying > 0
    }

    fn wait(&self) -> Wait<'_> {
        if self.is_ready() {
            Wait::Poll
        } else if self.inner.in_flight() > 0 || self.leaving > 0 || self.links.is_empty() {
            self.inner.wait()
        } else {
            Wait::ThreadWaker
        }
    }

    fn watch(&mut self, bell: OwnedFd) -> Result<(), OwnedFd> {
        self.inner.watch(bell)
    }

    fn is_ready(&self) -> bool {
        let handed_over = |link: &PortLink| !link.port.done.is_empty();
        let slots = |(at, reserve): (usize, usize)| self.links[at].port.staging.free() > reserve;
        !self.ready.is_empty()
            || self.links.iter().any(handed_over)
            || self.starving.is_some_and(slots)
            || self.inner.is_ready()
    }

    fn block(&mut self, timeout_ns: u64) {
        self.inner.block(timeout_ns);
    }

    fn replace(&mut self, with: &mut Replacement) -> DeviceResult<()> {
        self.inner.replace(with)?;
        // The GPU's own calls name the file that was there before.
        for link in &mut self.links {
            link.route = CopyRoute::Staged;
            if let Some(farewell) = link.farewell.take() {
                link.port.health.fall_back(farewell);
            }
        }
        Ok(())
    }

    fn take_failure(&mut self) -> Option<Failure> {
        self.inner.take_failure()
    }
}
