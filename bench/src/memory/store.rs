//! Blocks of a store, those that lie in its memory tier and those that were never asked for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use kvrail_client::{
    Arena, BlockKey, BlockRequest, Client, Completed, Identity, Lookup, LookupExtent, Namespace,
    Pages, Queue, Recency, Status,
};
use uuid::Uuid;

/// Namespaces whose puts are acknowledged from memory begin so, where the sidecar is configured.
pub const LATE_NAMES: &str = "late-bench-";
/// Time for one block, and for all to come into memory.
const LONG: Duration = Duration::from_secs(30);
/// Blocks that a lookup brings into memory at once.
const FETCHED_AT_ONCE: usize = 64;
/// What a drive has to read them.
const LOOK: Duration = Duration::from_millis(2);
/// How often all blocks are asked to come in: one that then has not found no place.
const HEATED_MAX: u32 = 8;
/// After it no block is on its way into memory.
const SETTLE: Duration = Duration::from_millis(50);
/// Bytes of first gets in each round: drives are slower than memory.
const COLD_BYTES_MAX: u64 = 16 << 20;
/// Puts that are in flight at once where more than one is.
pub(super) const AT_ONCE: usize = 8;
/// Bytes of puts in each round, but no fewer than are in flight. All are dropped behind them.
const PUT_BYTES_MAX: u64 = 16 << 20;
/// The set of blocks that are put anew: no hot ones, and of no round.
const LATE_SET: u32 = u32::MAX;

/// A store whose blocks come into a memory tier.
#[derive(Debug)]
pub struct TieredStore {
    /// A session of its sidecar.
    pub client: Client,
    /// Its name.
    pub name: String,
}

/// What a comparison of bytes found.
#[derive(Debug, Default)]
pub(crate) struct CheckedBlocks {
    /// Bytes that were compared.
    pub(crate) bytes: u64,
    /// Blocks with other bytes than were put.
    pub(crate) wrong: u64,
}

impl CheckedBlocks {
    pub(crate) fn add(&mut self, more: &Self) {
        self.bytes += more.bytes;
        self.wrong += more.wrong;
    }
}

/// A client with its blocks in the store.
pub(super) struct HotStore<'a> {
    tiered: &'a TieredStore,
    queue: Queue,
    arena: Arena,
    space: Namespace,
    /// Its puts are acknowledged from memory, if the sidecar does that.
    late: Namespace,
    writes_late: bool,
    block_bytes: usize,
    hot: Vec<Block>,
    /// Of each round.
    cold: Vec<Vec<Block>>,
}

/// When a put is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PutWay {
    Written,
    Late,
}

/// A block, and what its bytes are made of.
#[derive(Clone, Copy, Debug)]
struct Block {
    key: BlockKey,
    seed: u64,
}

impl Block {
    /// Blocks of a set, which no other set has.
    fn set(set: u32, count: u64) -> Vec<Self> {
        let seeds = (0..count).map(|at| u64::from(set) << 32 | at);
        seeds.map(|seed| Self { key: BlockKey::of(&seed.to_le_bytes()), seed }).collect()
    }

    fn fill(&self, bytes: &mut [u8]) {
        fastrand::Rng::with_seed(self.seed).fill(bytes);
    }
}

impl<'a> HotStore<'a> {
    /// Opens a namespace for blocks: those to be hot, and for each round those that are got once.
    pub(super) fn open(
        tiered: &'a TieredStore,
        (block_bytes, blocks): (u32, u64),
        rounds: u32,
    ) -> Result<Self> {
        let client = &tiered.client;
        let store = client.store(&tiered.name)?;
        let identity = Identity::new([("made by", "kvrail bench")])?;
        let unique = Uuid::new_v4();
        let space = store.namespace(&format!("bench-{}", unique.simple()), &identity)?;
        let late = store.namespace(&format!("{LATE_NAMES}{}", unique.simple()), &identity)?;
        let bytes = usize::try_from(block_bytes)?;
        let arena = client.create_arena(bytes.next_multiple_of(4096) * AT_ONCE, Pages::Auto)?;
        let queue = client.open_queue(AT_ONCE)?;
        let cold = blocks.min((COLD_BYTES_MAX / u64::from(block_bytes)).max(1));
        let hot = Block::set(0, blocks);
        let cold = (1..=rounds).map(|round| Block::set(round, cold)).collect();
        let mut own = Self {
            tiered,
            queue,
            arena,
            space,
            late,
            writes_late: false,
            block_bytes: bytes,
            hot,
            cold,
        };
        own.writes_late = own.is_late()?;
        Ok(own)
    }

