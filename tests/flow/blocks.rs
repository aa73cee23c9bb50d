//! Blocks by key, through a real sidecar: any length, verified, found again after a kill.

use kvrail_client::{
    Absent, Arena, BlockKey, BlockNote, BlockRequest, Client, Completed, Found, Identity, Lookup,
    LookupExtent, Namespace, Pages, Queue, Status,
};
use kvrail_counters::MemberCounters;

use crate::rig::{LONG, Place, Sidecar, eventually, write_records};

/// A client with all that it needs for one namespace.
struct Cache {
    client: Client,
    arena: Arena,
    queue: Queue,
    space: Namespace,
}

impl Cache {
    fn open(sidecar: &Sidecar, name: &str) -> Self {
        let client = sidecar.attach();
        let identity = Identity::new([("model", "test"), ("dtype", "bf16")]).unwrap();
        let space = client.store("kv").unwrap().namespace(name, &identity).unwrap();
        let arena = client.create_arena(260 << 20, Pages::Base).unwrap();
        let queue = client.open_queue(64).unwrap();
        Self { client, arena, queue, space }
    }

    fn end(&mut self, request: BlockRequest) -> Completed {
        self.queue.submit(request).unwrap();
        self.queue.wait(LONG).unwrap().expect("one is in flight")
    }

    fn put(&mut self, key: BlockKey, bytes: usize) -> Completed {
        let mut lease = self.arena.lease(bytes).unwrap();
        fill(key, &mut lease);
        self.end(BlockRequest::put(&self.space, key, lease))
    }

    /// Gets into memory with guard bytes behind the block.
    fn get(&mut self, key: BlockKey, room: usize) -> Completed {
        let mut lease = self.arena.lease(room).unwrap();
        lease.fill(0x5a);
        let done = self.end(BlockRequest::get(&self.space, key, lease));
        let lease = done.lease.as_ref().expect("the sidecar lives");
        if done.status == Status::Ok {
            let length = usize::try_from(done.bytes).unwrap();
            let mut right = vec![0; length];
            fill(key, &mut right);
            assert!(lease[..length] == right[..], "{key}: other bytes");
            assert!(lease[length..].iter().all(|byte| *byte == 0x5a), "{key}: bytes behind it");
        } else {
            assert!(lease.iter().all(|byte| *byte == 0x5a), "{key}: {}", done.status);
        }
        done
    }

    fn lookup(&mut self, keys: &[BlockKey]) -> Found {
        let how = Lookup { extent: LookupExtent::All, ..Lookup::default() };
        self.queue.lookup(&self.space, keys, &how).unwrap()
    }
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

/// Content of the block of a key: no two blocks, and no two places in one, are alike.
fn fill(key: BlockKey, bytes: &mut [u8]) {
    let mut state = u64::try_from(key.bits() >> 64).expect("half of it") | 1;
    for piece in bytes.chunks_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        piece.copy_from_slice(&state.to_le_bytes()[..piece.len()]);
    }
}

/// 16 tokens of fp8 and of bf16 MLA among them.
const LENGTHS: [usize; 12] =
    [1, 7, 511, 512, 513, 4095, 4096, 4097, 65_536, 640_256, 1_124_352, 769_088];

/// A cache's hits and misses are those of lookups: engines get only blocks that are there.
#[test]
fn a_lookup_is_one_request_and_its_keys_are_counted() {
    let place = Place::with_store(2, 64 << 20);
    let sidecar = Sidecar::start(&place);
    let mut cache = Cache::open(&sidecar, "counted");
    let accepted = || {
        let report = sidecar.status();
        let own = report.sessions.iter().find(|session| session.queues > 0);
        own.expect("ours").counters.accepted.unwrap_or(0)
    };
    let before = accepted();
    let keys: Vec<_> = (0..1000).map(key).collect();
    assert_eq!(cache.lookup(&keys).prefix, 0);
    assert_eq!(accepted() - before, 1);
    let counters = || {
        let mut all = MemberCounters::default();
        sidecar.status().shards.iter().for_each(|shard| all.add(&shard.counters));
        all.store
    };
    eventually("all are counted", || counters().lookup_misses == Some(1000));
    assert_eq!((counters().lookup_hits, counters().misses), (Some(0), Some(0)));
    drop(cache);
    sidecar.stop();
}

