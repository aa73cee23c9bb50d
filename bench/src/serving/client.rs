//! One client: it plays requests, one after the other, each with many blocks in flight.

use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use kvrail_client::{
    Arena, BlockKey, BlockNote, BlockRequest, Client, Completed, Lease, Lookup, Namespace, Pages,
    Queue, Status,
};
use kvrail_device::{Clock, MonotonicClock};
use kvrail_replay::{Chain, Keyed, request};
use rustix::time::{ClockId, clock_gettime};

use super::counts::Counts;
use crate::pattern::Pattern;

/// Longest wait for a completion: a store that needs longer is taken for hung.
const PATIENCE: Duration = Duration::from_secs(30);
/// Alignment of a block's memory, in bytes.
const ALIGNMENT: usize = 4096;
/// A block is put once under its key, with these bytes.
const VERSION: u32 = 1;

/// The state that all clients of a run share.
#[derive(Clone, Copy, Debug)]
pub(super) struct TraceBlocks<'a> {
    pub(super) space: &'a Namespace,
    pub(super) pattern: Pattern,
    pub(super) bytes: u32,
    /// Blocks in flight, of each client.
    pub(super) depth: u32,
}

impl TraceBlocks<'_> {
    /// The key of a block: uniform, and the same in every request.
    fn key(number: u32) -> BlockKey {
        BlockKey::of(&number.to_le_bytes())
    }

    /// Where the pattern has a block's bytes: no two blocks share a sector.
    fn offset(&self, number: u32) -> u64 {
        u64::from(number) * u64::from(self.bytes).next_multiple_of(ALIGNMENT as u64)
    }
}

/// Which way the blocks of a request go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockWay {
    Get,
    Put(Chain),
}

/// A block in flight.
#[derive(Clone, Copy, Debug)]
struct BlockFlight {
    at: usize,
    begun_ns: u64,
}

/// A client with queue and memory of its own.
pub(super) struct Player<'a> {
    blocks: TraceBlocks<'a>,
    queue: Queue,
    arena: Arena,
    free: Vec<Lease>,
    /// When the request that is played was to begin.
    planned_ns: u64,
    counts: Counts,
}

impl<'a> Player<'a> {
    pub(super) fn new(client: &Client, blocks: TraceBlocks<'a>) -> Result<Self> {
        let (bytes, depth) = (blocks.bytes as usize, blocks.depth as usize);
        let room = bytes.next_multiple_of(ALIGNMENT) * depth;
        let arena = client.create_arena(room, Pages::Auto)?;
        let queue = client.open_queue(depth)?;
        let free = (0..depth).map(|_| arena.lease(bytes)).collect::<Result<_, _>>()?;
        Ok(Self { blocks, queue, arena, free, planned_ns: 0, counts: Counts::default() })
    }

    /// Gives queue and memory back; what was counted.
    pub(super) fn close(self) -> Result<Counts> {
        drop(self.free);
        self.queue.close(PATIENCE)?;
        self.arena.detach()?;
        Ok(self.counts)
    }

    /// Plays a request that was to begin at this time.
    pub(super) fn play(&mut self, numbers: &[u32], planned_ns: u64) -> Result<()> {
        self.planned_ns = planned_ns;
        let hits = request(self, numbers)?;
        self.counts.found.requests += 1;
        self.counts.found.asked += numbers.len() as u64;
        self.counts.found.hits += hits as u64;
        Ok(())
    }

    /// Bytes a second that puts of these blocks move, and gets of them after it.
    pub(super) fn rate(&mut self, numbers: &[u32]) -> Result<f64> {
        let begun_ns = MonotonicClock.now_ns();
        self.travel(BlockWay::Put(Chain::Extends), numbers, 0)?;
        self.travel(BlockWay::Get, numbers, 0)?;
        let seconds = (MonotonicClock.now_ns() - begun_ns).max(1) as f64 / 1e9;
        Ok(2.0 * numbers.len() as f64 * f64::from(self.blocks.bytes) / seconds)
    }

    /// Gets or puts the blocks of a chain from this depth on. How many from there on went well.
    fn travel(&mut self, way: BlockWay, numbers: &[u32], first: usize) -> Result<usize> {
        let depth = self.blocks.depth as usize;
        let mut flights: Vec<Option<BlockFlight>> = vec![None; depth];
        let (mut next, mut open, mut well) = (first, 0, vec![false; numbers.len()]);
        let mut ended = Vec::with_capacity(depth);
        while next < numbers.len() || open > 0 {
            while next < numbers.len() && open < depth {
                let slot = flights.iter().position(Option::is_none).expect("one is free");
                let begun_ns = self.begin(way, (numbers[next], next), slot)?;
                flights[slot] = Some(BlockFlight { at: next, begun_ns });
                (next, open) = (next + 1, open + 1);
            }
            self.queue.publish();
            let came = self.queue.wait_for(1, &mut ended, PATIENCE)?;
            if came == 0 {
                let why = self.queue.ended().unwrap_or("nothing completed within 30 s");
                bail!("the store does not answer: {why}");
            }
            for end in ended.drain(..).filter(|end| !end.is_notice()) {
                let slot = usize::try_from(end.tag)?;
                let flight = flights[slot].take().expect("it was in flight");
                open -= 1;
                well[flight.at] = self.end(way, numbers[flight.at], flight.begun_ns, end)?;
            }
        }
        Ok(well[first..].iter().take_while(|&&it| it).count())
    }

