//! One store, its drive, its clients, and the model that says what is right.

use std::collections::BTreeMap;

use crc_fast::{CrcAlgorithm, checksum};
use fastrand::Rng;
use kvrail_store::{
    Begun, Config, Discard, DropKey, Durability, Expect, Extent, Get, Hold, Identity, Key, Memory,
    Now as Time, Outcome, Phase, Pool, Put, Reply, SpaceId, Start, Status, Store, Task, Times,
    Verb, check,
};

use crate::drive::{Cut, Drive};
use crate::model::{Model, Now, Value};

/// Namespaces that scenarios use.
pub(crate) const SPACES: u16 = 2;
const VOLUME: u128 = 0x7777;
/// What a client's memory holds where no block is.
const GUARD: u8 = 0x5a;
const GUARDS: usize = 64;

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
enum Asked {
    Put { space: u16, key: u64, value: Value, bytes: Vec<u8>, durable: bool },
    Get { space: u16, key: u64, memory: Vec<u8>, expected: Now, history: Vec<Value>, uid: u64 },
    Drop { space: u16, key: u64, before: Vec<Value>, durable: bool },
    Create { space: u16 },
    Clear { space: u16 },
}

#[derive(Clone, Debug)]
struct Flight {
    task: Task,
    /// Of a flush: what it covers.
    covers: u64,
}

#[derive(Clone, Copy, Debug)]
struct Space {
    id: SpaceId,
    uid: u64,
}

/// All of it; the same seed gives the same life.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) drive: Drive,
    pub(crate) model: Model,
    pub(crate) rng: Rng,
    pool: Buffers,
    now: u64,
    flights: Vec<Flight>,
    asked: BTreeMap<u64, Asked>,
    next_user: u64,
    next_version: u64,
    spaces: Vec<Option<Space>>,
    evicted: u64,
    /// Statuses and bytes seen so far, folded: two equal lives have equal traces.
    pub(crate) trace: u64,
    pub(crate) corrupt: u64,
    /// Largest block that is put, in bytes.
    pub(crate) largest: u32,
    /// Whether blocks may be spoilt by the drive.
    pub(crate) lying: bool,
    /// Whether random requests drop and clear.
    pub(crate) drops: bool,
}

/// Small sizes, so that little work fills the ring.
pub(crate) fn small(segments: u64, logical_block: u32) -> Config {
    Config {
        area_bytes: 256 * 1024 + segments * 64 * 1024 + 4096,
        logical_block,
        segment_bytes: 64 * 1024,
        block_mean: 1024,
        spaces: 4,
        reads: 16,
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
    }
}

