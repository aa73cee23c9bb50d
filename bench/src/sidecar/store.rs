//! The way to a sidecar's store. The drivers know places and lengths only; here each place has a
//! key, a new one for each put, so that nothing is there already.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use kvrail_client::{
    BlockKey, BlockNote, BlockRequest, Class, Client, Completed as Ended, Identity, Lookup,
    LookupExtent, Namespace, Status, Store,
};
use uuid::Uuid;

use super::queue::{ClientWait, SlotQueue};
use crate::port::{
    Direction, Done, Fault, KeyedTarget, LOOKUP_KEYS, Operation, Port, PortShape, Target, TurnWait,
    Work,
};

/// Alignment of buffers, in bytes.
const ALIGNMENT: usize = 4096;
/// Of the ring's bytes, in percent, those that puts may write before any block is gone: the rest is
/// what reclaim keeps free.
const KEPT_PERCENT: u64 = 50;
/// The same once the ring has come round: reclaim moves up to 7/8 of each segment, which leaves an
/// eighth to puts, less what it keeps free.
const ROUND_PERCENT: u64 = 10;

/// A store of an attached sidecar, with a namespace of the benchmark's own.
#[derive(Debug)]
pub struct StoreTarget {
    client: Client,
    store: Store,
    space: Namespace,
    /// Part of every key.
    nonce: u64,
    mode: String,
    wait: ClientWait,
    /// All that puts wrote so far.
    put_bytes: AtomicU64,
    /// Blocks of one length at a time: others would be moved when the ring comes round to them.
    area: Mutex<Arc<StoreArea>>,
}

/// Blocks of one length.
#[derive(Debug, Default)]
struct StoreArea {
    block_bytes: u32,
    /// The value of `put_bytes` before the first of them.
    begun: u64,
    /// For each block what `put_bytes` was when it was put last: 0 before that. Makes its key.
    puts: Box<[AtomicU64]>,
}

impl StoreArea {
    fn index(&self, offset: u64) -> usize {
        usize::try_from(offset / u64::from(self.block_bytes)).expect("a block of the area")
    }
}

impl StoreTarget {
    /// A store of this client. `mode` is what its devices really use.
    ///
    /// # Errors
    /// When there is no such store, or no namespace can be made.
    pub fn new(client: Client, name: &str, mode: String, wait: ClientWait) -> Result<Self> {
        let store = client.store(name)?;
        let unique = Uuid::new_v4();
        let identity = Identity::new([("made by", "kvrail bench")])?;
        let space = store.namespace(&format!("bench-{}", unique.simple()), &identity)?;
        let (put_bytes, area) = (AtomicU64::new(0), Mutex::default());
        let nonce = unique.as_u64_pair().0;
        Ok(Self { client, store, space, nonce, mode, wait, put_bytes, area })
    }

    /// The benchmark's namespace.
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.space
    }

    /// Bytes of the store.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.store.volume().geometry().capacity()
    }

    /// Its members, and the bytes of each.
    pub(crate) fn members(&self) -> (u16, u64) {
        let geometry = self.store.volume().geometry();
        (geometry.members, geometry.member_bytes)
    }

    fn area(&self) -> Arc<StoreArea> {
        Arc::clone(&self.area.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The key of a block: uniform, another one for each put of each block of each length.
    fn key(&self, block_bytes: u32, index: usize, put: u64) -> BlockKey {
        let place = mix(self.nonce ^ mix(index as u64 ^ mix(block_bytes.into())));
        let (low, high) = (mix(place ^ put), mix(place ^ !put));
        BlockKey::from_bits(u128::from(high) << 64 | u128::from(low))
    }
}

/// The finalizer of splitmix64: every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl KeyedTarget for Arc<StoreTarget> {
    fn kept_bytes(&self) -> u64 {
        self.bytes() / 100 * KEPT_PERCENT
    }

    fn put_bytes(&self) -> u64 {
        self.put_bytes.load(Ordering::Relaxed)
    }

    fn block_bytes_max(&self) -> u32 {
        self.store.block_bytes_max()
    }

    fn depth_max(&self) -> Option<u32> {
        None
    }

    fn looks_up(&self) -> bool {
        true
    }

    fn begin(&self, block_bytes: u32, span_bytes: u64) -> Result<()> {
        self.space.clear().context("clearing the benchmark's namespace")?;
        let blocks = span_bytes / u64::from(block_bytes);
        let puts = (0..blocks).map(|_| AtomicU64::new(0)).collect();
        let mut area = self.area.lock().unwrap_or_else(PoisonError::into_inner);
        *area = Arc::new(StoreArea { block_bytes, begun: self.put_bytes(), puts });
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        self.store.remove(self.space.name()).context("removing the benchmark's namespace")
    }
}

impl Target for Arc<StoreTarget> {
    fn mode(&self) -> String {
        self.mode.clone()
    }

    /// A block is put and got as a whole.
    fn sweep_bytes(&self, unit_bytes: u32) -> u32 {
        unit_bytes
    }

