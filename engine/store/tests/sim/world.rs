//! One store, its drive, its clients, and the model of the correct behaviour.

use std::collections::BTreeMap;

use fastrand::Rng;
use kvrail_store::{
    Begun, Budget, Discard, Hint, Key, MemberTask, Members, Now as Time, Outcome, Phase, Pool,
    PoolRule, Reading, Reply, SUPER_AT, SpaceId, Start, Store, StoreConfig, StoreIdentity,
    TaskMemory, Times, Urgency, Verb,
};

use crate::drive::{Drive, Kind};
use crate::ledger::Ledger;
use crate::model::{Expected, Model, Now, Value};

/// Namespaces that scenarios use.
pub(crate) const SPACES: u16 = 2;
pub(crate) const VOLUME: u128 = 0x7777;
/// A client's memory outside of blocks.
pub(crate) const GUARD: u8 = 0x5a;
const GUARDS: usize = 64;
/// Two keys whose numbers differ by this differ in their highest bits only.
pub(crate) const TWIN: u64 = 1 << 32;

/// The buffers.
#[derive(Clone, Debug)]
pub(crate) struct Buffers(Vec<Vec<u8>>);

impl Pool for Buffers {
    fn load(&self, buffer: u16, at: u32, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0[usize::from(buffer)][at as usize..][..bytes.len()]);
    }

    fn save(&mut self, buffer: u16, at: u32, bytes: &[u8]) {
        self.0[usize::from(buffer)][at as usize..][..bytes.len()].copy_from_slice(bytes);
    }
}

/// A request that is not answered.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Put {
        space: u16,
        key: u64,
        value: Value,
        bytes: Vec<u8>,
        durable: bool,
        uid: u64,
    },
    /// A durable put of a key that is there.
    Confirm {
        space: u16,
        key: u64,
        there: Now,
    },
    Get {
        space: u16,
        key: u64,
        memory: Vec<u8>,
        expected: Expected,
        uid: u64,
    },
    Drop {
        space: u16,
        key: u64,
        before: Vec<Value>,
        durable: bool,
    },
    Create {
        space: u16,
    },
    Clear {
        space: u16,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) task: MemberTask,
    /// Of a flush: what it covers.
    pub(crate) covers: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    pub(crate) id: SpaceId,
    pub(crate) uid: u64,
}

/// When a client's read ends that could end now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadEnds {
    Soon,
    /// Once in 50 times.
    Late,
    Never,
}

impl ReadEnds {
    fn is_now(self, rng: &mut Rng) -> bool {
        match self {
            Self::Soon => true,
            Self::Late => rng.u8(..50) == 0,
            Self::Never => false,
        }
    }
}

/// All of it; the same seed gives the same life.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) config: StoreConfig,
    /// Given to each store that is made.
    pub(crate) rules: Vec<PoolRule>,
    pub(crate) store: Store,
    pub(crate) drive: Drive,
    pub(crate) model: Model,
    /// Present blocks by the books: puts less the feed's evictions.
    pub(crate) ledger: Ledger,
    pub(crate) rng: Rng,
    pub(crate) pool: Buffers,
    pub(crate) now: u64,
    pub(crate) flights: Vec<Flight>,
    /// Gets that found their blocks, and are being read.
    pub(crate) reads: Vec<(u64, Reading)>,
    /// Their answers.
    pub(crate) answers: Vec<Reply>,
    pub(crate) asked: BTreeMap<u64, Asked>,
    pub(crate) next_user: u64,
    pub(crate) next_version: u64,
    pub(crate) spaces: Vec<Option<Space>>,
    pub(crate) evicted: u64,
    /// Statuses and bytes seen so far, folded: two equal lives have equal traces.
    pub(crate) trace: u64,
    pub(crate) corrupt: u64,
    /// Of what is put.
    pub(crate) hint: Hint,
    /// Largest block that is put, in bytes.
    pub(crate) largest: u32,
    /// Whether blocks may be spoilt by the drive.
    pub(crate) lying: bool,
    /// Whether pages and heads are not written now.
    pub(crate) stalled: bool,
    pub(crate) read_ends: ReadEnds,
    /// Whether random requests drop and clear.
    pub(crate) drops: bool,
    /// Offsets of the durable writes of the store.
    pub(crate) durable_writes: Vec<u64>,
    /// Places of copies of moved blocks.
    pub(crate) move_writes: Vec<std::ops::Range<u64>>,
    /// Bytes that the store read for itself, and in how many reads.
    pub(crate) own_reads: u64,
    pub(crate) own_read_tasks: u64,
    /// Writes of moved blocks, charged to none and to each owner.
    pub(crate) moved_for: BTreeMap<Option<u16>, u64>,
}