impl World {
    pub(crate) fn new(seed: u64, config: Config) -> Self {
        let mut rng = Rng::with_seed(seed);
        let drive = Drive::new(usize::try_from(config.area_bytes).unwrap(), &mut rng);
        let store = Store::new(&config).unwrap();
        let pool = Self::pool(&config);
        let mut world = Self {
            config,
            store,
            drive,
            model: Model::default(),
            rng,
            pool,
            now: 1,
            flights: Vec::new(),
            asked: BTreeMap::new(),
            next_user: 1,
            next_version: 1,
            spaces: vec![None; usize::from(SPACES)],
            evicted: 0,
            trace: 0,
            corrupt: 0,
            largest: 6000,
            lying: false,
            drops: true,
        };
        let identity = Identity {
            volume: VOLUME,
            instance: seed.into(),
            seed: u128::from(seed) << 64 | 99,
            member: 0,
            members: 1,
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

    fn pool(config: &Config) -> Buffers {
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

    fn user(&mut self, asked: Asked) -> u64 {
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

    fn adopt_space(&mut self, space: u16) {
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
        let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Key::of(mixed ^ 0xabcd, mixed.rotate_left(17))
    }

    /// What a put of that block will be.
    fn new_value(&mut self, length: u32) -> Value {
        let value = Value { version: self.next_version, length };
        self.next_version += 1;
        value
    }

    /// Puts a block of a random length; in parts now and then.
    pub(crate) fn put(&mut self, space: u16, key: u64, durable: bool) -> Option<Status> {
        let length = match self.rng.u8(..8) {
            0 => self.rng.u32(1..=self.largest),
            1 => 1,
            2 => self.config.logical_block * self.rng.u32(1..4),
            _ => self.rng.u32(1..=2048),
        };
        let parts = if self.rng.u8(..8) == 0 { 3 } else { 1 };
        self.put_length(space, key, durable, length, parts)
    }

    /// Puts a block of that length in so many parts. The status, if it was answered at once.
    pub(crate) fn put_length(
        &mut self,
        space: u16,
        key: u64,
        durable: bool,
        length: u32,
        parts: u32,
    ) -> Option<Status> {
        self.put_some((space, key), durable, length, parts, u32::MAX)
    }

    /// Puts the first `some` of so many parts; the rest never comes.
    pub(crate) fn put_partly(&mut self, space: u16, key: u64, length: u32, parts: u32, some: u32) {
        assert_eq!(self.put_some((space, key), false, length, parts, some), None);
    }

    fn put_some(
        &mut self,
        (space, key): (u16, u64),
        durable: bool,
        length: u32,
        parts: u32,
        some: u32,
    ) -> Option<Status> {
        let unit = self.config.logical_block;
        let Space { id, uid } = self.spaces[usize::from(space)]?;
        let value = self.new_value(length);
        let bytes = value.bytes();
        let crc = checksum(CrcAlgorithm::Crc64Nvme, &bytes);
        let check = check(crc, uid, Self::key(key), length);
        let each = length.div_ceil(parts).next_multiple_of(unit);
        let mut at = 0;
        let mut left = some;
        while at < length && left > 0 {
            left -= 1;
            let size = each.min(length - at);
            let part = bytes[at as usize..(at + size) as usize].to_vec();
            let user = self.user(Asked::Put { space, key, value, bytes: part, durable });
            let put = Put {
                user,
                owner: self.rng.u16(1..2),
                space: id,
                key: Self::key(key),
                length,
                at,
                bytes: size,
                check,
                depth: (key % 20) as u16,
                durability: if durable { Durability::Durable } else { Durability::Soon },
                metadata: &Self::metadata(key),
            };
            let begun = self.store.put(&put, self.time());
            if begun == Begun::Taken && at == 0 {
                self.evictions();
                let whole = self.store.phase() == Phase::Serving;
                self.model.putting(space, key, value, whole);
            }
            if let Begun::Done(answer) = begun {
                self.asked.remove(&user);
                self.note(answer.length.into());
                if answer.status == Status::Present {
                    self.model.present(space, key);
                }
                return Some(answer.status);
            }
            at += size;
        }
        None
    }

    fn metadata(key: u64) -> Vec<u8> {
        vec![(key % 251) as u8; (key * 37 % 1025) as usize]
    }

    pub(crate) fn get(&mut self, space: u16, key: u64) -> Option<Status> {
        let Space { id, uid } = self.spaces[usize::from(space)]?;
        let expected = self.model.expect(space, key);
        let capacity = self.config.segment_bytes as u32;
        let history = self.model.history(space, key);
        let asked = Asked::Get { space, key, memory: Vec::new(), expected, history, uid };
        let user = self.user(asked);
        let extent = Extent::Whole { capacity };
        let get = Get { user, owner: 1, space: id, key: Self::key(key), extent };
        let begun = self.store.get(&get, self.time());
        let Begun::Done(answer) = begun else { return None };
        self.asked.remove(&user);
        match answer.status {
            Status::Miss => {
                self.evictions();
                self.model.missed(space, key, expected, true);
            }
            Status::Warming => self.model.missed(space, key, expected, false),
            other => assert!(matches!(other, Status::Declined(_)), "{other:?}"),
        }
        Some(answer.status)
    }

    pub(crate) fn drop_key(&mut self, space: u16, key: u64, durable: bool) {
        let Some(Space { id, .. }) = self.spaces[usize::from(space)] else { return };
        if self.store.drop_room() == 0 {
            return;
        }
        let before = self.model.drop_begins(space, key);
        let user = self.user(Asked::Drop { space, key, before, durable });
        let durability = if durable { Durability::Durable } else { Durability::Soon };
        let drop =
            DropKey { user, owner: 2, space: id, key: Self::key(key), only: None, durability };
        if let Begun::Done(answer) = self.store.drop_key(&drop, self.time()) {
            panic!("a drop is not taken: {answer:?}");
        }
    }

    pub(crate) fn clear(&mut self, space: u16) {
        let Some(Space { id, .. }) = self.spaces[usize::from(space)] else { return };
        let uid = self.store.uid_mark() + 1 + self.rng.u64(..1 << 32);
        let user = self.user(Asked::Clear { space });
        let time = self.time();
        match self.store.clear_space((user, 3), id, uid, time) {
            Begun::Taken => self.model.clearing(space),
            Begun::Done(_) => {
                self.asked.remove(&user);
            }
        }
    }

    /// Looks for a run of keys, and holds what is found now and then.
    pub(crate) fn lookup(&mut self, space: u16, first: u64) {
        let Some(Space { id, .. }) = self.spaces[usize::from(space)] else { return };
        let keys: Vec<u64> = (first..first + 8).map(|key| Self::key(key).lo()).collect();
        let owner = self.rng.u16(1..4);
        let hold = if self.rng.bool() { Hold::For(1_000_000_000) } else { Hold::No };
        let found = self.store.lookup(id, owner, &keys, hold, self.time()).unwrap();
        for bit in 0..8 {
            let there = found.found >> bit & 1 == 1;
            let expected = self.model.expect(space, first + bit);
            let gone = matches!(expected, Now::Nothing | Now::Absent);
            assert!(!there || !gone, "key {} is found", first + bit);
        }
        self.note(found.found);
        if self.rng.u8(..8) == 0 {
            self.store.release(id, owner, keys[0]);
        }
    }

    /// Whatever was evicted so far need not be found.
    fn evictions(&mut self) {
        let stats = self.store.stats();
        let evicted = stats.evicted + stats.distrusted + stats.reclaimed + stats.failures;
        if evicted != self.evicted || self.lying {
            self.evicted = evicted;
            self.model.forget_must();
        }
    }

    /// One turn: the store steps, tasks leave it, some of them end.
    pub(crate) fn tick(&mut self) {
        self.now += self.rng.u64(1..2_000_000);
        let budget = self.rng.u32(1..100);
        self.store.step(&self.pool, budget, self.time());
        while let Some(task) = self.store.next_task(&mut self.pool) {
            let covers = self.drive.flush_begins();
            self.check_task(&task);
            self.flights.push(Flight { task, covers });
        }
        for _ in 0..self.rng.usize(..4) {
            if !self.flights.is_empty() {
                let at = self.rng.usize(..self.flights.len());
                let flight = self.flights.swap_remove(at);
                self.end(&flight);
            }
        }
        self.replies();
    }

    fn check_task(&self, task: &Task) {
        let unit = u64::from(self.config.logical_block);
        assert!(task.offset.is_multiple_of(unit) && task.length.is_multiple_of(unit), "{task:?}");
        assert!(task.offset + task.length <= self.config.area_bytes, "{task:?}");
        if let Memory::Client { exact, .. } = task.memory {
            assert_eq!(task.length, u64::from(exact).next_multiple_of(unit));
        }
    }

    /// What a write writes: of a client's tail only the block's own bytes are known.
    fn written(&self, task: &Task) -> Vec<u8> {
        let length = usize::try_from(task.length).unwrap();
        match task.memory {
            Memory::Client { user, exact } => {
                let Some(Asked::Put { bytes, .. }) = self.asked.get(&user) else {
                    panic!("a write for nobody");
                };
                assert_eq!(bytes.len(), exact as usize);
                let mut all = bytes.clone();
                all.resize(length, 0xa5);
                all
            }
            Memory::Pool { buffer, at } => {
                self.pool.0[usize::from(buffer)][at as usize..][..length].to_vec()
            }
            Memory::None => unreachable!("writes have bytes"),
        }
    }

    /// One task ends.
    fn end(&mut self, flight: &Flight) {
        let task = flight.task;
        let Self { drive, rng, .. } = self;
        if task.verb != Verb::Discard && drive.fails(rng) {
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

    fn read(&mut self, task: &Task) {
        let mut bytes = vec![0; usize::try_from(task.length).unwrap()];
        self.drive.read(&mut self.rng, task.offset, &mut bytes);
        match task.memory {
            Memory::Client { user, exact } => {
                let Some(Asked::Get { memory, .. }) = self.asked.get_mut(&user) else {
                    panic!("a read for nobody");
                };
                // The client's memory with guards behind it: only the block's bytes get there.
                memory.resize(exact as usize + GUARDS, GUARD);
                memory[..exact as usize].copy_from_slice(&bytes[..exact as usize]);
            }
            Memory::Pool { buffer, at } => {
                self.pool.0[usize::from(buffer)][at as usize..][..bytes.len()]
                    .copy_from_slice(&bytes);
            }
            Memory::None => unreachable!("reads have memory"),
        }
    }

    fn replies(&mut self) {
        while let Some(reply) = self.store.next_reply() {
            let asked = self.asked.remove(&reply.user).expect("one reply for each request");
            self.note(reply.answer.check);
            self.reply(&reply, asked);
        }
    }

    fn reply(&mut self, reply: &Reply, asked: Asked) {
        let status = reply.answer.status;
        match asked {
            Asked::Put { space, key, value, durable, .. } => match status {
                Status::Ok => self.model.put(space, key, value, durable),
                Status::Part => {}
                Status::Dropped | Status::Failed(_) | Status::Declined(_) => {
                    self.model.abandoned(space, key, value);
                }
                other => panic!("{other:?}"),
            },
            Asked::Get { space, key, memory, expected, history, uid } => {
                self.evictions();
                if status == Status::Ok {
                    let verified = self.verified((space, key), uid, expected, &memory, reply);
                    if let Some(bytes) = verified {
                        self.model.got((space, key), expected, &history, bytes);
                    }
                } else {
                    assert!(matches!(status, Status::Failed(_)), "{status:?}");
                }
            }
            Asked::Drop { space, key, before, durable } => {
                assert!(matches!(status, Status::Ok | Status::Miss | Status::Declined(_)));
                if durable && matches!(status, Status::Ok | Status::Miss) {
                    self.model.dropped(space, key, &before);
                }
            }
            Asked::Create { space } => {
                assert_eq!(status, Status::Ok);
                self.adopt_space(space);
            }
            Asked::Clear { space } => {
                if status == Status::Ok {
                    self.model.cleared(space);
                    self.adopt_space(space);
                }
            }
        }
    }

    /// A get is answered OK: the client verifies before it believes. The bytes to believe.
    fn verified<'a>(
        &mut self,
        (space, key): (u16, u64),
        uid: u64,
        expected: Now,
        memory: &'a [u8],
        reply: &Reply,
    ) -> Option<&'a [u8]> {
        let length = reply.answer.length;
        let (bytes, guards) = memory.split_at(length as usize);
        assert!(guards.iter().all(|byte| *byte == GUARD), "bytes beside the block");
        let crc = checksum(CrcAlgorithm::Crc64Nvme, bytes);
        let same = self.spaces[usize::from(space)].is_some_and(|it| it.uid == uid);
        if check(crc, uid, Self::key(key), length) == reply.answer.check {
            return same.then_some(bytes);
        }
        self.corrupt += 1;
        if !self.lying {
            self.model.corrupt(space, key, expected);
        }
        if same {
            self.report(space, key, reply.answer.check);
        }
        None
    }

    /// What a client does with a block whose check is wrong.
    fn report(&mut self, space: u16, key: u64, check: u64) {
        let id = self.id(space);
        self.store.suspect(id, Self::key(key), check);
        let user = self.user(Asked::Drop { space, key, before: Vec::new(), durable: false });
        let drop = DropKey {
            user,
            owner: 2,
            space: id,
            key: Self::key(key),
            only: Some(check),
            durability: Durability::Soon,
        };
        match self.store.drop_key(&drop, self.time()) {
            Begun::Taken => {
                self.model.drop_begins(space, key);
            }
            Begun::Done(_) => {
                self.asked.remove(&user);
            }
        }
    }

    /// Ticks until it holds.
    pub(crate) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.tick();
        }
        panic!("{what}: not within 200000 ticks; {:?} {:?}", self.store.phase(), self.asked);
    }

    /// Lets everything come to rest on stable media.
    pub(crate) fn settle(&mut self) {
        assert!(self.settle_before(u64::MAX), "writes are counted in u64");
    }

    /// The same, unless so many writes are finished before.
    pub(crate) fn settle_before(&mut self, writes: u64) -> bool {
        let until = self.now + 2_200_000_000;
        for _ in 0..200_000 {
            if self.asked.is_empty() && self.now >= until && self.flights.is_empty() {
                self.evictions();
                self.model.settled();
                self.store.audit();
                return true;
            }
            self.tick();
            if self.drive.finished >= writes {
                return false;
            }
        }
        panic!("not at rest within 200000 ticks: {:?}", self.asked);
    }

    /// The process ends, perhaps with the power; a new store is made, not started.
    pub(crate) fn cut(&mut self, cut: Cut) {
        let flights = std::mem::take(&mut self.flights);
        for flight in flights {
            if matches!(flight.task.verb, Verb::Write | Verb::WriteDurable) {
                let bytes = self.written(&flight.task);
                self.drive.tear(&mut self.rng, flight.task.offset, &bytes);
            }
        }
        self.drive.cut(&mut self.rng, cut);
        self.evictions();
        self.model.crashed();
        self.asked.clear();
        self.store = Store::new(&self.config).unwrap();
        self.pool = Self::pool(&self.config);
        self.evicted = 0;
        self.spaces.fill(None);
    }

    /// Starts the store that is there.
    pub(crate) fn open(&mut self) {
        let expect = Expect { volume: VOLUME, member: 0, generation: 1, next_generation: 1 };
        self.open_as(expect);
    }

    pub(crate) fn open_as(&mut self, expect: Expect) {
        self.store.start(Start::Open(expect), self.time());
    }

    pub(crate) fn expect() -> Expect {
        Expect { volume: VOLUME, member: 0, generation: 1, next_generation: 1 }
    }

    /// Opens, and waits until requests are taken.
    pub(crate) fn reopen(&mut self) {
        self.open();
        self.run_until("open", |world| world.store.phase() != Phase::Starting);
        for space in 0..SPACES {
            self.adopt_space(space);
        }
    }

    /// Waits for the whole recovery, and gets every key there ever was.
    pub(crate) fn verify(&mut self) {
        self.run_until("recovered", |world| world.store.phase() == Phase::Serving);
        for (space, key) in self.model.keys() {
            while self.has_space(space) && self.store.get_room() == 0 {
                self.tick();
            }
            self.get(space, key);
            self.tick();
        }
        self.run_until("verified", |world| world.asked.is_empty());
        self.store.audit();
    }

    /// Whether every request is answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// Parts of puts that are not answered.
    pub(crate) fn asked_parts(&self) -> usize {
        self.asked.values().filter(|asked| matches!(asked, Asked::Put { .. })).count()
    }

    /// Lets that much time pass, in nanoseconds.
    pub(crate) fn wait(&mut self, time: u64) {
        let until = self.now + time;
        while self.now < until {
            self.now += 20_000_000;
            self.tick();
        }
    }

    /// Lets everything that is due be written.
    pub(crate) fn settle_time(&mut self) {
        self.wait(2_200_000_000);
        self.run_until("flights", |world| world.flights.is_empty());
    }

    /// Holds what a lookup finds of these keys, for owner 1, as long as it may.
    pub(crate) fn hold(&mut self, space: u16, first: u64, count: u64) {
        let keys: Vec<u64> = (first..first + count).map(|key| Self::key(key).lo()).collect();
        let (id, time) = (self.id(space), self.time());
        self.store.lookup(id, 1, &keys, Hold::For(u64::MAX), time).unwrap();
    }

    /// Segments that were used again.
    pub(crate) fn laps(&self) -> u64 {
        self.store.stats().reclaimed
    }

    /// One bit of the medium flips: in the front, in some summary, or anywhere.
    pub(crate) fn flip(&mut self) {
        let (segment, front) = (64 * 1024, 128 * 1024);
        let total = self.drive.medium().len();
        let byte = match self.rng.u8(..4) {
            0 => self.rng.usize(..front),
            1 => self.rng.usize(..total),
            _ => {
                let segments = (total - front) / segment;
                let end = front + (1 + self.rng.usize(..segments)) * segment;
                end - 1 - self.rng.usize(..5 * 4096)
            }
        };
        // Both supers together are another scenario's.
        if !(32 * 1024..36 * 1024).contains(&byte) {
            self.drive.medium()[byte] ^= 1 << self.rng.u8(..8);
        }
    }

    pub(crate) fn adopt_spaces(&mut self) {
        for space in 0..SPACES {
            self.adopt_space(space);
        }
    }

    /// Ticks until a request that the world knows nothing of is answered OK.
    pub(crate) fn expect_reply(&mut self, user: u64) {
        self.asked.insert(user, Asked::Create { space: SPACES - 1 });
        self.run_until("reply", |world| !world.asked.contains_key(&user));
    }

    /// One random request.
    pub(crate) fn act(&mut self, keys: u64) {
        let (space, key) = (self.rng.u16(..SPACES), self.rng.u64(..keys));
        match self.rng.u8(..100) {
            0..45 => {
                let durable = self.rng.u8(..6) == 0;
                self.put(space, key, durable);
            }
            45..80 => {
                if self.store.get_room() > 0 {
                    self.get(space, key);
                }
            }
            80..90 if self.drops => {
                let durable = self.rng.bool();
                self.drop_key(space, key, durable);
            }
            80..99 => self.lookup(space, key),
            _ => {
                if self.drops && self.rng.u8(..20) == 0 {
                    self.clear(space);
                } else if self.rng.u8(..4) == 0 {
                    self.store.owner_gone(1);
                }
            }
        }
    }
}