    fn with_port(&self, shape: PortShape, work: Work<'_>) -> Result<()> {
        let area = self.area();
        shape.check_blocks(area.block_bytes)?;
        let slots = SlotQueue::open(&self.client, shape, (ALIGNMENT, 1), self.wait)?;
        let running = vec![StoreOperation::default(); shape.slots as usize];
        let keys = Vec::with_capacity(LOOKUP_KEYS as usize);
        let mut port = StorePort { target: self, area, slots, running, keys };
        let worked = work(&mut port);
        worked.and(port.slots.close())
    }
}

/// The operation of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct StoreOperation {
    index: usize,
    /// Of a put what is kept when it ended well; of a get, of the block it asks for.
    put: u64,
    writes: bool,
}

/// One client thread's way to the store.
#[derive(Debug)]
struct StorePort<'a> {
    target: &'a Arc<StoreTarget>,
    area: Arc<StoreArea>,
    slots: SlotQueue,
    running: Vec<StoreOperation>,
    keys: Vec<BlockKey>,
}

impl StorePort<'_> {
    fn key(&self, index: usize, put: u64) -> BlockKey {
        self.target.key(self.area.block_bytes, index, put)
    }

    fn put_at(&self, index: usize) -> u64 {
        self.area.puts[index].load(Ordering::Relaxed)
    }
}

/// Whether a block that was put then can be gone.
fn can_be_gone(put: u64, area: &StoreArea, target: &Arc<StoreTarget>) -> bool {
    let (now, percent) = (target.put_bytes(), target.bytes() / 100);
    let round = now - area.begun > percent * KEPT_PERCENT;
    put == 0 || round && now - put > percent * ROUND_PERCENT
}

/// How an end reads to the drivers.
fn outcome(
    ended: &Ended,
    run: StoreOperation,
    area: &StoreArea,
    target: &Arc<StoreTarget>,
) -> Result<(), Fault> {
    match (ended.status, run.writes) {
        // A key that is new is not there: what was not written counts as nothing moved.
        (Status::Ok, true) if ended.note != BlockNote::None => Err(Fault::Short { moved: 0 }),
        (Status::Ok, _) if ended.bytes != u64::from(area.block_bytes) => {
            Err(Fault::Short { moved: u32::try_from(ended.bytes).unwrap_or(u32::MAX) })
        }
        (Status::Ok, writes) => {
            if writes {
                area.puts[run.index].store(run.put, Ordering::Relaxed);
            }
            Ok(())
        }
        (Status::Miss, false)
            if ended.note != BlockNote::Wrong && can_be_gone(run.put, area, target) =>
        {
            Err(Fault::Evicted)
        }
        (status, _) => Err(Fault::Status(status)),
    }
}

impl Port for StorePort<'_> {
    fn buffer(&mut self, slot: u32) -> &mut [u8] {
        self.slots.buffer(slot)
    }

    fn stage(&mut self, slot: u32, operation: Operation) -> Result<()> {
        let Operation { direction, offset, bytes } = operation;
        let index = self.area.index(offset);
        let writes = direction == Direction::Write;
        let put = if writes {
            let counted = &self.target.put_bytes;
            counted.fetch_add(bytes.into(), Ordering::Relaxed) + u64::from(bytes)
        } else {
            self.put_at(index)
        };
        self.running[slot as usize] = StoreOperation { index, put, writes };
        let (space, key, lease) = (&self.target.space, self.key(index, put), self.slots.take(slot));
        let request = match direction {
            Direction::Read => BlockRequest::get(space, key, lease).class(self.slots.reads),
            Direction::Write => BlockRequest::put(space, key, lease),
        };
        let staged = self.slots.queue.stage(request.tag(slot.into()));
        self.slots.staged();
        staged.map(|_ticket| ()).map_err(|refused| {
            let reason = refused.reason;
            let why = self.slots.refused(slot, refused.request.into_lease());
            anyhow!("the client library refused a block of {bytes} bytes: {reason} ({why})")
        })
    }

    fn begin_read_back(&mut self) {
        self.slots.reads = Class::Background;
    }

    fn turn(&mut self, wait: TurnWait, done: &mut Vec<Done>) -> Result<()> {
        let Self { target, area, slots, running, .. } = self;
        let read = |ended: &Ended, slot: u32| outcome(ended, running[slot as usize], area, target);
        slots.turn(wait, read, done)
    }

    fn lookup(&mut self, offset: u64) -> Result<Result<(), Fault>> {
        let (first, blocks) = (self.area.index(offset), self.area.puts.len());
        let mut keys = std::mem::take(&mut self.keys);
        let there = (first..first + LOOKUP_KEYS as usize - 1).map(|at| at % blocks);
        keys.clear();
        keys.extend(there.map(|index| self.key(index, self.put_at(index))));
        keys.push(self.key(first, u64::MAX));
        let how = Lookup { extent: LookupExtent::All, ..Lookup::default() };
        let found = self.slots.queue.lookup(&self.target.space, &keys, &how)?;
        let count = |keys: usize| u32::try_from(keys).expect("a thousand");
        let (prefix, expected) = (count(found.prefix), LOOKUP_KEYS - 1);
        self.keys = keys;
        let right = prefix == expected && found.there.last() == Some(&false);
        Ok(if right { Ok(()) } else { Err(Fault::Lookup { prefix, expected }) })
    }
}
