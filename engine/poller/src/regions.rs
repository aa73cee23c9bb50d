//! The arenas a poller may move bytes to and from: whose they are, and whether they are leaving.

use std::sync::Arc;

use kvrail_device::{BufferIndex, DeviceError, RemoteMemory};
use kvrail_memory::Pinned;
use kvrail_ring::{RegionId, Status};

use crate::device_queue::Side;
use crate::mailbox::{REGIONS_MAX, SessionSlot};

/// What is to be said once the last device has let go.
#[derive(Debug)]
pub(crate) enum Farewell {
    /// It was detached.
    Detached,
    /// It could not be attached everywhere.
    Failed(DeviceError),
}

/// Life of a region: attaching (device by device, an entry in each tick), live, then leaving (no
/// new requests), then letting go (devices), then free.
#[derive(Debug)]
enum Life {
    Attaching,
    Live,
    Leaving,
    LettingGo { devices_left: u8, farewell: Farewell },
}

/// What a region is made of.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// An arena.
    Host(Arc<dyn Pinned>),
    /// A paged cache on a GPU.
    Remote(Arc<dyn RemoteMemory>),
}

/// Where a request's bytes are, once checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    pub(crate) buffer: BufferIndex,
    pub(crate) offset: u64,
    pub(crate) side: Side,
}

impl Memory {
    /// The memory, where the host can read it.
    pub(crate) fn host(&self) -> Option<&dyn Pinned> {
        match self {
            Self::Host(memory) => Some(&**memory),
            Self::Remote(_) => None,
        }
    }
}

/// One region of one session.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) id: RegionId,
    pub(crate) session: SessionSlot,
    pub(crate) buffer: BufferIndex,
    pub(crate) memory: Memory,
    life: Life,
}

/// What each request needs of a region: small, and beside each other.
#[derive(Clone, Copy, Debug)]
struct Gate {
    /// Who may enter: the region's id and session in one word; `CLOSED` where nobody may, and
    /// for memory of a GPU, where more is to be asked.
    key: u64,
    /// Of host memory.
    bytes: u64,
    /// Requests accepted and not completed.
    under_way: u32,
    buffer: BufferIndex,
}

/// No key: sessions have eight bits.
const CLOSED: u64 = u64::MAX;

impl Gate {
    const FREE: Self = Self { key: CLOSED, bytes: 0, under_way: 0, buffer: BufferIndex(0) };

    #[inline(always)]
    fn key(session: SessionSlot, id: RegionId) -> u64 {
        u64::from(session.0) << 32 | u64::from(id.0)
    }
}

/// All regions, by the low half of their id.
#[derive(Debug)]
pub(crate) struct Regions {
    table: Vec<Option<Region>>,
    gates: Vec<Gate>,
}

/// Low half of an id: the place in the table.
fn place(id: RegionId) -> usize {
    (id.0 & 0xffff) as usize
}

impl Regions {
    pub(crate) fn new() -> Self {
        let table = (0..REGIONS_MAX).map(|_| None).collect();
        Self { table, gates: vec![Gate::FREE; REGIONS_MAX] }
    }

    /// Enters a region that devices are about to attach.
    pub(crate) fn insert(
        &mut self,
        id: RegionId,
        session: SessionSlot,
        buffer: BufferIndex,
        memory: Memory,
    ) {
        let entry = &mut self.table[place(id)];
        assert!(entry.is_none(), "the control thread gives out free places only");
        let bytes = memory.host().map_or(0, |memory| memory.bytes() as u64);
        self.gates[place(id)] = Gate { key: CLOSED, bytes, under_way: 0, buffer };
        *entry = Some(Region { id, session, buffer, memory, life: Life::Attaching });
    }

    /// Every device has it: requests may use it.
    pub(crate) fn open(&mut self, id: RegionId) {
        let region = self.known(id);
        region.life = Life::Live;
        let (session, host) = (region.session, region.memory.host().is_some());
        if host {
            self.gates[place(id)].key = Gate::key(session, id);
        }
    }

    /// As `enter`, for a live region of host memory; any other is refused.
    #[inline(always)]
    pub(crate) fn enter_host(
        &mut self,
        session: SessionSlot,
        id: RegionId,
        offset: u64,
        length: u32,
    ) -> Option<BufferIndex> {
        let gate = self.gates.get_mut(place(id))?;
        let end = offset.checked_add(u64::from(length))?;
        if gate.key != Gate::key(session, id) || end > gate.bytes {
            return None;
        }
        gate.under_way += 1;
        Some(gate.buffer)
    }

