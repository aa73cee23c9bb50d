//! The regions a poller may move bytes to and from: whose they are, and whether they are leaving.

use std::sync::Arc;

use kvrail_device::{BufferIndex, DeviceError, RemoteMemory};
use kvrail_memory::Pinned;
use kvrail_ring::{RegionId, Status};

use crate::limits::{REGIONS_MAX, SessionSlot};
use crate::task::BufferRef;

/// Why a region leaves, to be reported once the last device has deregistered it.
#[derive(Debug)]
pub(crate) enum DetachOutcome {
    /// It was detached.
    Detached,
    /// It could not be attached everywhere.
    Failed(DeviceError),
}

/// The states of a region, in their order. The attach queue takes it from the first to the second.
#[derive(Debug)]
enum RegionState {
    /// Some devices have it.
    Attaching,
    /// Requests may name it.
    Live,
    /// No new requests; the last one is waited for.
    Leaving,
    /// This many devices have still to deregister it.
    Deregistering { devices_left: usize, outcome: DetachOutcome },
}

/// What a region is made of.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// An arena.
    Host(Arc<dyn Pinned>),
    /// A paged cache on a GPU.
    Remote(Arc<dyn RemoteMemory>),
}

/// Which requests a pass over the checks is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// Most: reads and writes of host memory with neither flags nor deadline. All others fail.
    Common,
    /// All.
    Any,
}

/// One region of one session.
#[derive(Debug)]
struct SessionRegion {
    id: RegionId,
    session: SessionSlot,
    buffer: BufferIndex,
    memory: Memory,
    state: RegionState,
}

/// What each request needs of a region: small, and beside each other.
#[derive(Clone, Copy, Debug)]
struct HotRegion {
    /// Which requests may enter: the region's id and session in one word; `CLOSED` while none may.
    key: u64,
    /// Of host memory; 0 of any other.
    bytes: u64,
    /// Requests accepted and not completed.
    in_flight: u32,
    buffer: BufferIndex,
}

/// No key: sessions have eight bits.
const CLOSED: u64 = u64::MAX;

fn key(session: SessionSlot, id: RegionId) -> u64 {
    u64::from(session.0) << 32 | u64::from(id.0)
}

/// Low half of an id: the index in the table.
fn index(id: RegionId) -> usize {
    (id.0 & 0xffff) as usize
}

/// All regions, by the low half of their id.
#[derive(Debug)]
pub(crate) struct Regions {
    table: Vec<Option<SessionRegion>>,
    hot: Vec<HotRegion>,
}

impl Regions {
    pub(crate) fn new() -> Self {
        let free = HotRegion { key: CLOSED, bytes: 0, in_flight: 0, buffer: BufferIndex(0) };
        Self { table: (0..REGIONS_MAX).map(|_| None).collect(), hot: vec![free; REGIONS_MAX] }
    }

    /// Enters a region that devices are about to attach.
    pub(crate) fn insert(
        &mut self,
        id: RegionId,
        session: SessionSlot,
        buffer: BufferIndex,
        memory: Memory,
    ) {
        let entry = &mut self.table[index(id)];
        assert!(entry.is_none(), "the control thread gives out free indices only");
        let bytes = match &memory {
            Memory::Host(memory) => memory.bytes() as u64,
            Memory::Remote(_) => 0,
        };
        self.hot[index(id)] = HotRegion { key: CLOSED, bytes, in_flight: 0, buffer };
        *entry = Some(SessionRegion { id, session, buffer, memory, state: RegionState::Attaching });
    }

    /// Every device has it: requests may use it.
    pub(crate) fn open(&mut self, id: RegionId) {
        let region = self.known(id);
        region.state = RegionState::Live;
        let key = key(region.session, id);
        self.hot[index(id)].key = key;
    }

    /// Counts a request in at the live region it names, if that is the session's own and holds the
    /// range; returns where the bytes are in the devices' tables. `leave` counts it out.
    ///
    /// # Errors
    /// INVALID.
    #[inline(always)]
    pub(crate) fn enter(
        &mut self,
        session: SessionSlot,
        id: RegionId,
        (block, offset, length): (u32, u64, u32),
        pass: Pass,
    ) -> Result<BufferRef, Status> {
        let hot = self.hot.get_mut(index(id)).ok_or(Status::Invalid)?;
        let end = offset.checked_add(u64::from(length)).ok_or(Status::Invalid)?;
        if hot.key != key(session, id) {
            return Err(Status::Invalid);
        }
        let mut at = BufferRef { buffer: hot.buffer, offset };
        if end > hot.bytes || block != 0 {
            if pass == Pass::Common {
                return Err(Status::Invalid);
            }
            let region = self.table[index(id)].as_ref().expect("a live region");
            at.offset = region.locate_remote((block, offset, length))?;
        }
        hot.in_flight += 1;
        Ok(at)
    }

