//! A poller with a store on a simulated device, and clients of it, in one thread and made-up time.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use crc_fast::{CrcAlgorithm, checksum};
use kvrail_device::{
    Attached, AttachedBytes, BufferIndex, Description, Device, DeviceResult, Events, FakeClock,
    Operation, Replacement, SimDevice, SimOptions, Wait,
};
use kvrail_memory::{HeapBlock, Pinned, Region, WordView, load, store};
use kvrail_poller::{
    CopyQueues, InFlightBytes, LateSetup, Notice, Permit, PollerCommand, QueueDoorbell,
    RingerThread, STORE_OWNERS, SessionSlot, Setup, StoreAsk, StoreCall, StoreSetup, TenantSlot,
    TickOutcome, TierSetup, Waking, WokenBy,
};
use kvrail_ring::{
    ClientLane, Completion, Doorbell, Geometry, HoldTables, KeyedRequest, Opcode, Presence,
    PresenceReader, PresenceWriter, RegionId, Request, Side, Status, ThreadWaker, TierWriter,
    keys_slot,
};
use kvrail_store::{
    Discard, Expect, Key, Members, SpaceId, Start, Status as Ending, Store, StoreConfig,
    StoreIdentity, Times, check,
};

use crate::rig::{self, LaneEnd, one_device};

/// Bytes of each client's arena.
pub(crate) const ARENA_BYTES: usize = 104 << 20;
/// Pages of its tail arena.
const TAILS: usize = 16;
/// The handle that the first namespace has in every session.
pub(crate) const HANDLE: u16 = 3;
const MIB: u64 = 1 << 20;
const DATA_OFFSET: u64 = MIB;
const VOLUME: u128 = 77;

/// A device that outlives its poller, on a machine that may stand still whenever it is asked what
/// has ended.
#[derive(Debug)]
pub(crate) struct Kept {
    sim: Rc<RefCell<SimDevice<FakeClock>>>,
    description: Description,
    clock: FakeClock,
    stands_still_ns: Rc<Cell<u64>>,
}

impl Device for Kept {
    fn description(&self) -> &Description {
        &self.description
    }

    fn begin_attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        self.sim.borrow_mut().begin_attach(at, region)
    }

    fn attached(&self) -> AttachedBytes {
        self.sim.borrow().attached()
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        self.sim.borrow_mut().detach(at)
    }

    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        self.sim.borrow_mut().prepare(operation)
    }

    fn submit(&mut self) {
        self.sim.borrow_mut().submit();
    }

    fn reap(&mut self, events: &mut Events) {
        self.clock.advance(self.stands_still_ns.get());
        self.sim.borrow_mut().reap(events);
    }

    fn in_flight(&self) -> u32 {
        self.sim.borrow().in_flight()
    }

    fn wait(&self) -> Wait<'_> {
        Wait::Poll
    }

    fn replace(&mut self, _: &mut Replacement) -> DeviceResult<()> {
        Ok(())
    }
}

/// A poller with a store.
pub(crate) type Rig = rig::Rig<Kept, Own>;

/// What a test holds of its device and its store.
pub(crate) struct Own {
    pub(crate) sim: Rc<RefCell<SimDevice<FakeClock>>>,
    /// How long the machine stands still within each tick.
    pub(crate) stands_still_ns: Rc<Cell<u64>>,
    pub(crate) config: StoreConfig,
    pub(crate) notices: Vec<Notice>,
    ringer: RingerThread,
    calls: u64,
    /// Places in the device's table that were given out.
    buffers: u16,
    /// Operations that the device may hold at once.
    operations: u32,
    /// Bytes of a memory tier from which puts are acknowledged, and its copier's queues.
    late: Option<(usize, Arc<CopyQueues>)>,
    /// The presence table, where puts are acknowledged from memory.
    presence: Option<Arc<Region>>,
    /// Whether the copier copies nothing for now.
    pub(crate) is_copier_slow: bool,
}

/// One client: a lane, an arena and a tail arena.
pub(crate) struct Client {
    pub(crate) session: SessionSlot,
    pub(crate) lane: ClientLane,
    pub(crate) region: RegionId,
    pub(crate) arena: Arc<dyn Pinned>,
    pub(crate) tails: Arc<dyn Pinned>,
    pub(crate) next: u64,
}