/// Small sizes, so that little work fills the ring.
pub(crate) fn small(segments: u64, logical_block: u32) -> StoreConfig {
    StoreConfig {
        area_bytes: 256 * 1024 + segments * 64 * 1024 + 4096,
        logical_block,
        segment_bytes: 64 * 1024,
        block_mean: 1024,
        spaces: 4,
        puts: 6,
        writes: 8,
        holds: 32,
        owners: 4,
        owner_holds: 16,
        buffers: 3,
        buffer_bytes: 16 * 1024,
        images: 4,
        times: Times::default(),
        discard: Discard::Segments,
        budget: Budget::Unlimited,
    }
}

impl World {
    pub(crate) fn new(seed: u64, config: StoreConfig) -> Self {
        Self::with_pools(seed, config, Vec::new())
    }

    /// A world whose namespaces are in pools.
    pub(crate) fn with_pools(seed: u64, config: StoreConfig, rules: Vec<PoolRule>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let drive = Drive::new(usize::try_from(config.area_bytes).unwrap(), &mut rng);
        let mut store = Store::new(&config).unwrap();
        store.set_pools(rules.clone());
        let pool = Self::pool(&config);
        let mut world = Self {
            config,
            rules,
            store,
            drive,
            model: Model::default(),
            ledger: Ledger::default(),
            rng,
            pool,
            now: 1,
            flights: Vec::new(),
            reads: Vec::new(),
            answers: Vec::new(),
            asked: BTreeMap::new(),
            next_user: 1,
            next_version: 1,
            spaces: vec![None; usize::from(SPACES)],
            evicted: 0,
            trace: 0,
            corrupt: 0,
            hint: Hint::default(),
            largest: 6000,
            lying: false,
            stalled: false,
            read_ends: ReadEnds::Soon,
            drops: true,
            durable_writes: Vec::new(),
            move_writes: Vec::new(),
            own_reads: 0,
            own_read_tasks: 0,
            moved_for: BTreeMap::new(),
        };
        let identity = StoreIdentity {
            volume: VOLUME,
            instance: seed.into(),
            seed: u128::from(seed) << 64 | 99,
            member: 0,
            members: Members::first(1),
            generation: 1,
        };
        world.store.start(Start::Create(identity), world.time());
        world.run_until("created", |world| world.store.phase() == Phase::Serving);
        for space in 0..SPACES {
            world.create_space(space);
        }
        world.settle();
        world
    }

    pub(crate) fn pool(config: &StoreConfig) -> Buffers {
        let large = vec![vec![0xcc; config.buffer_bytes as usize]; config.buffers.into()];
        let small = vec![vec![0xcc; 8192]; config.images.into()];
        Buffers(large.into_iter().chain(small).collect())
    }

    pub(crate) fn time(&self) -> Time {
        let unix = 1_700_000_000 + u32::try_from(self.now / 1_000_000_000).unwrap();
        Time { ns: self.now, unix }
    }