    /// Hands over the block at a depth of its chain; when.
    fn begin(&mut self, way: BlockWay, (number, depth): (u32, usize), slot: usize) -> Result<u64> {
        let mut lease = self.free.pop().expect("as many as may be in flight");
        let (space, key) = (self.blocks.space, TraceBlocks::key(number));
        let request = match way {
            BlockWay::Get => BlockRequest::get(space, key, lease),
            BlockWay::Put(chain) => {
                let from_ns = worked_ns();
                self.blocks.pattern.fill(&mut lease, self.blocks.offset(number), VERSION);
                self.counts.pattern_ns += worked_ns() - from_ns;
                let depth = u16::try_from(depth).unwrap_or(u16::MAX);
                BlockRequest::put(space, key, lease).depth(depth).chain(chain)
            }
        };
        let begun_ns = MonotonicClock.now_ns();
        let staged = self.queue.stage(request.tag(slot as u64));
        staged
            .map_err(|refused| anyhow!("the client library refused a block: {}", refused.reason))?;
        Ok(begun_ns)
    }

    /// Takes a block back. Whether it went well; only a get that is a whole and right block does.
    fn end(&mut self, way: BlockWay, number: u32, begun_ns: u64, end: Completed) -> Result<bool> {
        let took_ns = MonotonicClock.now_ns().saturating_sub(begun_ns);
        let Some(lease) = end.lease else {
            bail!("a request ended {} and its memory did not come back", end.status);
        };
        let well = match (way, end.status) {
            (BlockWay::Put(_), status) => {
                self.counts.times.put.saturating_record(took_ns);
                self.counts.put(status, end.note);
                status == Status::Ok
            }
            (BlockWay::Get, Status::Ok) => {
                self.counts.times.get.saturating_record(took_ns);
                self.check(number, end.bytes, &lease)
            }
            (BlockWay::Get, Status::Miss) if end.note != BlockNote::Wrong => {
                self.counts.found.gone += 1;
                false
            }
            (BlockWay::Get, status) => {
                let why = if end.note == BlockNote::None { "" } else { end.note.words() };
                self.counts.error(status, &format!("get {why}"));
                false
            }
        };
        self.free.push(lease);
        Ok(well)
    }

    /// Compares every byte.
    fn check(&mut self, number: u32, bytes: u64, lease: &Lease) -> bool {
        let from_ns = worked_ns();
        let TraceBlocks { pattern, bytes: wanted, .. } = self.blocks;
        let whole = bytes == u64::from(wanted);
        let (wrong, first) = pattern.verify(lease, self.blocks.offset(number), VERSION);
        let wrong = if whole { wrong } else { wrong.max(1) };
        self.counts.pattern_ns += worked_ns() - from_ns;
        self.counts.wrong(wrong, || match first {
            Some(first) => format!("block {number}: {first}"),
            None => format!("block {number}: {bytes} bytes, {wanted} were put"),
        });
        wrong == 0
    }
}

impl Keyed for Player<'_> {
    type Error = anyhow::Error;

    fn get(&mut self, numbers: &[u32]) -> Result<usize> {
        let keys: Vec<_> = numbers.iter().map(|number| TraceBlocks::key(*number)).collect();
        let begun_ns = MonotonicClock.now_ns();
        let found = self.queue.lookup(self.blocks.space, &keys, &Lookup::default())?;
        let looked_ns = MonotonicClock.now_ns();
        self.counts.times.lookup.saturating_record(looked_ns - begun_ns);
        let hits = self.travel(BlockWay::Get, &numbers[..found.prefix], 0)?;
        let loaded_ns = MonotonicClock.now_ns();
        self.counts.times.request.saturating_record(loaded_ns.saturating_sub(self.planned_ns));
        Ok(hits)
    }

    fn put(&mut self, numbers: &[u32], there: usize, chain: Chain) -> Result<()> {
        self.travel(BlockWay::Put(chain), numbers, there).map(|_| ())
    }
}

/// This thread's CPU time so far, without waits for a CPU.
fn worked_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Whether a block can be moved at all.
///
/// # Errors
/// Names the option and the limit.
pub(super) fn fits(bytes: u32, most: u32) -> Result<()> {
    ensure!(bytes <= most, "--block {bytes}: a block of this store has at most {most} bytes");
    Ok(())
}
