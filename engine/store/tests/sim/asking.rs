//! Requests of the clients of a world, and their checks of the answers.

use crc_fast::{CrcAlgorithm, checksum};
use kvrail_store::{
    Begun, Chain, DeclineReason, DropKey, Durability, Extent, Get, Got, Hint, Hold, Phase,
    PlaceKind, Priority, Put, Reply, Status, check,
};

use crate::model::{Now, Value};
use crate::world::{Asked, GUARD, Space, World};

impl World {
    /// Puts a block of a random length, with a hint that follows from its key; at times in parts.
    pub(crate) fn put(&mut self, space: u16, key: u64, durable: bool) -> Option<Status> {
        let length = match self.rng.u8(..8) {
            0 => self.rng.u32(1..=self.largest),
            1 => 1,
            2 => self.config.logical_block * self.rng.u32(1..4),
            _ => self.rng.u32(1..=2048),
        };
        let parts = if self.rng.u8(..8) == 0 { 3 } else { 1 };
        let soon = self.time().unix + 2;
        self.hint = match key % 8 {
            0 => Hint { priority: Priority::High, until: soon },
            1 => Hint { priority: Priority::High, until: 0 },
            2 => Hint { priority: Priority::Low, until: 0 },
            3 => Hint { priority: Priority::Normal, until: soon },
            _ => Hint::default(),
        };
        let status = self.put_length(space, key, durable, length, parts);
        self.hint = Hint::default();
        status
    }

    /// Puts a block of that length in `parts` parts. Returns the status of an immediate answer.
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

    /// A key is put into the caller's memory.
    pub(crate) fn note_offered(&mut self, space: u16, key: u64) {
        let Space { id, .. } = self.spaces[usize::from(space)].expect("it is there");
        self.store.note_offered(id, Self::key(key));
    }

    /// Puts the first `some` of `parts` parts; the rest never comes.
    pub(crate) fn put_partly(&mut self, space: u16, key: u64, length: u32, parts: u32, some: u32) {
        assert_eq!(self.put_some((space, key), false, length, parts, some), None);
    }