    pub(crate) fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what).wrapping_mul(0x100_0000_01b3).rotate_left(5);
    }

    pub(crate) fn user(&mut self, asked: Asked) -> u64 {
        let user = self.next_user;
        self.next_user += 1;
        self.asked.insert(user, asked);
        user
    }

    pub(crate) fn create_space(&mut self, space: u16) {
        let name = format!("space {space}");
        let uid = self.store.uid_mark() + 1 + self.rng.u64(..1 << 32);
        let user = self.user(Asked::Create { space });
        let document = format!("{{\"space\":{space}}}");
        let time = self.time();
        let (name, document) = (name.as_bytes(), document.as_bytes());
        let begun = self.store.create_space((user, 0), name, document, uid, time);
        assert_eq!(begun, Begun::Taken);
        self.run_until("space", |world| !world.asked.contains_key(&user));
    }

    pub(crate) fn adopt_space(&mut self, space: u16) {
        let view = self.store.space(format!("space {space}").as_bytes());
        let view = view.map(|view| Space { id: view.id, uid: view.uid });
        self.spaces[usize::from(space)] = view;
    }

    pub(crate) fn id(&self, space: u16) -> SpaceId {
        self.spaces[usize::from(space)].expect("the namespace is open").id
    }

    pub(crate) fn has_space(&self, space: u16) -> bool {
        self.spaces[usize::from(space)].is_some()
    }

    /// Keys are small numbers: the halves follow from them.
    pub(crate) fn key(number: u64) -> Key {
        let (mixed, twin) =
            ((number % TWIN + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15), number / TWIN);
        Key::of(mixed ^ 0xabcd ^ twin << 40, mixed.rotate_left(17))
    }

    /// The value of a put of that block.
    pub(crate) fn new_value(&mut self, length: u32) -> Value {
        let value = Value { version: self.next_version, length };
        self.next_version += 1;
        value
    }

    /// Whatever was evicted so far need not be found.
    pub(crate) fn evictions(&mut self) {
        let stats = self.store.stats();
        let evicted = stats.evicted + stats.distrusted + stats.reclaimed;
        if evicted != self.evicted || self.lying {
            self.evicted = evicted;
            self.model.forget_must();
        }
    }

    /// One turn, with its answers and the feed's evictions.
    pub(crate) fn tick(&mut self) {
        self.tick_unread();
        self.ledger.drain(&mut self.store);
    }

    /// One turn with its answers; the feed is left alone.
    pub(crate) fn tick_unread(&mut self) {
        self.turn();
        self.replies();
    }

    /// The store steps, tasks leave it, some of them end.
    pub(crate) fn turn(&mut self) {
        self.now += self.rng.u64(1..2_000_000);
        let budget = self.rng.u32(1..100);
        self.store.step(&self.pool, budget, self.time());
        while let Some(task) = self.store.next_task(&mut self.pool) {
            let covers = self.drive.flush_begins();
            self.check_task(&task);
            self.count_move(&task);
            if task.verb == Verb::WriteDurable {
                self.durable_writes.push(task.offset);
            }
            self.flights.push(Flight { task, covers });
        }
        for _ in 0..self.rng.usize(..4) {
            let (tasks, reads) = (self.flights.len(), self.reads.len());
            if tasks + reads == 0 {
                continue;
            }
            let at = self.rng.usize(..tasks + reads);
            if at < tasks {
                let task = &self.flights[at].task;
                let client = matches!(task.memory, TaskMemory::Client { .. });
                if !self.stalled || client || task.verb == Verb::Read {
                    let flight = self.flights.swap_remove(at);
                    self.end(&flight);
                }
            } else if self.read_ends.is_now(&mut self.rng) {
                let (user, reading) = self.reads.swap_remove(at - tasks);
                self.end_read(user, &reading);
            }
        }
    }

    /// Whether clients may issue more gets: a few at once are enough.
    pub(crate) fn may_get(&self) -> bool {
        self.reads.len() + self.answers.len() < 16
    }

    /// A get has found its block: the read begins.
    pub(crate) fn begin_read(&mut self, user: u64, reading: Reading) {
        let unit = u64::from(self.config.logical_block);
        let end = reading.offset + u64::from(reading.exact).next_multiple_of(unit);
        assert!(reading.offset.is_multiple_of(unit) && end <= self.config.area_bytes);
        self.reads.push((user, reading));
    }

    /// The read of a get's block ends.
    fn end_read(&mut self, user: u64, reading: &Reading) {
        let Self { drive, rng, .. } = self;
        let outcome = if drive.fails(rng) {
            Outcome::Failed(7)
        } else {
            self.read_block(user, reading);
            Outcome::Done
        };
        self.store.read_ended(reading.id, outcome);
        self.answers.push(Reply { user, owner: 1, answer: reading.ended(outcome) });
    }

    /// The client's memory with guards behind it: only the block's bytes get there.
    fn read_block(&mut self, user: u64, reading: &Reading) {
        let exact = reading.exact as usize;
        let unit = self.config.logical_block as usize;
        let mut bytes = vec![0; exact.next_multiple_of(unit)];
        self.drive.read(&mut self.rng, reading.offset, &mut bytes);
        let Some(Asked::Get { memory, .. }) = self.asked.get_mut(&user) else {
            panic!("a read without a waiter");
        };
        memory.resize(exact + GUARDS, GUARD);
        memory[..exact].copy_from_slice(&bytes[..exact]);
    }

    /// The next answer from any source.
    pub(crate) fn next_reply(&mut self) -> Option<Reply> {
        self.answers.pop().or_else(|| self.store.next_reply())
    }

    /// Counts and enters the writes of moved blocks.
    fn count_move(&mut self, task: &MemberTask) {
        let buffers = self.config.buffers;
        let moves = matches!(task.memory, TaskMemory::Pool { buffer, .. } if buffer < buffers);
        if moves && task.verb == Verb::Write {
            let owner = match task.urgency {
                Urgency::Space { owner } => Some(owner),
                Urgency::Client | Urgency::Background => None,
            };
            *self.moved_for.entry(owner).or_default() += 1;
            self.move_writes.push(task.offset..task.offset + task.length);
        }
    }

    pub(crate) fn check_task(&self, task: &MemberTask) {
        let unit = u64::from(self.config.logical_block);
        assert!(task.offset.is_multiple_of(unit) && task.length.is_multiple_of(unit), "{task:?}");
        assert!(task.offset + task.length <= self.config.area_bytes, "{task:?}");
        if let TaskMemory::Client { exact, .. } = task.memory {
            assert_eq!(task.length, u64::from(exact).next_multiple_of(unit));
        }
    }

    /// The bytes of a write: of a client's tail only the block's own bytes are known.
    pub(crate) fn written(&self, task: &MemberTask) -> Vec<u8> {
        let length = usize::try_from(task.length).unwrap();
        match task.memory {
            TaskMemory::Client { user, exact } => {
                let Some(Asked::Put { bytes, .. }) = self.asked.get(&user) else {
                    panic!("a write without a waiter");
                };
                assert_eq!(bytes.len(), exact as usize);
                let mut all = bytes.clone();
                all.resize(length, 0xa5);
                all
            }
            TaskMemory::Pool { buffer, at } => {
                self.pool.0[usize::from(buffer)][at as usize..][..length].to_vec()
            }
            TaskMemory::None => unreachable!("writes have bytes"),
        }
    }

    /// The purpose of a write; `None` for others.
    fn kind_of(&self, task: &MemberTask) -> Option<Kind> {
        let (segment, front) = (self.config.segment_bytes, 128 << 10);
        let buffers = self.config.buffers;
        match (task.verb, task.memory) {
            (Verb::Read | Verb::Discard, _) => None,
            (Verb::Flush, _) => Some(Kind::Flush),
            (_, TaskMemory::Client { .. }) => Some(Kind::Block),
            (_, TaskMemory::Pool { buffer, .. }) if buffer < buffers => Some(Kind::Move),
            _ if SUPER_AT.contains(&task.offset) => Some(Kind::Super),
            _ if task.offset < front => Some(Kind::Space),
            _ if (task.offset - front).is_multiple_of(segment) => Some(Kind::Head(1)),
            _ if (task.offset - front + 4096).is_multiple_of(segment) => Some(Kind::Head(0)),
            // A probe at the place of a block.
            _ if self.written(task).iter().all(|byte| *byte == 0) => Some(Kind::Block),
            _ => Some(Kind::Page),
        }
    }

    /// One task ends.
    pub(crate) fn end(&mut self, flight: &Flight) {
        let task = flight.task;
        let kind = self.kind_of(&task);
        let Self { drive, rng, .. } = self;
        let refused = kind.is_some_and(|kind| drive.refuses(kind, self.now));
        if refused || task.verb != Verb::Discard && drive.fails(rng) {
            if matches!(task.verb, Verb::Write | Verb::WriteDurable) {
                let bytes = self.written(&task);
                self.drive.tear(&mut self.rng, task.offset, &bytes);
            }
            let time = self.time();
            return self.store.finish(task.id, Outcome::Failed(7), time);
        }
        match task.verb {
            Verb::Read => self.read(&task),
            Verb::Write | Verb::WriteDurable => {
                let bytes = self.written(&task);
                let durable = task.verb == Verb::WriteDurable;
                self.drive.write(&mut self.rng, task.offset, &bytes, durable);
            }
            Verb::Flush => self.drive.flush_ends(flight.covers),
            Verb::Discard => self.drive.discard(&mut self.rng, task.offset, task.length),
        }
        let time = self.time();
        self.store.finish(task.id, Outcome::Done, time);
    }

    pub(crate) fn read(&mut self, task: &MemberTask) {
        let mut bytes = vec![0; usize::try_from(task.length).unwrap()];
        self.drive.read(&mut self.rng, task.offset, &mut bytes);
        match task.memory {
            TaskMemory::Pool { buffer, at } => {
                self.own_reads += task.length;
                self.own_read_tasks += 1;
                self.pool.0[usize::from(buffer)][at as usize..][..bytes.len()]
                    .copy_from_slice(&bytes);
            }
            TaskMemory::Client { .. } | TaskMemory::None => unreachable!("the store's own reads"),
        }
    }
}