    /// Whether the sidecar acknowledges puts from memory: a block that was put is in its tier.
    fn is_late(&mut self) -> Result<bool> {
        let block = Block::set(LATE_SET, 1)[0];
        self.put(&self.late.clone(), &[block])?;
        let known = self.late.explain(block.key)?;
        self.drop(&self.late.clone(), &block)?;
        Ok(known.in_memory)
    }

    pub(super) fn writes_late(&self) -> bool {
        self.writes_late
    }

    /// Puts blocks, all in flight at once; the time until the last is acknowledged, from when their
    /// bytes lie in the client's memory.
    fn put(&mut self, space: &Namespace, blocks: &[Block]) -> Result<f64> {
        let filled = blocks.iter().map(|block| {
            let mut lease = self.arena.lease(self.block_bytes)?;
            block.fill(&mut lease);
            Ok((block.key, lease))
        });
        let filled = filled.collect::<Result<Vec<_>>>()?;
        let begun = Instant::now();
        for (key, lease) in filled {
            self.submit(BlockRequest::put(space, key, lease))?;
        }
        for _ in blocks {
            let ended = self.next_end()?;
            ensure!(ended.status == Status::Ok, "a put ended with {}", ended.status);
        }
        Ok(begun.elapsed().as_secs_f64())
    }

    fn drop(&mut self, space: &Namespace, block: &Block) -> Result<()> {
        let ended = self.run(BlockRequest::drop_block(space, block.key))?;
        ensure!(ended.status == Status::Ok, "a drop ended with {}", ended.status);
        Ok(())
    }

    /// Puts blocks that are new, with `at_once` in flight, and drops them; the time that as many as
    /// are hot would take.
    pub(super) fn put_new(&mut self, way: PutWay, at_once: usize) -> Result<f64> {
        let count = (PUT_BYTES_MAX / self.block_bytes as u64).max(AT_ONCE as u64);
        let space = if way == PutWay::Late { self.late.clone() } else { self.space.clone() };
        let mut seconds = 0.0;
        for blocks in Block::set(LATE_SET, count).chunks(at_once) {
            seconds += self.put(&space, blocks)?;
            blocks.iter().try_for_each(|block| self.drop(&space, block))?;
        }
        Ok(seconds / count as f64 * self.hot.len() as f64)
    }

    /// Puts all of them.
    pub(super) fn put_all(&mut self) -> Result<()> {
        ensure!(
            self.space.store().reads_from_memory(),
            "{}: this client sees no memory tier; set memory_tier.bytes where the sidecar is \
             started, or leave the arm `memory` out",
            self.tiered.name
        );
        let sets = std::iter::once(&self.hot).chain(&self.cold);
        let space = self.space.clone();
        for blocks in sets.flatten().copied().collect::<Vec<_>>().chunks(AT_ONCE) {
            self.put(&space, blocks)?;
        }
        Ok(())
    }

    fn run(&mut self, request: BlockRequest) -> Result<Completed> {
        self.submit(request)?;
        self.next_end()
    }

    fn submit(&mut self, request: BlockRequest) -> Result<()> {
        self.queue.submit(request).map_err(|refused| anyhow!(refused.reason))?;
        Ok(())
    }

    fn next_end(&mut self) -> Result<Completed> {
        let ended = self.queue.wait(LONG)?;
        ended.with_context(|| format!("a block took longer than {LONG:?}"))
    }