    pub(crate) fn put_some(
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
            let user = self.user(Asked::Put { space, key, value, bytes: part, durable, uid });
            let put = Put {
                user,
                owner: self.rng.u16(1..2),
                space: id,
                key: Self::key(key),
                length,
                at,
                bytes: size,
                check,
                chain: Chain::Extends,
                depth: u16::try_from(key % 20).unwrap(),
                hint: self.hint,
                durability: if durable { Durability::Durable } else { Durability::Soon },
                metadata: &Self::metadata(key),
            };
            let begun = self.store.put(&put, self.time());
            if begun == Begun::Taken && at == 0 {
                self.evictions();
                let whole = self.store.phase() == Phase::Serving;
                self.model.putting(space, key, value, whole);
            }
            if begun == Begun::Confirms {
                let there = self.model.expect(space, key).now;
                self.asked.insert(user, Asked::Confirm { space, key, there });
                self.model.present(space, key);
                return None;
            }
            if let Begun::Done(answer) = begun {
                self.asked.remove(&user);
                self.note(answer.length.into());
                if answer.status == Status::Present {
                    self.model.present(space, key);
                    if durable {
                        let there = self.model.expect(space, key).now;
                        self.confirmed((space, key), there, answer.check);
                    }
                }
                return Some(answer.status);
            }
            at += size;
        }
        None
    }

    pub(crate) fn metadata(key: u64) -> Vec<u8> {
        vec![(key % 251) as u8; (key * 37 % 1025) as usize]
    }

    pub(crate) fn get(&mut self, space: u16, key: u64) -> Option<Status> {
        let Space { id, uid } = self.spaces[usize::from(space)]?;
        let expected = self.model.expect(space, key);
        let capacity = u32::try_from(self.config.segment_bytes).unwrap();
        let now = expected.now;
        let asked = Asked::Get { space, key, memory: Vec::new(), expected, uid };
        let user = self.user(asked);
        let extent = Extent::Whole { capacity };
        let answer = match self.store.get(&Get { space: id, key: Self::key(key), extent }) {
            Got::Read(reading) => {
                self.begin_read(user, reading);
                return None;
            }
            Got::Done(answer) => answer,
        };
        self.asked.remove(&user);
        match answer.status {
            Status::Miss => {
                self.evictions();
                self.model.missed(space, key, now, true);
            }
            Status::Warming => self.model.missed(space, key, now, false),
            other => assert!(matches!(other, Status::Declined(_)), "{other:?}"),
        }
        Some(answer.status)
    }

    pub(crate) fn drop_key(&mut self, space: u16, key: u64, durable: bool) {
        self.drop_only(space, key, durable, None);
    }

    /// Drops a key if its block has this check.
    pub(crate) fn drop_only(&mut self, space: u16, key: u64, durable: bool, only: Option<u64>) {
        let Some(Space { id, .. }) = self.spaces[usize::from(space)] else { return };
        if !self.store.has_place(2, PlaceKind::Drop) {
            return;
        }
        let user = self.user(Asked::Drop { space, key, before: Vec::new(), durable });
        let durability = if durable { Durability::Durable } else { Durability::Soon };
        let drop = DropKey { user, owner: 2, space: id, key: Self::key(key), only, durability };
        match self.store.drop_key(&drop, self.time()) {
            Begun::Taken | Begun::Confirms => {
                let before = self.model.drop_begins(space, key);
                self.asked.insert(user, Asked::Drop { space, key, before, durable });
            }
            Begun::Done(answer) => {
                self.asked.remove(&user);
                let refused = Status::Declined(DeclineReason::Refused);
                assert_eq!(answer.status, refused, "a drop is not taken");
            }
        }
    }

    pub(crate) fn clear(&mut self, space: u16) {
        let Some(Space { id, .. }) = self.spaces[usize::from(space)] else { return };
        let uid = self.store.uid_mark() + 1 + self.rng.u64(..1 << 32);
        let user = self.user(Asked::Clear { space });
        let time = self.time();
        match self.store.clear_space((user, 3), id, uid, time) {
            Begun::Taken | Begun::Confirms => self.model.clearing(space),
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
            let gone = matches!(expected.now, Now::Nothing | Now::Absent);
            assert!(!there || !gone, "key {} is found", first + bit);
        }
        self.note(found.found);
        if self.rng.u8(..8) == 0 {
            self.store.release(id, owner, keys[0]);
        }
    }

    pub(crate) fn replies(&mut self) {
        while let Some(reply) = self.next_reply() {
            let asked = self.asked.remove(&reply.user).expect("one reply for each request");
            self.note(reply.answer.check);
            self.reply(&reply, asked);
        }
    }

    pub(crate) fn reply(&mut self, reply: &Reply, asked: Asked) {
        let status = reply.answer.status;
        match asked {
            Asked::Put { space, key, value, durable, uid, .. } => match status {
                Status::Ok => {
                    self.ledger.put(uid, key);
                    let kept = durable && !self.clears(space);
                    self.model.put(space, key, value, kept);
                }
                Status::Part => {}
                Status::Dropped | Status::Failed(_) => self.model.abandoned(space, key, value),
                Status::Declined(_) => self.model.declined(space, key, value),
                other => panic!("{other:?}"),
            },
            Asked::Confirm { space, key, there } => match status {
                Status::Present => self.confirmed((space, key), there, reply.answer.check),
                other => assert!(matches!(other, Status::Declined(_)), "{other:?}"),
            },
            Asked::Get { space, key, memory, expected, uid } => {
                self.evictions();
                if status == Status::Ok {
                    let verified = self.verified((space, key), uid, expected.now, &memory, reply);
                    if let Some(bytes) = verified {
                        self.model.got(space, key, &expected, bytes);
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

    /// A durable put is answered PRESENT, with this check of what is there.
    fn confirmed(&mut self, (space, key): (u16, u64), there: Now, sum: u64) {
        let Some(Space { uid, .. }) = self.spaces[usize::from(space)] else { return };
        if self.clears(space) || self.lying {
            return;
        }
        let is_it = |value: Value| {
            let crc = checksum(CrcAlgorithm::Crc64Nvme, &value.bytes());
            check(crc, uid, Self::key(key), value.length) == sum
        };
        self.model.confirmed((space, key), there, is_it);
    }

    /// Whether a namespace is being cleared: what is put meanwhile may go with the rest.
    fn clears(&self, space: u16) -> bool {
        let mut all = self.asked.values();
        all.any(|asked| matches!(asked, Asked::Clear { space: it } if *it == space))
    }

    /// A get is answered OK: the client verifies before it believes. The bytes to believe.
    pub(crate) fn verified<'a>(
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
        let same = self.spaces[usize::from(space)].is_some_and(|space| space.uid == uid);
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

    /// A client's report of a block with a wrong check.
    pub(crate) fn report(&mut self, space: u16, key: u64, check: u64) {
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
            Begun::Taken | Begun::Confirms => {
                self.model.drop_begins(space, key);
            }
            Begun::Done(_) => {
                self.asked.remove(&user);
            }
        }
    }
}
