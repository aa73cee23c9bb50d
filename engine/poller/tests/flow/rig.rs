//! A poller with clients, in one thread and made-up time.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use kvrail_device::{BufferIndex, FakeClock};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_poller::{
    Budget, Command, InFlightBytes, LaneSeat, Mailbox, Notice, Poller, PollerStats, QueueDoorbell,
    RingerThread, Route, SessionSlot, Setup, TenantSlot, TickOutcome, Waking, WokenBy,
};
use kvrail_ring::{
    ClientLane, ClientSleep, Completion, DeviceIndex, Doorbell, Geometry, Opcode, RegionId,
    Request, Segment,
};

use crate::held::{Held, Shelf};

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

/// The poller and both its ends.
pub(crate) struct Rig {
    pub(crate) poller: Poller<Held, FakeClock>,
    pub(crate) clock: FakeClock,
    pub(crate) shelf: Rc<RefCell<Shelf>>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) stats: Arc<PollerStats>,
    pub(crate) ringer: RingerThread,
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
        let clock = FakeClock::default();
        let mailbox = Arc::new(Mailbox::new(Arc::new(Doorbell::eventfd().unwrap())).unwrap());
        let setup = Setup {
            routes: vec![Route { geometry: geometry(), members: vec![DeviceIndex(0)] }],
            devices: vec![DeviceIndex(0)],
            budgets: vec![Budget { operations: depth, bytes }],
            stores: Vec::new(),
            spin_ns: 0,
            beat_ns: 200_000_000,
        };
        let devices = vec![Held::new(depth, &shelf)];
        let stats = Arc::new(PollerStats::new(1));
        let mail = Arc::clone(&mailbox);
        let poller = Poller::new(setup, devices, clock.clone(), mail, Arc::clone(&stats)).unwrap();
        Self { poller, clock, shelf, mailbox, stats, ringer: RingerThread::start().unwrap() }
    }

    /// Ticks until nothing moves; time passes by 1 us a tick.
    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.clock.advance(1_000);
            if self.poller.tick() != TickOutcome::Busy {
                return;
            }
        }
        panic!("the poller never came to rest");
    }

    /// Sends a command and lets it be carried out.
    pub(crate) fn tell(&mut self, command: Command) {
        self.mailbox.send(command).unwrap();
        self.settle();
    }

    /// Everything the poller said since the last call.
    pub(crate) fn notices(&self) -> Vec<Notice> {
        std::iter::from_fn(|| self.mailbox.receive()).collect()
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
        let bytes = Segment::bytes_needed(1, depth).unwrap();
        let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(bytes));
        let segment = Segment::format(Arc::clone(&memory), 1, depth).unwrap();
        let lane = segment.into_server().remove(0);
        let shared = Arc::clone(&memory);
        let (mut client_lanes, sleep) = Segment::open(shared).unwrap().into_client();
        let bell = QueueDoorbell::new(bell, &Waking::new(self.ringer.ringer(), WokenBy::Poller));
        let doorbell = Doorbell::eventfd().unwrap();
        let its_end = Doorbell::from_fd(doorbell.as_fd().try_clone_to_owned().unwrap());
        let seat = Box::new(LaneSeat { queue: 7, lane, bell, doorbell, tails: None, tenant });
        self.tell(Command::AddLane(session, seat));
        let region = RegionId(u32::from(session.0));
        let memory_of_it: Arc<dyn Pinned> = Arc::new(HeapBlock::new(ARENA_BYTES));
        let buffer = BufferIndex(u16::from(session.0));
        self.tell(Command::Attach { session, region, buffer, memory: memory_of_it });
        let notices = self.notices();
        assert!(matches!(notices[..], [Notice::LaneAdded(..), Notice::Attached(.., Ok(()))]));
        Client {
            session,
            lane: client_lanes.remove(0),
            sleep,
            region,
            memory,
            hears,
            doorbell: its_end,
        }
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
        let count = u32::try_from(requests.len()).unwrap();
        assert!(self.lane.free(count).unwrap() >= count, "the test fits its lane");
        for request in requests {
            self.lane.stage(*request);
        }
        let _nobody_sleeps = self.lane.publish();
    }

    /// Everything completed since the last call.
    pub(crate) fn collect(&mut self) -> Vec<Completion> {
        let mut all = Vec::new();
        while let Some(completion) = self.lane.take().unwrap() {
            all.push(completion.fields());
        }
        self.lane.release();
        all
    }
}