    /// Counts completed requests out; true when the region may now be deregistered.
    #[inline]
    pub(crate) fn leave(&mut self, id: RegionId, count: u32) -> bool {
        let hot = &mut self.hot[index(id)];
        let left = hot.in_flight.checked_sub(count);
        hot.in_flight = left.expect("invariant 2: more requests left a region than entered");
        hot.key == CLOSED && hot.in_flight == 0
    }

    /// Lets no more requests into a live region.
    pub(crate) fn close(&mut self, id: RegionId) {
        // One that failed here may be detached by a client that knew it before.
        let region = self.table[index(id)].as_mut().filter(|region| region.id == id);
        if let Some(region) = region
            && matches!(region.state, RegionState::Live)
        {
            region.state = RegionState::Leaving;
            self.hot[index(id)].key = CLOSED;
        }
    }

    /// Lets no more requests into any live region of a session.
    pub(crate) fn close_all(&mut self, session: SessionSlot) {
        for at in 0..self.table.len() {
            if let Some(region) = &self.table[at]
                && region.session == session
            {
                self.close(region.id);
            }
        }
    }

    /// A region whose last request has left and that no device has still to deregister.
    pub(crate) fn next_leaving(&self) -> Option<RegionId> {
        let idle = |region: &&SessionRegion| {
            matches!(region.state, RegionState::Leaving)
                && self.hot[index(region.id)].in_flight == 0
        };
        self.table.iter().flatten().find(idle).map(|region| region.id)
    }

    /// This many devices have to deregister it; returns where it is in their tables.
    pub(crate) fn deregister(
        &mut self,
        id: RegionId,
        devices_left: usize,
        outcome: DetachOutcome,
    ) -> BufferIndex {
        let in_flight = self.hot[index(id)].in_flight;
        assert!(in_flight == 0, "invariant 2: a region is deregistered with requests in flight");
        let region = self.known(id);
        region.state = RegionState::Deregistering { devices_left, outcome };
        region.buffer
    }

    /// One device has deregistered it.
    pub(crate) fn deregistered(&mut self, buffer: BufferIndex) {
        let region = self.table.iter_mut().flatten().find(|region| region.buffer == buffer);
        let Some(RegionState::Deregistering { devices_left, .. }) =
            region.map(|region| &mut region.state)
        else {
            panic!("invariant 2: a device deregistered a region that it had to keep");
        };
        *devices_left -= 1;
    }

    /// Takes out a region that no device has any more; its memory is dropped.
    pub(crate) fn take_gone(&mut self) -> Option<(SessionSlot, RegionId, DetachOutcome)> {
        let gone = |region: &SessionRegion| {
            matches!(region.state, RegionState::Deregistering { devices_left: 0, .. })
        };
        let mut table = self.table.iter_mut();
        let entry = table.find(|entry| entry.as_ref().is_some_and(gone))?;
        match entry.take()? {
            SessionRegion {
                id,
                session,
                state: RegionState::Deregistering { outcome, .. },
                ..
            } => Some((session, id, outcome)),
            _ => None,
        }
    }

    /// Where a region is in the devices' tables, and its memory.
    pub(crate) fn memory(&self, id: RegionId) -> (BufferIndex, &Memory) {
        let entry = self.table[index(id)].as_ref().filter(|region| region.id == id);
        let region = entry.expect("a request in flight keeps its region");
        (region.buffer, &region.memory)
    }

    /// Whether a region is memory of a GPU.
    #[inline]
    pub(crate) fn is_remote(&self, id: RegionId) -> bool {
        if self.hot.get(index(id)).is_some_and(|hot| hot.bytes > 0) {
            return false;
        }
        let region = self.table.get(index(id)).and_then(Option::as_ref);
        region.is_some_and(|region| matches!(region.memory, Memory::Remote(_)))
    }

    /// Whether a session has any region left, leaving ones included.
    pub(crate) fn any_of(&self, session: SessionSlot) -> bool {
        self.table.iter().flatten().any(|region| region.session == session)
    }

    fn known(&mut self, id: RegionId) -> &mut SessionRegion {
        let entry = self.table[index(id)].as_mut().filter(|region| region.id == id);
        entry.expect("a region that is not gone")
    }
}

impl SessionRegion {
    /// Where in the memory of a live GPU region a range lies. One in host memory that comes here is
    /// not within its region.
    #[cold]
    fn locate_remote(&self, (block, offset, length): (u32, u64, u32)) -> Result<u64, Status> {
        let Memory::Remote(memory) = &self.memory else { return Err(Status::Invalid) };
        memory.line(block, offset, length).ok_or(Status::Invalid)
    }
}
