//! A simulated device whose every operation is watched, and which can be given a bug.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use kvrail_device::{
    Attached, AttachedBytes, BufferIndex, Description, Device, DeviceResult, Event, Events,
    FakeClock, Finished, Operation, SimDevice, Wait,
};
use kvrail_memory::{Pinned, load, store};
use kvrail_ring::limits::REQUEST_LENGTH_MAX;
use kvrail_ring::{Opcode, RegionId, Status};

use super::options::{Options, Temper};
use super::trace::{Trace, What};

/// A bug of the device, to see that the model finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Plant {
    #[default]
    None,
    /// Reads have a wrong byte now and then.
    FlipsAByte,
    /// An operation is reported as done while it is in flight.
    EndsEarly,
    /// An operation's end is not reported.
    ForgetsAnEnd,
    /// Two operations' ends are reported for each other.
    MixesTags,
    /// A buffer is written once more after its read ended.
    WritesLate,
    /// An error is reported as success.
    HidesAnError,
}

/// An operation without its tag, and whose bytes it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) device: u8,
    pub(crate) operation: Operation,
    /// Buffers have successors with the same number; regions have none.
    pub(crate) region: Option<RegionId>,
}

/// What all devices of a run were asked, and how it ended.
#[derive(Debug)]
pub(crate) struct Watch {
    options: Rc<Options>,
    trace: Rc<Trace>,
    in_flight: BTreeMap<(u8, u64), Asked>,
    /// Ended, not yet completed towards a client.
    ended: Vec<(Asked, Status)>,
    /// What stands in each device's table, and for which slot.
    attached: BTreeMap<(u8, u16), Weak<dyn Pinned>>,
    pub(crate) owners: BTreeMap<u16, (u8, RegionId)>,
    pub(crate) operations: u64,
}

impl Watch {
    pub(crate) fn new(options: &Rc<Options>, trace: &Rc<Trace>) -> Self {
        Self {
            options: Rc::clone(options),
            trace: Rc::clone(trace),
            in_flight: BTreeMap::new(),
            ended: Vec::new(),
            attached: BTreeMap::new(),
            owners: BTreeMap::new(),
            operations: 0,
        }
    }

    /// Operations no device has ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether any device still knows a region.
    pub(crate) fn knows_any_region(&self) -> bool {
        !self.attached.is_empty()
    }

    /// Takes the end of an operation with this status; false when no device has reported it.
    pub(crate) fn take_end(&mut self, asked: Asked, status: Status) -> bool {
        let found = self.ended.iter().position(|ended| *ended == (asked, status));
        if asked.operation.opcode == Opcode::Flush {
            return found.is_some(); // one flush of a device may answer several requests
        }
        found.map(|at| self.ended.swap_remove(at)).is_some()
    }

    /// Whether a device was asked for this and it is not yet completed.
    pub(crate) fn was_asked(&self, asked: Asked) -> bool {
        self.ended.iter().any(|(other, _)| *other == asked)
            || self.in_flight.values().any(|other| *other == asked)
    }

    /// Invariant 4: nothing outside of the volume, nor of the region, nor of the slot's zone.
    fn prepared(&mut self, device: u8, operation: Operation) {
        self.trace.note(What::Prepared { device, operation });
        self.operations += 1;
        let mut asked =
            Asked { device, operation: Operation { tag: 0, ..operation }, region: None };
        let Operation { opcode, offset, length, buffer, buffer_offset, .. } = operation;
        assert!(length <= REQUEST_LENGTH_MAX, "{operation:?} is longer than a request may be");
        if opcode != Opcode::Flush {
            let slot = self.options.slot_at(offset).expect("an operation within the volume");
            let zone = self.options.device_zone(slot);
            let end = offset + u64::from(length);
            assert!(length > 0 && end <= zone.end, "{operation:?} leaves the zone {zone:?}");
            if matches!(opcode, Opcode::Read | Opcode::Write) {
                let region = self.attached.get(&(device, buffer.0)).and_then(Weak::upgrade);
                let region = region.expect("an operation in an attached region");
                let end = buffer_offset + u64::from(length);
                assert!(end <= region.bytes() as u64, "{operation:?} leaves its region");
                let (owner, id) = self.owners[&buffer.0];
                assert_eq!(owner, slot, "{operation:?}: somebody else's region");
                asked.region = Some(id);
            }
        }
        self.check_budget(asked);
        let before = self.in_flight.insert((device, operation.tag), asked);
        assert_eq!(before, None, "a tag is in use twice");
    }

    /// A device holds no more than its budget, save for one operation alone.
    fn check_budget(&self, asked: Asked) {
        let held = self.in_flight.values().filter(|other| other.device == asked.device);
        let moved = |operation: &Operation| match operation.opcode {
            Opcode::Read | Opcode::Write => u64::from(operation.length),
            _ => 0,
        };
        let (mut operations, mut bytes) = (1, moved(&asked.operation));
        for other in held {
            operations += 1;
            bytes += moved(&other.operation);
        }
        let Options { budget_operations, budget_bytes, .. } = *self.options;
        let fits = operations <= budget_operations && bytes <= budget_bytes;
        assert!(fits || operations == 1, "{operations} operations of {bytes} bytes at a device");
    }

