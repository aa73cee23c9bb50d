//! A poller with clients, in one thread and made-up time.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use kvrail_device::{BufferIndex, FakeClock};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_poller::{
    InFlightBytes, Notice, PollerCommand, QueueDoorbell, RingerThread, SessionSlot, TenantSlot,
    Waking, WokenBy,
};
use kvrail_ring::{
    ClientLane, ClientSleep, Completion, Doorbell, Geometry, Opcode, RegionId, Request,
};

use super::held::{Held, Shelf};
use crate::rig::{self, LaneEnd, one_device};

/// Bytes of each client's arena.
pub(crate) const ARENA_BYTES: usize = 16 << 20;

/// One volume of 1 GiB in stripes of 1 MiB.
pub(crate) fn geometry() -> Geometry {
    Geometry {
        members: 1,
        stripe_bytes: 1 << 20,
        member_bytes: 1 << 30,
        data_offset: 1 << 20,
        logical_block: 512,
        memory_alignment: 4,
    }
}

/// A poller over a device that does as the test says.
pub(crate) type Rig = rig::Rig<Held, Own>;

/// What a test holds of it.
pub(crate) struct Own {
    pub(crate) shelf: Rc<RefCell<Shelf>>,
    ringer: RingerThread,
}

/// One client's lane and arena.
pub(crate) struct Client {
    pub(crate) session: SessionSlot,
    pub(crate) lane: ClientLane,
    pub(crate) region: RegionId,
    /// The segment of the lane; its first lane starts at 4096, the lane's slots 384 behind.
    pub(crate) memory: Arc<dyn Pinned>,
    /// The word it sleeps on, and what it hears then.
    pub(crate) sleep: ClientSleep,
    pub(crate) hears: OwnedFd,
    /// Its end of the doorbell.
    pub(crate) doorbell: Doorbell,
}

impl Rig {
    pub(crate) fn new(depth: u32) -> Self {
        Self::with_budget(depth, 1 << 30)
    }

    /// A device of this depth that may hold so many bytes.
    pub(crate) fn with_budget(depth: u32, bytes: u64) -> Self {
        Self::with_bytes(depth, InFlightBytes::Fixed(bytes))
    }

    /// A device of this depth with such a limit of bytes.
    pub(crate) fn with_bytes(depth: u32, bytes: InFlightBytes) -> Self {
        let shelf = Rc::new(RefCell::new(Shelf::default()));
        let devices = vec![Held::new(depth, &shelf)];
        let own = Own { shelf, ringer: RingerThread::start().unwrap() };
        Self::over(one_device(geometry(), depth, bytes), devices, FakeClock::default(), own)
    }

    /// A client with one lane and one arena.
    pub(crate) fn client(&mut self, session: u8, depth: u32) -> Client {
        self.client_with(session, depth, Doorbell::heard().unwrap())
    }

    /// The same in a session of this tenant.
    pub(crate) fn client_of(&mut self, tenant: u8, session: u8, depth: u32) -> Client {
        self.seat((session, tenant), depth, Doorbell::heard().unwrap())
    }

    /// The same with a bell of this kind.
    pub(crate) fn client_with(
        &mut self,
        session: u8,
        depth: u32,
        bell: (Doorbell, OwnedFd),
    ) -> Client {
        self.seat((session, session), depth, bell)
    }

    fn seat(
        &mut self,
        (session, tenant): (u8, u8),
        depth: u32,
        (bell, hears): (Doorbell, OwnedFd),
    ) -> Client {
        let (session, tenant) = (SessionSlot(session), TenantSlot(tenant));
        let waking = Waking::new(self.own.ringer.ringer(), WokenBy::Poller);
        let bell = QueueDoorbell::new(bell, &waking);
        let (end, seat) = LaneEnd::make((7, depth), bell, None, tenant);
        self.carry_out(PollerCommand::AddLane(session, seat));
        let region = RegionId(u32::from(session.0));
        let memory_of_it: Arc<dyn Pinned> = Arc::new(HeapBlock::new(ARENA_BYTES));
        let buffer = BufferIndex(u16::from(session.0));
        self.carry_out(PollerCommand::Attach { session, region, buffer, memory: memory_of_it });
        let notices = self.notices();
        assert!(matches!(notices[..], [Notice::LaneAdded(..), Notice::Attached(.., Ok(()))]));
        let LaneEnd { lane, memory, sleep, doorbell } = end;
        Client { session, lane, sleep, region, memory, hears, doorbell }
    }
}

impl Client {
    /// Where its region stands in the devices' tables.
    pub(crate) fn buffer(&self) -> BufferIndex {
        BufferIndex(u16::from(self.session.0))
    }

    /// A read of `length` bytes named by `user_data`.
    pub(crate) fn read(&self, user_data: u64, length: u32) -> Request {
        Request {
            user_data,
            opcode: Opcode::Read as u8,
            region: self.region.0,
            length,
            ..Request::default()
        }
    }

    /// Publishes requests as one batch.
    pub(crate) fn post(&mut self, requests: &[Request]) {
        rig::post(&mut self.lane, requests);
    }

    /// Everything completed since the last call.
    pub(crate) fn collect(&mut self) -> Vec<Completion> {
        rig::collect(&mut self.lane)
    }
}