/// A store of 512 MiB with segments of 32 MiB.
pub(crate) fn config(logical_block: u32, area_bytes: u64, segment_bytes: u64) -> StoreConfig {
    StoreConfig {
        area_bytes,
        logical_block,
        segment_bytes,
        block_mean: 64 << 10,
        spaces: 4,
        puts: 32,
        writes: 64,
        holds: 64,
        owners: STORE_OWNERS,
        owner_holds: 16,
        buffers: 4,
        buffer_bytes: 256 << 10,
        images: 8,
        times: Times::default(),
        discard: Discard::Segments,
        budget: kvrail_store::Budget::Unlimited,
    }
}

/// A memory tier from which all puts are acknowledged.
fn tier(bytes: usize, buffer: BufferIndex) -> TierSetup {
    let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(bytes));
    let to_poller = Arc::new(ThreadWaker::new().unwrap());
    let queues = CopyQueues::new(Arc::clone(&memory), to_poller).unwrap();
    TierSetup {
        memory,
        directory_bytes: TierWriter::bytes_for(bytes as u64 / (64 << 10)),
        buffer,
        number: 0,
        holds: Arc::new(HoldTables::new(0)),
        late: Some(LateSetup { namespaces: vec!["*".to_owned()].into(), queues }),
    }
}

/// The start of a store that is to be made.
pub(crate) fn create() -> Start {
    Start::Create(StoreIdentity {
        volume: VOLUME,
        instance: 0x0123_4567,
        seed: 99,
        member: 0,
        members: Members::first(1),
        generation: 1,
    })
}

/// The start of the one that is there.
pub(crate) fn open() -> Start {
    Start::Open(Expect {
        volume: VOLUME,
        member: 0,
        generation: 1,
        next_generation: 1,
        members: Members::first(1),
    })
}

impl Rig {
    /// A new store on a device of such blocks.
    pub(crate) fn new(logical_block: u32) -> Self {
        Self::with(config(logical_block, 120 * MIB, 8 * MIB), SimOptions::default())
    }

    /// A new store of these sizes.
    pub(crate) fn with(config: StoreConfig, options: SimOptions) -> Self {
        Self::tight(config, options, 64)
    }

    /// The same, on a device that may hold so many operations at once.
    pub(crate) fn tight(config: StoreConfig, options: SimOptions, operations: u32) -> Self {
        Self::made(config, options, (operations, None))
    }

    /// A new store whose puts are acknowledged from a memory tier of so many bytes.
    pub(crate) fn late(config: StoreConfig, options: SimOptions, tier_bytes: usize) -> Self {
        Self::made(config, options, (64, Some(tier_bytes)))
    }

    fn made(
        config: StoreConfig,
        options: SimOptions,
        (operations, tier_bytes): (u32, Option<usize>),
    ) -> Self {
        let clock = FakeClock::default();
        let options = SimOptions {
            capacity_bytes: DATA_OFFSET + config.area_bytes,
            logical_block: config.logical_block,
            ..options
        };
        let sim = Rc::new(RefCell::new(SimDevice::new(options, clock.clone())));
        let mut rig = Self::on(sim, clock, (config, create()), (0, operations, tier_bytes));
        rig.until(|rig| rig.phase() == 3);
        let made = rig.make_space("first", 1_000);
        assert_eq!(made, Ending::Ok);
        rig
    }

    /// A poller over a device that exists.
    fn on(
        sim: Rc<RefCell<SimDevice<FakeClock>>>,
        clock: FakeClock,
        (config, start): (StoreConfig, Start),
        (buffers, operations, tier_bytes): (u16, u32, Option<usize>),
    ) -> Self {
        let geometry = Geometry {
            members: 1,
            stripe_bytes: MIB,
            member_bytes: config.area_bytes,
            data_offset: DATA_OFFSET,
            logical_block: config.logical_block,
            memory_alignment: 4,
        };
        let pool: Arc<dyn Pinned> = Arc::new(HeapBlock::new(StoreSetup::pool_bytes(&config)));
        let tier = tier_bytes.map(|bytes| tier(bytes, BufferIndex(buffers + 1)));
        let late = tier.as_ref().and_then(|tier| tier.late.as_ref());
        let late = tier_bytes.zip(late.map(|late| Arc::clone(&late.queues)));
        let presence = tier_bytes.map(|_| {
            let bytes = PresenceWriter::bytes_for(20_000);
            let table = Region::create_open("presence", bytes).unwrap();
            table.close().unwrap();
            Arc::new(table)
        });
        let store = StoreSetup {
            config,
            pools: Vec::new(),
            start,
            pool,
            buffer: BufferIndex(buffers),
            tier,
            presence: presence.clone().map(|table| table as Arc<dyn Pinned>),
        };
        let one = one_device(geometry, operations, InFlightBytes::Fixed(1 << 30));
        let setup = Setup { stores: vec![(0, store)], ..one };
        let description = sim.borrow().description().clone();
        let stands_still_ns = Rc::new(Cell::new(0));
        let kept = Kept {
            sim: Rc::clone(&sim),
            description,
            clock: clock.clone(),
            stands_still_ns: Rc::clone(&stands_still_ns),
        };
        let own = Own {
            sim,
            stands_still_ns,
            config,
            notices: Vec::new(),
            ringer: RingerThread::start().unwrap(),
            calls: 0,
            buffers: buffers + 2,
            operations,
            late,
            presence,
            is_copier_slow: false,
        };
        Self::over(setup, vec![kept], clock, own)
    }

