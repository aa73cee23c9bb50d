//! The course of a world: rest, cuts, starts.

use kvrail_store::{Expect, FoundKeys, Hold, Members, Phase, Start, Store, Verb};

use crate::drive::Cut;
use crate::ledger::Ledger;
use crate::world::{Asked, Flight, SPACES, VOLUME, World};

impl World {
    /// Ticks until it holds.
    pub(crate) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.tick();
        }
        let (phase, left) = (self.store.phase(), self.asked.len());
        panic!("{what}: not within 200000 ticks; {phase:?}, {left} not answered");
    }

    /// Lets everything come to rest on stable media.
    pub(crate) fn settle(&mut self) {
        assert!(self.settle_before(u64::MAX), "writes are counted in u64");
    }

    /// As `settle`, unless `writes` writes finish before.
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
        panic!("not at rest within 200000 ticks: {} not answered", self.asked.len());
    }

    /// The process ends, perhaps with the power; a new store is made, not started.
    pub(crate) fn cut(&mut self, cut: Cut) {
        self.reads.clear();
        self.answers.clear();
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
        self.store.set_pools(self.rules.clone());
        self.pool = Self::pool(&self.config);
        self.evicted = 0;
        self.ledger = Ledger::default();
        self.spaces.fill(None);
    }

    /// Starts the store that is there.
    pub(crate) fn open(&mut self) {
        let expect = Expect {
            volume: VOLUME,
            member: 0,
            generation: 1,
            next_generation: 1,
            members: Members::first(1),
        };
        self.open_as(expect);
    }

    pub(crate) fn open_as(&mut self, expect: Expect) {
        self.store.start(Start::Open(expect), self.time());
    }

    pub(crate) fn expect() -> Expect {
        Expect {
            volume: VOLUME,
            member: 0,
            generation: 1,
            next_generation: 1,
            members: Members::first(1),
        }
    }

    /// Opens, and waits until requests are taken.
    pub(crate) fn reopen(&mut self) {
        self.open();
        self.run_until("open", |world| world.store.phase() != Phase::Starting);
        for space in 0..SPACES {
            self.adopt_space(space);
        }
    }

    /// Power fails now and in the next starts, mostly while a durable write is in flight; nothing
    /// durable is lost.
    pub(crate) fn cut_starts(&mut self, starts: u32) {
        self.cut(Cut::Power);
        for _ in 0..starts {
            self.open();
            let mut left = self.rng.u32(..8);
            for _ in 0..400 {
                self.tick();
                let durable = |flight: &Flight| flight.task.verb == Verb::WriteDurable;
                if self.flights.iter().any(durable) {
                    if left == 0 {
                        break;
                    }
                    left -= 1;
                }
            }
            self.cut(Cut::Power);
        }
        self.reopen();
        self.verify();
        assert_eq!(self.store.stats().distrusted, 0, "nothing durable is lost");
    }

    /// Waits for the whole recovery, and gets every key there ever was.
    pub(crate) fn verify(&mut self) {
        self.run_until("recovered", |world| world.store.phase() == Phase::Serving);
        for (space, key) in self.model.keys() {
            while !self.may_get() {
                self.tick();
            }
            self.get(space, key);
            self.tick();
        }
        self.run_until("verified", |world| world.asked.is_empty());
        self.store.audit();
        assert_eq!(self.store.stats().holds_broken, 0, "each hold is kept");
        self.check_misses();
    }

    /// The misses of each reason are all misses.
    fn check_misses(&self) {
        let stats = self.store.stats();
        let of = |sum: &str| {
            let parts = stats.each().filter(|(part, _)| part.name.starts_with(&format!("{sum}_")));
            parts.map(|(_, count)| *count).sum::<u64>()
        };
        assert_eq!((of("misses"), of("lookup_misses")), (stats.misses, stats.lookup_misses));
        assert_eq!(of("absent_estimated"), stats.absent_estimated);
        let absent = stats.misses_absent + stats.lookup_misses_absent;
        assert_eq!(stats.absent_estimated, absent, "the sample of a small store has all keys");
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
    pub(crate) fn hold(&mut self, space: u16, first: u64, count: u64) -> FoundKeys {
        let keys: Vec<u64> = (first..first + count).map(|key| Self::key(key).lo()).collect();
        let (id, time) = (self.id(space), self.time());
        self.store.lookup(id, 1, &keys, Hold::For(u64::MAX), time).unwrap()
    }

    /// A client touches a block that it has used elsewhere.
    pub(crate) fn touch(&mut self, space: u16, key: u64) {
        let (id, time, lows) = (self.id(space), self.time(), [Self::key(key).lo()]);
        let asked = |store: &Store| (store.stats().lookup_hits, store.stats().lookup_misses);
        let before = asked(&self.store);
        let found = self.store.lookup(id, 1, &lows, Hold::Touch, time).unwrap();
        assert_eq!((found.found, found.held, asked(&self.store)), (1, 0, before));
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

    /// Ticks until a request without a place in the model is answered OK.
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
                if self.may_get() {
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
