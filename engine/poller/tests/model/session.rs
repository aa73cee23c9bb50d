//! One client as the test sees it: its ends of lanes and regions, and what it waits for.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_device::BufferIndex;
use kvrail_memory::{HeapBlock, Pinned, load, store};
use kvrail_poller::{LaneSeat, QueueDoorbell, SessionSlot, TenantSlot};
use kvrail_ring::{ClientLane, Doorbell, RegionId, Request};

use super::watch::Asked;
use crate::rig;

/// What stands in a buffer that no request owns.
const SENTINEL: u8 = 0xa5;

/// Bytes looked at behind a request's own.
const GUARD_BYTES: usize = 512;

/// Life of a lane or region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// Asked for.
    Coming,
    Live,
    /// Told to leave; nothing accepted from this tick on may use it.
    Leaving(u32),
    Gone,
}

/// The client's end of one lane.
#[derive(Debug)]
pub(crate) struct LaneEnd {
    pub(crate) queue: u32,
    pub(crate) lane: ClientLane,
    pub(crate) memory: Arc<dyn Pinned>,
    pub(crate) depth: u32,
    pub(crate) life: Life,
    /// Posted and not yet taken by the poller, in order.
    pub(crate) posted: VecDeque<u64>,
    /// Taken and not yet seen completed.
    pub(crate) outstanding: u32,
    /// Completions and notices seen in this tick.
    pub(crate) collected: u32,
    _hears: OwnedFd,
}

impl LaneEnd {
    /// A new lane: the client's end and the seat for the poller.
    pub(crate) fn make(queue: u32, depth: u32) -> (Self, Box<LaneSeat>) {
        let (bell, hears) = Doorbell::heard().unwrap();
        let bell = QueueDoorbell::trusted(bell);
        let (end, seat) = rig::LaneEnd::make((queue, depth), bell, None, TenantSlot(0));
        let rig::LaneEnd { lane, memory, .. } = end;
        let (posted, life) = (VecDeque::new(), Life::Coming);
        let (outstanding, collected) = (0, 0);
        let _hears = hears;
        let end = Self { queue, lane, memory, depth, life, posted, outstanding, collected, _hears };
        (end, seat)
    }

    /// Takes what the poller took since the last call off `posted`.
    pub(crate) fn taken(&mut self) -> Vec<u64> {
        let free = self.lane.free(self.depth).expect("the poller's indices are sound");
        let waiting = (self.depth - free) as usize;
        let taken = self.posted.len() - waiting;
        self.posted.drain(..taken).collect()
    }
}

/// The client's end of one region, cut into buffers of one request each.
#[derive(Debug)]
pub(crate) struct RegionEnd {
    pub(crate) id: RegionId,
    pub(crate) buffer: BufferIndex,
    pub(crate) memory: Arc<dyn Pinned>,
    pub(crate) life: Life,
    pub(crate) buffer_bytes: u32,
    /// Which buffers belong to requests.
    pub(crate) busy: Vec<bool>,
}

impl RegionEnd {
    pub(crate) fn make(id: RegionId, buffers: u32, buffer_bytes: u32) -> Self {
        let bytes = (buffers * buffer_bytes) as usize;
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(bytes));
        store(&*memory, 0, &vec![SENTINEL; bytes]);
        let buffer = BufferIndex(u16::try_from(id.0 & 0xffff).expect("masked"));
        let busy = vec![false; buffers as usize];
        Self { id, buffer, memory, life: Life::Coming, buffer_bytes, busy }
    }

    fn at(&self, buffer: usize) -> usize {
        buffer * self.buffer_bytes as usize
    }

    /// What stands in the first bytes of a buffer.
    pub(crate) fn bytes(&self, buffer: usize, length: u32) -> Vec<u8> {
        let mut bytes = vec![0; length as usize];
        load(&*self.memory, self.at(buffer), &mut bytes);
        bytes
    }

    /// Takes a free buffer for a request.
    ///
    /// # Panics
    /// If somebody wrote there since its last request was completed (invariant 2).
    pub(crate) fn take(&mut self, buffer: usize, length: u32) {
        self.check_untouched(buffer, 0, length as usize);
        self.busy[buffer] = true;
    }

    pub(crate) fn write(&self, buffer: usize, bytes: &[u8]) {
        store(&*self.memory, self.at(buffer), bytes);
    }

    /// Gives the buffer of a completed request back.
    ///
    /// # Panics
    /// If anything was written behind its end.
    pub(crate) fn give(&mut self, buffer: usize, length: u32) {
        let length = length as usize;
        let behind = (self.buffer_bytes as usize - length).min(GUARD_BYTES);
        self.check_untouched(buffer, length, behind);
        store(&*self.memory, self.at(buffer), &vec![SENTINEL; length]);
        self.busy[buffer] = false;
    }

    fn check_untouched(&self, buffer: usize, from: usize, length: usize) {
        let mut bytes = vec![0; length];
        load(&*self.memory, self.at(buffer) + from, &mut bytes);
        let id = self.id;
        assert!(
            bytes == vec![SENTINEL; length],
            "invariant 2: buffer {buffer} of region {id} was written by nobody's request"
        );
    }

    /// Looks at every buffer that no request owns.
    pub(crate) fn check_all(&self) {
        let free = (0..self.busy.len()).filter(|buffer| !self.busy[*buffer]);
        free.for_each(|buffer| self.check_untouched(buffer, 0, self.buffer_bytes as usize));
    }
}

/// What must become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    /// It is sound; faults of devices aside it succeeds.
    Sound,
    /// It breaks a rule of the slot.
    Malformed,
}

/// When the poller took a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) tick: u32,
    pub(crate) now_ns: u64,
}

/// Whether a LATE notice may still come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    No,
    /// It came.
    Told,
    /// There was no room for it.
    Excused,
}

/// A request without its completion.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) queue: u32,
    pub(crate) expect: Expect,
    /// What a device must be asked for it.
    pub(crate) asked: Option<Asked>,
    /// Region and buffer it owns.
    pub(crate) buffer: Option<(RegionId, usize)>,
    /// What it writes.
    pub(crate) version: u64,
    pub(crate) began: u64,
    pub(crate) taken: Option<Taken>,
    pub(crate) late: Late,
}

impl Pending {
    /// Offset and length in its volume.
    pub(crate) fn range(&self) -> (u64, u32) {
        (self.request.volume_offset, self.request.length)
    }
}

/// One client.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) slot: SessionSlot,
    pub(crate) lanes: Vec<LaneEnd>,
    pub(crate) regions: Vec<RegionEnd>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    /// The tick that handled its end.
    pub(crate) closed: Option<u32>,
}

impl Session {
    pub(crate) fn new(slot: u8) -> Self {
        let (lanes, regions, pending) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { slot: SessionSlot(slot), lanes, regions, pending, closed: None }
    }

    pub(crate) fn region(&mut self, id: RegionId) -> &mut RegionEnd {
        let mut regions = self.regions.iter_mut();
        regions.find(|region| region.id == id).expect("a region of this session")
    }

    /// Lanes that are not gone.
    pub(crate) fn open_lanes(&self) -> usize {
        self.lanes.iter().filter(|lane| lane.life != Life::Gone).count()
    }

    /// Regions that are not gone.
    pub(crate) fn open_regions(&self) -> usize {
        self.regions.iter().filter(|region| region.life != Life::Gone).count()
    }

    /// When the oldest request in flight began; `now` when there is none.
    pub(crate) fn oldest(&self, now: u64) -> u64 {
        self.pending.values().map(|pending| pending.began).min().unwrap_or(now)
    }
}