    /// Counts a request in at the live region it names, if that is the session's own and holds the
    /// range; says where the region stands in the devices' tables.
    pub(crate) fn enter(
        &mut self,
        session: SessionSlot,
        id: RegionId,
        (block, offset): (u32, u64),
        length: u32,
    ) -> Result<Spot, Status> {
        let entry = self.table.get(place(id)).and_then(Option::as_ref);
        let region = entry.ok_or(Status::Invalid)?;
        let known = region.id == id && region.session == session;
        if !(known && matches!(region.life, Life::Live)) {
            return Err(Status::Invalid);
        }
        match &region.memory {
            Memory::Host(_) if block == 0 => {
                let buffer = self.enter_host(session, id, offset, length).ok_or(Status::Invalid)?;
                Ok(Spot { buffer, offset, side: Side::Host })
            }
            Memory::Host(_) => Err(Status::Invalid),
            Memory::Remote(memory) => {
                let offset = memory.line(block, offset, length).ok_or(Status::Invalid)?;
                self.gates[place(id)].under_way += 1;
                Ok(Spot { buffer: region.buffer, offset, side: Side::Remote })
            }
        }
    }

    /// Counts completed requests out; true when the region may now let go.
    #[inline]
    pub(crate) fn leave(&mut self, id: RegionId, count: u32) -> bool {
        let leaving = matches!(self.known(id).life, Life::Leaving);
        let gate = &mut self.gates[place(id)];
        let left = gate.under_way.checked_sub(count);
        gate.under_way = left.expect("invariant 2: more requests left a region than entered");
        gate.under_way == 0 && leaving
    }

    /// Takes no more requests for it; true when none is under way, so that it may let go.
    pub(crate) fn retire(&mut self, id: RegionId) -> bool {
        let region = self.known(id);
        if !matches!(region.life, Life::Live) {
            return false;
        }
        region.life = Life::Leaving;
        let gate = &mut self.gates[place(id)];
        gate.key = CLOSED;
        gate.under_way == 0
    }

    /// The devices were told to forget it.
    pub(crate) fn let_go(&mut self, id: RegionId, devices_left: u8, farewell: Farewell) {
        let gate = &mut self.gates[place(id)];
        assert!(gate.under_way == 0, "invariant 2: a region lets go with requests under way");
        gate.key = CLOSED;
        self.known(id).life = Life::LettingGo { devices_left, farewell };
    }

    /// One device forgot it; gives the region out when it was the last.
    pub(crate) fn device_forgot(&mut self, buffer: BufferIndex) -> Option<(Region, Farewell)> {
        let entry = self
            .table
            .iter_mut()
            .find(|entry| entry.as_ref().is_some_and(|region| region.buffer == buffer))?;
        let Some(Region { life: Life::LettingGo { devices_left, .. }, .. }) = entry else {
            panic!("invariant 2: a device forgot a region that was not letting go");
        };
        *devices_left -= 1;
        if *devices_left > 0 {
            return None;
        }
        entry.take().map(Region::farewell)
    }

    /// Gives a region out that no device holds.
    pub(crate) fn remove(&mut self, id: RegionId) -> Option<(Region, Farewell)> {
        self.table[place(id)].take().map(Region::farewell)
    }

    /// The region of this name, live or leaving.
    #[inline]
    pub(crate) fn get(&self, id: RegionId) -> Option<&Region> {
        self.table.get(place(id))?.as_ref().filter(|region| region.id == id)
    }

    /// The first live region of a session.
    pub(crate) fn live_of(&self, session: SessionSlot) -> Option<RegionId> {
        let live =
            |region: &&Region| region.session == session && matches!(region.life, Life::Live);
        self.table.iter().flatten().find(live).map(|region| region.id)
    }

    /// Whether a session has any region left, leaving ones included.
    pub(crate) fn any_of(&self, session: SessionSlot) -> bool {
        self.table.iter().flatten().any(|region| region.session == session)
    }

    #[inline(always)]
    fn known(&mut self, id: RegionId) -> &mut Region {
        let entry = self.table[place(id)].as_mut().filter(|region| region.id == id);
        entry.expect("a request under way keeps its region")
    }
}

impl Region {
    fn farewell(mut self) -> (Self, Farewell) {
        let farewell = match std::mem::replace(&mut self.life, Life::Leaving) {
            Life::LettingGo { farewell, .. } => farewell,
            Life::Attaching | Life::Live | Life::Leaving => Farewell::Detached,
        };
        (self, farewell)
    }
}