    /// The sidecar dies, and another one opens what is there. Clients are new ones.
    pub(crate) fn restart(self) -> Self {
        self.reopened(3)
    }

    /// As `restart`, of a store that still reads what it has.
    pub(crate) fn restart_warming(self) -> Self {
        self.reopened(2)
    }

    /// As `restart`, of a store that does not start.
    pub(crate) fn restart_failed(self) -> Self {
        self.reopened(4)
    }

    fn reopened(self, phase: u64) -> Self {
        let Self { poller, clock, own, .. } = self;
        let Own { sim, config, buffers, operations, late, .. } = own;
        drop(poller);
        let tier_bytes = late.map(|(bytes, _)| bytes);
        let mut rig = Self::on(sim, clock, (config, open()), (buffers, operations, tier_bytes));
        rig.until(|rig| rig.phase() == phase);
        rig
    }

    /// The device is put back.
    pub(crate) fn replace(&mut self) {
        let with = Box::new(Replacement::new(()));
        self.mailbox.send(PollerCommand::Replace(0, with)).unwrap();
        self.until(|rig| {
            let at = rig.own.notices.iter().position(|it| matches!(it, Notice::Replaced(..)));
            at.map(|at| rig.own.notices.remove(at)).is_some()
        });
    }

    /// The device goes, is put back, and its store begins anew.
    pub(crate) fn begin_anew(&mut self) {
        self.replace();
        let mut call = StoreCall::new(0, StoreAsk::Restart(open()));
        call.store = Some(Box::new(Store::new(&self.own.config).unwrap()));
        assert_eq!(self.call_with(call).status, Ending::Ok);
        self.pass(20_000_000); // its phase is shown
        self.until(|rig| rig.phase() == 3);
    }

    pub(crate) fn phase(&self) -> u64 {
        self.stats.devices[0].store.phase.get()
    }

    /// One tick, after 20 us.
    pub(crate) fn tick(&mut self) -> TickOutcome {
        if let Some((_, queues)) = self.own.late.as_ref().filter(|_| !self.own.is_copier_slow) {
            queues.work();
        }
        let outcome = self.tick_after(20_000);
        let fresh = self.notices();
        self.own.notices.extend(fresh);
        outcome
    }

    /// Ticks until it is so.
    pub(crate) fn until(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..500_000 {
            self.tick();
            if done(self) {
                return;
            }
        }
        panic!("it never came to that; the store is in phase {}", self.phase());
    }

    /// Lets so much time pass.
    pub(crate) fn pass(&mut self, ns: u64) {
        for _ in 0..ns / 20_000 {
            self.tick();
        }
    }

    /// Sends a call and waits for its end.
    pub(crate) fn call(&mut self, ask: StoreAsk) -> Box<StoreCall> {
        self.call_with(StoreCall::with_room(0, ask, 4))
    }

    pub(crate) fn call_with(&mut self, mut call: Box<StoreCall>) -> Box<StoreCall> {
        self.own.calls += 1;
        call.number = self.own.calls;
        self.mailbox.send(PollerCommand::Store(0, call)).unwrap();
        let mut found = None;
        self.until(|rig| {
            let at = rig.own.notices.iter().position(|it| matches!(it, Notice::Store(0, _)));
            found = at.map(|at| rig.own.notices.remove(at));
            found.is_some()
        });
        let Some(Notice::Store(_, call)) = found else { unreachable!("just found") };
        assert_eq!(call.number, self.own.calls);
        call
    }