#[test]
fn blocks_of_any_length_come_back_as_they_were_and_outlive_a_kill() {
    let place = Place::with_store_of(1, 1700 << 20, &["--segment", "256MiB"]);
    let sidecar = Sidecar::start(&place);
    let mut cache = Cache::open(&sidecar, "any length");
    let long = [(64 << 20) + 1, 64 << 20];
    let lengths: Vec<usize> = LENGTHS.into_iter().chain(long).collect();
    for (number, &bytes) in (0..).zip(&lengths) {
        let missing = cache.get(key(number), 4096);
        assert_eq!(missing.status, Status::Miss, "{bytes}");
        let put = cache.put(key(number), bytes);
        assert_eq!((put.status, put.note), (Status::Ok, BlockNote::None), "{bytes}");
        assert_eq!(put.bytes, bytes as u64);
        let again = cache.put(key(number), bytes);
        assert_eq!((again.status, again.note), (Status::Ok, BlockNote::Present), "{bytes}");
        for room in [bytes, bytes + 1, bytes + 5000] {
            let got = cache.get(key(number), room);
            assert_eq!((got.status, got.bytes), (Status::Ok, bytes as u64), "{bytes} in {room}");
        }
        if bytes > 1 {
            let small = cache.get(key(number), bytes - 1);
            assert_eq!((small.status, small.bytes), (Status::TooSmall, bytes as u64));
        }
    }
    let keys: Vec<_> = (0..2000).map(key).collect();
    let found = cache.lookup(&keys);
    assert_eq!(found.prefix, lengths.len());
    assert_eq!(found.there.iter().filter(|there| **there).count(), lengths.len());

    write_records(&sidecar);
    sidecar.kill();
    let sidecar = Sidecar::start(&place);
    let mut cache = Cache::open(&sidecar, "any length");
    for (number, &bytes) in (0..).zip(&lengths) {
        let got = cache.get(key(number), bytes);
        assert_eq!((got.status, got.bytes), (Status::Ok, bytes as u64), "{bytes} after a kill");
    }
    assert_eq!(cache.queue.verified().reread, 0, "no bytes were wrong");
    let usage = cache.space.usage().unwrap();
    assert_eq!(usage.blocks, lengths.len() as u64);
    drop(cache);
    sidecar.stop();
}

#[test]
fn drops_and_clears_are_seen_by_everybody() {
    let place = Place::with_store(2, 256 << 20);
    let sidecar = Sidecar::start(&place);
    let mut one = Cache::open(&sidecar, "shared");
    let mut other = Cache::open(&sidecar, "shared");
    for number in 0..40 {
        assert_eq!(one.put(key(number), 5000).status, Status::Ok);
    }
    assert_eq!(other.get(key(7), 5000).status, Status::Ok);
    let dropped = BlockRequest::drop_block(&other.space, key(7));
    assert_eq!(other.end(dropped).status, Status::Ok);
    assert_eq!(one.get(key(7), 5000).status, Status::Miss);
    let dropped = BlockRequest::drop_block(&one.space, key(7));
    assert_eq!(one.end(dropped).status, Status::Miss);
    // The same key may have other bytes now.
    assert_eq!(one.put(key(7), 6000).status, Status::Ok);
    assert_eq!(other.get(key(7), 6000).bytes, 6000);

    one.space.clear().unwrap();
    let stale = other.get(key(3), 5000);
    assert_eq!((stale.status, stale.note), (Status::Miss, BlockNote::Stale));
    other.space.refresh().unwrap();
    assert_eq!(other.lookup(&[key(3)]).prefix, 0);
    assert_eq!(other.put(key(3), 5000).note, BlockNote::None);
    assert_eq!(one.get(key(3), 5000).status, Status::Ok);

    // Another opening of the same client knows the blocks of the first one.
    let twin = one.client.store("kv").unwrap().open("shared", one.space.identity(), Absent::Fail);
    let twin = std::mem::replace(&mut one.space, twin.unwrap());
    twin.clear().unwrap();
    assert_eq!(one.put(key(9), 5000).note, BlockNote::None);
    other.space.refresh().unwrap();
    for (cache, name) in [(&mut one, "the client that put"), (&mut other, "another")] {
        assert_eq!(cache.get(key(9), 5000).status, Status::Ok, "{name}");
    }
    assert_eq!(one.client.store("kv").unwrap().namespaces().unwrap().len(), 1);
    drop((one, other));
    sidecar.stop();
}