    fn seen(&mut self, device: u8, event: Event) {
        match event {
            Event::Finished(finished) => {
                let asked = self.in_flight.remove(&(device, finished.tag));
                let asked = asked.expect("the simulated device ends what it was given");
                let operation = asked.operation;
                let opcode = operation.opcode;
                self.trace.note(What::Ended { device, opcode, finished });
                let slot = self.options.slot_at(operation.offset).map(usize::from);
                let temper = slot.map(|slot| self.options.slots[slot].temper);
                if temper != Some(Temper::Hostile) {
                    self.ended.push((asked, finished.status));
                }
            }
            Event::Detached(buffer) => {
                self.trace.note(What::Forgot { device, buffer: buffer.0 });
                let mut others = self.in_flight.values();
                let user =
                    others.find(|other| other.device == device && uses(&other.operation, buffer));
                assert_eq!(user, None, "invariant 2: forgotten while in use");
                self.attached.remove(&(device, buffer.0));
            }
        }
    }
}

fn uses(operation: &Operation, buffer: BufferIndex) -> bool {
    matches!(operation.opcode, Opcode::Read | Opcode::Write) && operation.buffer == buffer
}

/// The device.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) inner: Rc<RefCell<SimDevice<FakeClock>>>,
    description: Description,
    watch: Rc<RefCell<Watch>>,
    device: u8,
    plant: Plant,
    /// Reads that ended, for the plant.
    reads: u32,
    late: Option<Operation>,
    /// What is to be reported as done, and what was.
    early: Vec<Operation>,
    hushed: Vec<u64>,
    /// Steps of attaches so far.
    steps: u32,
}

impl Watched {
    pub(crate) fn new(
        inner: &Rc<RefCell<SimDevice<FakeClock>>>,
        watch: &Rc<RefCell<Watch>>,
        (device, plant): (u8, Plant),
    ) -> Self {
        let description = inner.borrow().description().clone();
        let (inner, watch) = (Rc::clone(inner), Rc::clone(watch));
        let (late, early, hushed) = (None, Vec::new(), Vec::new());
        Self { inner, description, watch, device, plant, reads: 0, steps: 0, late, early, hushed }
    }

    fn memory(&self, operation: &Operation) -> Option<Arc<dyn Pinned>> {
        let watch = self.watch.borrow();
        watch.attached.get(&(self.device, operation.buffer.0)).and_then(Weak::upgrade)
    }

    fn flip(&self, operation: &Operation) {
        let Some(memory) = self.memory(operation) else { return };
        let at = usize::try_from(operation.buffer_offset).expect("small") + 100;
        let mut byte = [0];
        load(&*memory, at, &mut byte);
        store(&*memory, at, &[!byte[0]]);
    }

    /// Spoils every tenth read that ended, as planted; says whether to report it.
    fn spoil(&mut self, finished: &mut Finished, operation: &Operation) -> bool {
        if operation.opcode != Opcode::Read {
            return true;
        }
        if self.plant == Plant::HidesAnError && finished.status != Status::Ok {
            (finished.status, finished.bytes) = (Status::Ok, operation.length);
        }
        self.reads += 1;
        if !self.reads.is_multiple_of(10) {
            return true;
        }
        match self.plant {
            Plant::FlipsAByte => self.flip(operation),
            Plant::WritesLate => self.late = Some(*operation),
            Plant::ForgetsAnEnd => return false,
            Plant::None | Plant::EndsEarly | Plant::MixesTags | Plant::HidesAnError => {}
        }
        true
    }
}

impl Device for Watched {
    fn description(&self) -> &Description {
        &self.description
    }

    fn begin_attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        let weak = Arc::downgrade(&region);
        self.inner.borrow_mut().attach(at, region)?;
        self.watch.borrow_mut().attached.insert((self.device, at.0), weak);
        self.attach_more(at)
    }

    /// One to three steps, whatever region it is.
    fn attach_more(&mut self, _: BufferIndex) -> DeviceResult<Attached> {
        self.steps += 1;
        Ok(if self.steps.is_multiple_of(3) { Attached::Whole } else { Attached::Partly })
    }

    fn attached(&self) -> AttachedBytes {
        self.inner.borrow().attached()
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        self.inner.borrow_mut().detach(at)
    }

    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        self.inner.borrow_mut().prepare(operation)?;
        self.watch.borrow_mut().prepared(self.device, operation);
        if self.plant == Plant::EndsEarly && operation.opcode == Opcode::Write {
            self.early.push(operation);
        }
        Ok(())
    }

    fn submit(&mut self) {
        self.inner.borrow_mut().submit();
    }

    fn reap(&mut self, events: &mut Events) {
        if let Some(operation) = self.late.take() {
            self.flip(&operation);
        }
        let mut fresh = Events::new();
        for Operation { tag, length, .. } in self.early.drain(..) {
            events.push(Event::Finished(Finished { tag, status: Status::Ok, bytes: length }));
            self.hushed.push(tag);
        }
        self.inner.borrow_mut().reap(&mut fresh);
        if self.plant == Plant::MixesTags
            && let [Event::Finished(one), Event::Finished(two), ..] = &mut fresh[..]
        {
            std::mem::swap(&mut one.tag, &mut two.tag);
        }
        for mut event in fresh {
            let mut told = true;
            if let Event::Finished(finished) = &mut event {
                let key = (self.device, finished.tag);
                let operation = self.watch.borrow().in_flight[&key].operation;
                told = self.spoil(finished, &operation);
            }
            if !told {
                continue;
            }
            self.watch.borrow_mut().seen(self.device, event);
            let tag = if let Event::Finished(finished) = event { Some(finished.tag) } else { None };
            let hushed = self.hushed.iter().position(|hushed| Some(*hushed) == tag);
            match hushed {
                Some(at) => drop(self.hushed.swap_remove(at)),
                None => events.push(event),
            }
        }
    }

    fn in_flight(&self) -> u32 {
        self.inner.borrow().in_flight()
    }

    fn wait(&self) -> Wait<'_> {
        Wait::Poll
    }
}