    pub(crate) fn make_space(&mut self, name: &str, uid: u64) -> Ending {
        let (name, document) = (name.to_owned(), b"{}".to_vec());
        self.call(StoreAsk::Create { name, document, uid }).status
    }

    /// A namespace's id and uid.
    pub(crate) fn space(&mut self, name: &str) -> (SpaceId, u64) {
        let survey = self.call(StoreAsk::Survey);
        let space = survey.spaces.iter().find(|space| space.name == name);
        space.map(|space| (space.id, space.uid)).unwrap()
    }

    pub(crate) fn grant(&mut self, session: SessionSlot, handle: u16, space: SpaceId) -> Ending {
        let permit = Permit::Write;
        self.call(StoreAsk::Grant { session, handle, space, permit }).status
    }

    /// As `grant`, for one who may only read.
    pub(crate) fn grant_reading(
        &mut self,
        session: SessionSlot,
        handle: u16,
        space: SpaceId,
    ) -> Ending {
        let permit = Permit::Read;
        self.call(StoreAsk::Grant { session, handle, space, permit }).status
    }

    /// A client with the first namespace open.
    pub(crate) fn client(&mut self, session: u8) -> Client {
        self.client_of(session, TenantSlot(session))
    }

    /// The same, of a user who may have other sessions.
    pub(crate) fn client_of(&mut self, session: u8, user: TenantSlot) -> Client {
        let client = self.stranger_of((session, user), 32);
        let (space, _) = self.space("first");
        assert_eq!(self.grant(client.session, HANDLE, space), Ending::Ok);
        client
    }

    /// A client that has nothing open.
    pub(crate) fn stranger(&mut self, session: u8, depth: u32) -> Client {
        self.stranger_of((session, TenantSlot(session)), depth)
    }

    fn stranger_of(&mut self, (session, tenant): (u8, TenantSlot), depth: u32) -> Client {
        let session = SessionSlot(session);
        let (bell, _hears) = Doorbell::heard().unwrap();
        let waking = Waking::new(self.own.ringer.ringer(), WokenBy::Poller);
        let bell = QueueDoorbell::new(bell, &waking);
        let (region, tails_region) =
            (RegionId(u32::from(session.0)), RegionId(100 + u32::from(session.0)));
        let arena = self.attach(session, region, ARENA_BYTES);
        let tails = self.attach(session, tails_region, TAILS * 4096);
        let (end, seat) = LaneEnd::make((7, depth), bell, Some(tails_region), tenant);
        self.mailbox.send(PollerCommand::AddLane(session, seat)).unwrap();
        self.tick();
        Client { session, lane: end.lane, region, arena, tails, next: 1 }
    }

    fn attach(&mut self, session: SessionSlot, region: RegionId, bytes: usize) -> Arc<dyn Pinned> {
        let arena: Arc<dyn Pinned> = Arc::new(HeapBlock::new(bytes));
        let (buffer, memory) = (BufferIndex(self.own.buffers), Arc::clone(&arena));
        self.own.buffers += 2; // entries of 64 MiB each
        self.mailbox.send(PollerCommand::Attach { session, region, buffer, memory }).unwrap();
        self.until(|rig| {
            let there = |it: &Notice| matches!(it, Notice::Attached(.., Ok(())));
            let attached = rig.own.notices.iter().position(there);
            attached.map(|at| rig.own.notices.remove(at)).is_some()
        });
        arena
    }