    fn get(&mut self, key: BlockKey) -> Result<Completed> {
        let lease = self.arena.lease(self.block_bytes)?;
        let ended = self.run(BlockRequest::get(&self.space, key, lease))?;
        ensure!(ended.status == Status::Ok, "the get of a block that was put: {}", ended.status);
        Ok(ended)
    }

    /// Gets these blocks; the time, and those that the drive served.
    fn get_all(&mut self, blocks: &[Block]) -> Result<(f64, Vec<u64>)> {
        let begun = Instant::now();
        let mut from_drive = Vec::new();
        for block in blocks {
            if self.get(block.key)?.device_ns > 0 {
                from_drive.push(block.seed);
            }
        }
        Ok((begun.elapsed().as_secs_f64(), from_drive))
    }

    /// Has the blocks come into memory. Returns how many did: of those that share a set of the
    /// directory with others some may find no place, and are not asked for any more.
    pub(super) fn heat(&mut self) -> Result<u64> {
        let how =
            Lookup { extent: LookupExtent::All, recency: Recency::Expected, ..Lookup::default() };
        let wanted = self.hot.len();
        let keys: Vec<_> = self.hot.iter().map(|block| block.key).collect();
        for _ in 0..HEATED_MAX {
            for some in keys.chunks(FETCHED_AT_ONCE) {
                self.queue.lookup(&self.space, some, &how)?;
                std::thread::sleep(LOOK);
            }
            std::thread::sleep(SETTLE);
            if self.get_hot()?.1.is_empty() {
                break;
            }
        }
        loop {
            let (_, from_drive) = self.get_hot()?;
            self.hot.retain(|block| from_drive.binary_search(&block.seed).is_err());
            ensure!(
                self.hot.len() > wanted / 2,
                "the memory tier of {} has no room for {wanted} blocks of {} bytes; give a smaller \
                 --volume-size",
                self.tiered.name,
                self.block_bytes
            );
            if from_drive.is_empty() {
                return Ok(self.hot.len() as u64);
            }
            std::thread::sleep(SETTLE); // what was on its way may have driven others out
        }
    }

    /// Gets every hot block.
    pub(super) fn get_hot(&mut self) -> Result<(f64, Vec<u64>)> {
        let blocks = std::mem::take(&mut self.hot);
        let got = self.get_all(&blocks);
        self.hot = blocks;
        got
    }

    /// Views every hot block; the time, and those that have no view. Not the first time, which
    /// verifies them.
    pub(super) fn view_hot(&mut self) -> (f64, u64) {
        let Self { queue, space, hot, .. } = self;
        let mut view_all = || {
            let begun = Instant::now();
            let views = hot.iter().map(|block| queue.view(space, block.key));
            let missed = views.filter(|view| std::hint::black_box(view).is_none()).count();
            (begun.elapsed().as_secs_f64(), missed as u64)
        };
        view_all();
        view_all()
    }

    /// Gets blocks of this round for the first time; the time that as many as are hot would take.
    pub(super) fn get_cold(&mut self, round: u32) -> Result<f64> {
        let blocks = std::mem::take(&mut self.cold[round as usize]);
        let (seconds, _) = self.get_all(&blocks)?;
        Ok(seconds / blocks.len() as f64 * self.hot.len() as f64)
    }

    /// Compares every byte of the hot blocks.
    pub(super) fn compare(&mut self) -> Result<CheckedBlocks> {
        let mut checked = CheckedBlocks::default();
        let mut expected = vec![0; self.block_bytes];
        for block in self.hot.clone() {
            let ended = self.get(block.key)?;
            let lease = ended.lease.context("a get returns its memory")?;
            block.fill(&mut expected);
            checked.bytes += expected.len() as u64;
            checked.wrong += u64::from(lease[..] != expected[..]);
        }
        Ok(checked)
    }

    pub(super) fn remove(self) -> Result<()> {
        let store = self.space.store();
        store.remove(self.late.name()).context("removing the benchmark's namespace")?;
        store.remove(self.space.name()).context("removing the benchmark's namespace")
    }
}
