//! The arenas a poller may move bytes to and from: whose they are, and whether they are leaving.

use std::sync::Arc;

use kvrail_device::{BufferIndex, DeviceError, RemoteMemory};
use kvrail_memory::Pinned;
use kvrail_ring::{RegionId, Status};

use crate::mailbox::{REGIONS_MAX, SessionSlot};
use crate::unit::Side;

/// What is to be said once the last device has let go.
#[derive(Debug)]
pub(crate) enum Farewell {
    /// It was detached.
    Detached,
    /// It could not be attached everywhere.
    Failed(DeviceError),
}

/// Life of a region: live, then leaving (no new requests), then letting go (devices), then free.
#[derive(Debug)]
enum Life {
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
    /// Of host memory; 0 for a GPU's, whose layout knows.
    bytes: u64,
    /// Requests accepted and not completed.
    under_way: u32,
    life: Life,
}

/// All regions, by the low half of their id.
#[derive(Debug)]
pub(crate) struct Regions {
    table: Vec<Option<Region>>,
}

/// Low half of an id: the place in the table.
fn place(id: RegionId) -> usize {
    (id.0 & 0xffff) as usize
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self { table: (0..REGIONS_MAX).map(|_| None).collect() }
    }

    /// Enters a live region.
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
        let (under_way, life) = (0, Life::Live);
        *entry = Some(Region { id, session, buffer, memory, bytes, under_way, life });
    }

    /// Counts a request in at the live region it names, if that is the session's own and holds the
    /// range; says where the region stands in the devices' tables.
    #[inline(always)]
    pub(crate) fn enter(
        &mut self,
        session: SessionSlot,
        id: RegionId,
        (block, offset): (u32, u64),
        length: u32,
    ) -> Result<Spot, Status> {
        let entry = self.table.get_mut(place(id)).and_then(Option::as_mut);
        let region = entry.ok_or(Status::Invalid)?;
        let known = region.id == id && region.session == session;
        if !(known && matches!(region.life, Life::Live)) {
            return Err(Status::Invalid);
        }
        let (offset, side) = match &region.memory {
            Memory::Host(_) => {
                let bytes = u64::from(length);
                let inside = bytes <= region.bytes && offset <= region.bytes - bytes;
                (Some(offset).filter(|_| inside && block == 0), Side::Host)
            }
            Memory::Remote(memory) => (memory.line(block, offset, length), Side::Remote),
        };
        let offset = offset.ok_or(Status::Invalid)?;
        region.under_way += 1;
        Ok(Spot { buffer: region.buffer, offset, side })
    }

    /// Counts completed requests out; true when the region may now let go.
    #[inline]
    pub(crate) fn leave(&mut self, id: RegionId, count: u32) -> bool {
        let region = self.known(id);
        let left = region.under_way.checked_sub(count);
        region.under_way = left.expect("invariant 2: more requests left a region than entered");
        region.under_way == 0 && matches!(region.life, Life::Leaving)
    }

    /// Takes no more requests for it; true when none is under way, so that it may let go.
    pub(crate) fn retire(&mut self, id: RegionId) -> bool {
        let region = self.known(id);
        if !matches!(region.life, Life::Live) {
            return false;
        }
        region.life = Life::Leaving;
        region.under_way == 0
    }

    /// The devices were told to forget it.
    pub(crate) fn let_go(&mut self, id: RegionId, devices_left: u8, farewell: Farewell) {
        let region = self.known(id);
        assert!(region.under_way == 0, "invariant 2: a region lets go with requests under way");
        region.life = Life::LettingGo { devices_left, farewell };
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
            Life::Live | Life::Leaving => Farewell::Detached,
        };
        (self, farewell)
    }
}
