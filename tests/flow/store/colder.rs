//! New chains, while the residents are read again and again: a chain is declined as a whole, and
//! one that returns often enough is taken.

use kvrail_client::{
    Arena, BlockKey, BlockNote, BlockRequest, Chain, Completed, Decline, Identity, Lookup,
    LookupExtent, Namespace, Pages, Queue, Status,
};

use super::{counter, small_store};
use crate::rig::{LONG, Sidecar, eventually, kvrail, run};

const BYTES: usize = 8000;
const MEMBER: u64 = 40 << 20;
/// Blocks of a chain.
const CHAIN: u64 = 10;
/// Residents that are read between two chains.
const READ: usize = 40;

struct Engine {
    arena: Arena,
    queue: Queue,
    space: Namespace,
    /// Blocks that are read again and again, and the number of reads.
    residents: Vec<u64>,
    reads: usize,
}

impl Engine {
    fn open(sidecar: &Sidecar) -> Self {
        let client = sidecar.attach();
        let identity = Identity::new([("model", "test")]).unwrap();
        let space = client.store("kv").unwrap().namespace("main", &identity).unwrap();
        let arena = client.create_arena(1 << 20, Pages::Base).unwrap();
        let queue = client.open_queue(64).unwrap();
        Self { arena, queue, space, residents: Vec::new(), reads: 0 }
    }

    fn end(&mut self, request: BlockRequest) -> Completed {
        self.queue.submit(request).unwrap();
        self.queue.wait(LONG).unwrap().expect("one is in flight")
    }

    /// Puts a block, again while the store is only busy.
    fn put(&mut self, number: u64, chain: Chain) -> Completed {
        let mut answer = None;
        eventually("the store is not busy", || {
            let lease = self.arena.lease(BYTES).unwrap();
            let put = BlockRequest::put(&self.space, key(number), lease);
            let done = self.end(put.depth(3).chain(chain));
            let busy = done.note == BlockNote::Declined(Decline::Busy);
            answer = Some(done);
            !busy
        });
        answer.expect("put once at least")
    }

    fn get(&mut self, number: u64) -> Status {
        let lease = self.arena.lease(BYTES).unwrap();
        self.end(BlockRequest::get(&self.space, key(number), lease)).status
    }

    /// Fills the store, and reads its blocks often.
    fn settle(&mut self, sidecar: &Sidecar) {
        let mut next = 0;
        while counter(sidecar, "reclaimed") == 0 {
            for _ in 0..100 {
                let done = self.put(next, Chain::Extends);
                assert_eq!(done.status, Status::Ok, "{done:?}");
                next += 1;
            }
        }
        // Reclaim still makes room for the last puts while the first reads find their blocks.
        let mut residents: Vec<u64> = (0..next).collect();
        for _ in 0..4 {
            residents.retain(|number| self.get(*number) == Status::Ok);
        }
        self.residents = residents;
    }

    /// Reads this number of residents in turn: all are there.
    fn read(&mut self, count: usize) {
        for _ in 0..count {
            let number = self.residents[self.reads % self.residents.len()];
            assert_eq!(self.get(number), Status::Ok, "a resident went: {number}");
            self.reads += 1;
        }
    }

    /// Puts the missing blocks of a chain, as an engine does after a lookup; returns how many were
    /// declined.
    fn offer(&mut self, first: u64) -> u64 {
        let keys: Vec<BlockKey> = (first..first + CHAIN).map(key).collect();
        let how = Lookup { extent: LookupExtent::Prefix, ..Lookup::default() };
        let found = self.queue.lookup(&self.space, &keys, &how).unwrap();
        let missing = first + found.prefix as u64..first + CHAIN;
        let declined = missing.filter(|number| {
            let done = self.put(*number, found.chain());
            match (done.status, done.note) {
                (Status::Ok, _) => false,
                (Status::Declined, BlockNote::Declined(Decline::Colder)) => true,
                other => panic!("put of {number}: {other:?}"),
            }
        });
        declined.count() as u64
    }
}

fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

#[test]
fn new_chains_are_declined_as_a_whole_and_one_that_keeps_coming_gets_in() {
    let place = small_store(MEMBER);
    let sidecar = Sidecar::start(&place);
    let mut engine = Engine::open(&sidecar);
    engine.settle(&sidecar);

    let mut declined = Vec::new();
    for chain in 0..40 {
        declined.push(engine.offer(1 << 32 | chain << 8));
        engine.read(READ);
    }
    let whole = declined.iter().filter(|count| **count == CHAIN).count();
    assert!(whole >= 30, "declined of each chain: {declined:?}");

    let mut offers = 0;
    while engine.offer(1 << 40) > 0 {
        offers += 1;
        assert!(offers < 400, "it keeps coming, and is declined");
        engine.read(READ);
    }
    assert!((1 << 40..(1 << 40) + CHAIN).all(|number| engine.get(number) == Status::Ok));
    engine.read(engine.residents.len());

    // A block without a hint is taken at once.
    assert_eq!(engine.put(1 << 41, Chain::Extends).status, Status::Ok);

    eventually("the same in the table and in the counters", || {
        let colder = counter(&sidecar, "declined_colder");
        let mut status = kvrail();
        let stdout = run(status.args(["store", "status", "--socket"]).arg(sidecar.socket())).stdout;
        colder >= 30 * CHAIN && stdout.contains(&format!("{colder} colder"))
    });
    drop(engine);
    sidecar.stop();
}
