//! A store on a null device: what puts, gets and lookups cost without storage behind them.
//!
//! A read from a null device leaves memory as it is, and all blocks have the same bytes. So a block
//! is got into memory that holds them, and its check, which is of its key too, is right.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use kvrail_client::{
    Arena, BlockKey, BlockNote, BlockRequest, Client, Completed, Identity, Lease, Lookup,
    Namespace, Pages, Queue, Status,
};

use crate::lanes::{BATCH, BURST_DEPTH, KeyedOperation};
use crate::port::LOOKUP_KEYS;

/// Bytes of a block.
const BLOCK_BYTES: usize = 4096;
/// Blocks that are put before they are dropped: far fewer than the store's index has places.
const PUTS_MAX: u64 = 100_000;
/// Looks that find nothing before the lane is taken for hung: tens of seconds.
const LOOKS_MAX: u64 = 1 << 32;

/// A namespace of a store on a null device, with blocks in it.
#[derive(Debug)]
pub(super) struct NullStore {
    queue: Queue,
    space: Namespace,
    /// Holds the leases' memory.
    _arena: Arena,
    /// Of each block that gets ask for its memory, while nothing is in flight.
    leases: Vec<Option<Lease>>,
    /// Blocks that are there from the beginning: those with memory, and as many as a lookup needs.
    keys: Vec<BlockKey>,
    /// Blocks ever put, and those of them that are dropped or are to stay.
    put: u64,
    settled: u64,
    done: Vec<Completed>,
}

/// The key of a block.
fn key(number: u64) -> BlockKey {
    BlockKey::of(&number.to_le_bytes())
}

impl NullStore {
    /// Makes a namespace and puts its blocks.
    ///
    /// # Errors
    /// The sidecar's refusal.
    pub(super) fn new(client: &Client, name: &str) -> Result<Self> {
        let depth = BURST_DEPTH as usize;
        let identity = Identity::new([("made by", "kvrail bench")])?;
        let space = client.store(name)?.namespace("bench", &identity)?;
        let arena = client.create_arena(depth * BLOCK_BYTES, Pages::Auto)?;
        let leases = (0..depth).map(|_| arena.lease(BLOCK_BYTES).map(Some));
        let leases = leases.collect::<Result<Vec<_>, _>>()?;
        let (queue, done) = (client.open_queue(depth)?, Vec::with_capacity(depth));
        let keys = (0..u64::from(LOOKUP_KEYS)).map(key).collect();
        let mut store =
            Self { queue, space, _arena: arena, leases, keys, put: 0, settled: 0, done };
        store.run(u64::from(LOOKUP_KEYS), |store, place, number| {
            store.put += 1;
            let lease = store.lease(place)?;
            Ok(BlockRequest::put(&store.space, key(number), lease))
        })?;
        store.settled = store.put;
        Ok(store)
    }

    /// Operations a second, keys in the case of lookups.
    ///
    /// # Errors
    /// When the lane breaks down or an answer is wrong.
    pub(super) fn rate(&mut self, what: KeyedOperation, time: Duration) -> Result<f64> {
        let (mut count, mut spent) = (0, Duration::ZERO);
        while spent < time || count == 0 {
            let begun = Instant::now();
            count += match what {
                KeyedOperation::Get => self.gets()?,
                KeyedOperation::Put => self.puts(time.saturating_sub(spent))?,
                KeyedOperation::Lookup => self.lookup()?,
            };
            spent += begun.elapsed();
            if what == KeyedOperation::Put {
                self.drop_new()?;
            }
        }
        Ok(count as f64 / spent.as_secs_f64())
    }

    fn gets(&mut self) -> Result<u64> {
        self.run(u64::from(BURST_DEPTH) * 16, |store, place, _| {
            let lease = store.lease(place)?;
            Ok(BlockRequest::get(&store.space, store.keys[place], lease))
        })
    }

    /// New blocks.
    fn puts(&mut self, time: Duration) -> Result<u64> {
        let (until, from) = (Instant::now() + time, self.put);
        while self.put == from || (self.put - from < PUTS_MAX && Instant::now() < until) {
            self.run(u64::from(BURST_DEPTH) * 16, |store, place, _| {
                let lease = store.lease(place)?;
                let key = BlockKey::from_bits(u128::from(store.put).wrapping_mul(ODD));
                store.put += 1;
                Ok(BlockRequest::put(&store.space, key, lease))
            })?;
        }
        Ok(self.put - from)
    }

    fn drop_new(&mut self) -> Result<()> {
        let first = std::mem::replace(&mut self.settled, self.put);
        self.run(self.put - first, |store, _, number| {
            let key = BlockKey::from_bits(u128::from(first + number).wrapping_mul(ODD));
            Ok(BlockRequest::drop_block(&store.space, key))
        })?;
        Ok(())
    }

    fn lookup(&mut self) -> Result<u64> {
        let found = self.queue.lookup(&self.space, &self.keys, &Lookup::default())?;
        let all = self.keys.len();
        ensure!(found.prefix == all, "a lookup found {} of {all} keys", found.prefix);
        Ok(all as u64)
    }

    fn lease(&mut self, place: usize) -> Result<Lease> {
        self.leases[place].take().context("the memory of a block that is not in flight")
    }

    /// Requests, `BATCH` to a publication, each from a place of its own while it is in flight.
    fn run(
        &mut self,
        count: u64,
        mut make: impl FnMut(&mut Self, usize, u64) -> Result<BlockRequest>,
    ) -> Result<u64> {
        let (depth, batch) = (BURST_DEPTH as usize, u64::from(BATCH));
        let mut free: Vec<usize> = (0..depth).rev().collect();
        let (mut begun, mut ended) = (0, 0);
        while ended < count {
            while begun < count && free.len() >= BATCH as usize {
                let end = count.min(begun + batch);
                for number in begun..end {
                    let place = free.pop().context("places for a batch")?;
                    let request = make(self, place, number)?.tag(place as u64);
                    let staged = self.queue.stage(request);
                    staged.map_err(|refused| anyhow!("the lane refused: {}", refused.reason))?;
                }
                begun = end;
                self.queue.publish();
            }
            ended += self.reap(&mut free)?;
        }
        Ok(ended)
    }

    fn reap(&mut self, free: &mut Vec<usize>) -> Result<u64> {
        for _ in 0..LOOKS_MAX {
            if self.queue.poll(&mut self.done) > 0 {
                break;
            }
        }
        ensure!(!self.done.is_empty(), "the lane to the store on a null device hangs");
        let ended = self.done.len() as u64;
        for done in self.done.drain(..) {
            let well = done.status == Status::Ok && done.note == BlockNote::None;
            ensure!(well, "a request ended {} ({:?})", done.status, done.note);
            let place = usize::try_from(done.tag)?;
            if done.lease.is_some() {
                self.leases[place] = done.lease;
            }
            free.push(place);
        }
        Ok(ended)
    }
}

/// Spreads numbers over all bits of a key.
const ODD: u128 = 0x2d99_787a_4b1f_4a4c_9e37_79b9_7f4a_7c15;