    /// Posts requests and ticks until all have ended; completions in the order of the requests.
    pub(crate) fn ask(&mut self, client: &mut Client, requests: &[Asked<'_>]) -> Vec<Completion> {
        let first = client.next;
        for asked in requests {
            client.post(asked);
        }
        let mut done = Vec::new();
        self.until(|_| {
            done.extend(client.collect());
            done.len() >= requests.len()
        });
        done.sort_by_key(|it| it.user_data);
        let names: Vec<u64> = done.iter().map(|it| it.user_data).collect();
        assert_eq!(names, (first..client.next).collect::<Vec<_>>(), "each exactly once");
        done
    }

    pub(crate) fn ask_one(&mut self, client: &mut Client, request: Request) -> Completion {
        self.ask(client, &[Asked { request, side: None }])[0]
    }

    /// Puts a block of these bytes, which lie at `at` in the arena.
    pub(crate) fn put(&mut self, client: &mut Client, key: Key, bytes: &[u8]) -> Completion {
        let request = self.put_request(client, key, bytes, (0, 0));
        self.ask_one(client, request)
    }

    /// Writes a block's bytes into the client's memory; returns its put.
    pub(crate) fn put_request(
        &self,
        client: &Client,
        key: Key,
        bytes: &[u8],
        (at, tail): (u64, u32),
    ) -> Request {
        let block = self.own.config.logical_block as usize;
        let body = bytes.len() - bytes.len() % block;
        store(&*client.arena, usize::try_from(at).unwrap(), &bytes[..body]);
        store(&*client.tails, tail as usize * 4096, &bytes[body..]);
        let length = u32::try_from(bytes.len()).unwrap();
        let sum = check(crc(bytes), 1_000, key, length);
        keyed(client, key, (length, sum), (at, tail)).slot(Opcode::Put)
    }

    /// Gets a block into the arena; returns the completion and the bytes, body and tail together.
    pub(crate) fn get(
        &mut self,
        client: &mut Client,
        key: Key,
        capacity: u32,
    ) -> (Completion, Vec<u8>) {
        let request = keyed(client, key, (capacity, 0), (0, 0)).slot(Opcode::Get);
        let done = self.ask_one(client, request);
        let bytes = match done.status() {
            Status::Ok => self.bytes(client, (0, 0), done.bytes),
            _ => Vec::new(),
        };
        (done, bytes)
    }

    /// The bytes of a block that was got to this place.
    pub(crate) fn bytes(&self, client: &Client, (at, tail): (u64, u32), length: u32) -> Vec<u8> {
        let block = self.own.config.logical_block as usize;
        let mut bytes = vec![0; length as usize];
        let body = bytes.len() - bytes.len() % block;
        load(&*client.arena, usize::try_from(at).unwrap(), &mut bytes[..body]);
        load(&*client.tails, tail as usize * 4096, &mut bytes[body..]);
        bytes
    }

    /// Whether clients see a block of the first namespace in the presence table.
    pub(crate) fn shows(&self, key: Key) -> bool {
        let table = self.own.presence.as_ref().expect("puts are acknowledged from memory");
        let fd = table.fd().try_clone_to_owned().unwrap();
        let view = WordView::open_untouched(fd, Pinned::bytes(&**table) as u64).unwrap();
        let reader = PresenceReader::new(view).expect("a table");
        reader.probe(1_000, key.lo()) != Presence::Absent
    }

    /// Looks for keys; the completion's bits.
    pub(crate) fn lookup(&mut self, client: &mut Client, hold_ms: u32, lows: &[u64]) -> u32 {
        let done = self.ask_one(client, keys_slot(Opcode::Lookup, HANDLE, hold_ms, lows));
        assert_eq!(done.status(), Status::Ok);
        done.bytes
    }
}

/// A request, and what stands beside it.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) request: Request,
    pub(crate) side: Option<Side<'a>>,
}

impl Client {
    pub(crate) fn post(&mut self, asked: &Asked<'_>) {
        assert!(self.lane.free(1).unwrap() >= 1, "the test fits its lane");
        let request = Request { user_data: self.next, ..asked.request };
        self.next += 1;
        match &asked.side {
            Some(side) => self.lane.stage_with(request, side),
            None => self.lane.stage(request),
        }
        let _nobody_sleeps = self.lane.publish();
    }

    pub(crate) fn collect(&mut self) -> Vec<Completion> {
        rig::collect(&mut self.lane)
    }
}

/// A put or get of so many bytes, with this check.
pub(crate) fn keyed(
    client: &Client,
    key: Key,
    (bytes, check): (u32, u64),
    (region_offset, tail): (u64, u32),
) -> KeyedRequest {
    KeyedRequest {
        handle: HANDLE,
        chain: 0,
        bytes,
        key: [key.lo(), key.hi()],
        region: client.region,
        region_offset,
        check,
        tail,
        deadline_us: 0,
    }
}

/// The slot of a drop or a suspect.
pub(crate) fn drop_slot(opcode: Opcode, key: Key, seen: u64) -> Request {
    KeyedRequest {
        handle: HANDLE,
        chain: 0,
        bytes: 0,
        key: [key.lo(), key.hi()],
        region: RegionId(0),
        region_offset: 0,
        check: seen,
        tail: 0,
        deadline_us: 0,
    }
    .slot(opcode)
}

pub(crate) fn crc(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

/// Bytes that tell one block from another, and one place from another.
pub(crate) fn block(seed: u64, length: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes);
    bytes
}
