//! A device that finishes an operation when the test says so, and counts what it holds.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kvrail_device::{
    Attached, AttachedBytes, BufferIndex, Cause, Description, Device, DeviceError, DeviceResult,
    Event, Events, Failure, Finished, Operation, Replacement, Wait,
};
use kvrail_memory::Pinned;
use kvrail_ring::Status;

use crate::rig::described;

/// What test and device share.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    /// Operations submitted and not finished, in order of arrival.
    pub(crate) held: Vec<Operation>,
    /// Events for the next reap.
    pub(crate) due: Vec<Event>,
    /// Regions attached now.
    pub(crate) attached: Vec<BufferIndex>,
    /// The reason of the last failure.
    pub(crate) failure: Option<Failure>,
    /// Operations that each submission handed over.
    pub(crate) batches: Vec<usize>,
    /// Finish whatever is submitted at once.
    pub(crate) prompt: bool,
    /// Entries that every region takes; none is as good as one.
    pub(crate) entries: u32,
    /// Entries of the region that is attached partly.
    pub(crate) attach_steps: u32,
    /// Refuse the next attach.
    pub(crate) refuse_attach: Option<&'static str>,
}

impl Shelf {
    /// Finishes the operation at this place of `held`.
    pub(crate) fn finish(&mut self, at: usize, status: Status) {
        let operation = self.held.remove(at);
        let bytes = if status == Status::Ok { operation.length } else { 0 };
        self.due.push(Event::Finished(Finished { tag: operation.tag, status, bytes }));
    }
}

impl Shelf {
    /// Fails it, with a reason.
    pub(crate) fn fail(&mut self, at: usize, status: Status) {
        let Operation { opcode, offset, length, .. } = self.held[at];
        let cause = Cause::Short;
        self.failure = Some(Failure { opcode, offset, length, status, cause });
        self.finish(at, status);
    }
}

/// The device.
#[derive(Debug)]
pub(crate) struct Held {
    description: Description,
    shelf: Rc<RefCell<Shelf>>,
    prepared: Vec<Operation>,
}

impl Held {
    pub(crate) fn new(depth: u32, shelf: &Rc<RefCell<Shelf>>) -> Self {
        let description = described("held", depth);
        Self { description, shelf: Rc::clone(shelf), prepared: Vec::new() }
    }
}

impl Device for Held {
    fn description(&self) -> &Description {
        &self.description
    }

    fn begin_attach(&mut self, at: BufferIndex, _: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        if let Some(what) = self.shelf.borrow_mut().refuse_attach.take() {
            return Err(DeviceError::Table { at, what });
        }
        self.shelf.borrow_mut().attached.push(at);
        self.attach_more(at)
    }

    fn attach_more(&mut self, at: BufferIndex) -> DeviceResult<Attached> {
        let mut shelf = self.shelf.borrow_mut();
        assert!(shelf.attached.contains(&at), "more of what has begun");
        shelf.attach_steps += 1;
        if shelf.attach_steps < shelf.entries {
            return Ok(Attached::Partly);
        }
        shelf.attach_steps = 0;
        Ok(Attached::Whole)
    }

    fn attached(&self) -> AttachedBytes {
        AttachedBytes::default()
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        let mut shelf = self.shelf.borrow_mut();
        assert!(shelf.held.iter().all(|operation| operation.buffer != at), "detached under load");
        shelf.attached.retain(|other| *other != at);
        shelf.due.push(Event::Detached(at));
        Ok(())
    }

    fn replace(&mut self, _: &mut Replacement) -> DeviceResult<()> {
        assert_eq!(self.in_flight(), 0, "replaced under load");
        Ok(())
    }

    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        if self.in_flight() >= self.description.depth {
            return Err(operation);
        }
        self.prepared.push(operation);
        Ok(())
    }

    fn submit(&mut self) {
        let mut shelf = self.shelf.borrow_mut();
        shelf.batches.push(self.prepared.len());
        shelf.held.append(&mut self.prepared);
        while shelf.prompt && !shelf.held.is_empty() {
            shelf.finish(0, Status::Ok);
        }
    }

    fn reap(&mut self, events: &mut Events) {
        let mut shelf = self.shelf.borrow_mut();
        let room = events.remaining_capacity().min(shelf.due.len());
        events.extend(shelf.due.drain(..room));
    }

    fn in_flight(&self) -> u32 {
        let count = self.prepared.len() + self.shelf.borrow().held.len();
        u32::try_from(count).expect("few")
    }

    fn wait(&self) -> Wait<'_> {
        Wait::Poll
    }

    fn take_failure(&mut self) -> Option<Failure> {
        self.shelf.borrow_mut().failure.take()
    }
}
