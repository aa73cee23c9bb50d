//! The real store, asked as a cache manager asks it, on a member whose operations end at once.

use kvrail_store::{
    Begun, Budget, Chain, DeclineReason, Discard, Durability, Extent, Get, Got, Hint, Hold, Key,
    Members, Now, Outcome, PAGE_BYTES, Phase, Put, SEGMENTS_MAX, SEGMENTS_MIN, SpaceId, Start,
    Stats, Status, Store, StoreConfig, StoreIdentity, Times,
};

use crate::line::Hints;
use crate::member::SimulatedMember;
use crate::report::StoreCounts;

const PAGE: u64 = PAGE_BYTES as u64;
/// Segments that a replay has at least before one takes more than a few blocks: real drives have
/// thousands.
const SEGMENTS: u64 = 512;
/// Segments that a replay has at least before one takes a single block, which would go without
/// another, as no real one does. Fewer would cost hits that no drive loses: three or four of them
/// have no content.
const SEGMENTS_OF_FEW: u64 = 256;
/// A few blocks: four blocks' bytes, of which head and records take some.
const FEW: u64 = 4;
const SEGMENT_BYTES_MAX: u64 = 256 << 20;
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Records of a page without metadata, a safe number.
const RECORDS: u64 = 40;
/// Time between two steps of the store.
const STEP_NS: u64 = 1000;
/// Steps until a store that does nothing is stuck: pages are written after 50 ms.
const STEPS_MAX: u32 = 200_000;
/// Bytes before the first segment.
const FRONT_BYTES: u64 = 1 << 20;
const SECONDS_1970: u32 = 1_700_000_000;

/// A store of some size, and how far it is.
#[derive(Debug)]
pub(crate) struct Replayed {
    store: Store,
    member: SimulatedMember,
    space: SpaceId,
    now: Now,
    /// Hints of the blocks that are put.
    hint: Hint,
    block_bytes: u32,
    shape: MemberShape,
    /// The counters before the trace began.
    filled: Stats,
}

/// The layout of a member of a store for the given number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberShape {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Segments.
    pub segments: u64,
}

impl MemberShape {
    /// The largest segments of which there are enough, else the smallest that hold a block: enough
    /// are `SEGMENTS`, or `SEGMENTS_OF_FEW` where one takes a few blocks at most. There is no store
    /// for fewer blocks than its fewest segments hold, or for more than its most.
    #[must_use]
    pub fn of(blocks: u64, block_bytes: u32) -> Option<Self> {
        let sizes = SEGMENT_BYTES_MIN.trailing_zeros()..=34;
        let mut fitting = sizes.map(|log| 1 << log).filter_map(|segment_bytes| {
            let own = in_segment(segment_bytes, block_bytes)?;
            let enough = if own > FEW { SEGMENTS } else { SEGMENTS_OF_FEW };
            let shape = Self { segment_bytes, segments: blocks / own };
            Some((shape, segment_bytes <= SEGMENT_BYTES_MAX && shape.segments >= enough))
        });
        let (first, _) = fitting.next()?;
        let more = fitting.take_while(|(_, enough)| *enough);
        let (shape, _) = more.last().unwrap_or((first, true));
        let segments = u64::from(SEGMENTS_MIN)..=u64::from(SEGMENTS_MAX);
        segments.contains(&shape.segments).then_some(shape)
    }
}

/// Blocks that a segment takes beside its heads and pages.
fn in_segment(segment_bytes: u64, block_bytes: u32) -> Option<u64> {
    let block = u64::from(block_bytes).next_multiple_of(512);
    let most = segment_bytes / block;
    let own = 3 * PAGE + most.div_ceil(RECORDS) * PAGE;
    let blocks = segment_bytes.saturating_sub(own) / block;
    (blocks > 0 && u64::from(block_bytes) <= segment_bytes / 2).then_some(blocks)
}

impl Replayed {
    /// Makes a store, and its namespace.
    pub(crate) fn new(
        shape: MemberShape,
        block_bytes: u32,
        budget: Budget,
    ) -> Result<Self, String> {
        let config = config(shape, block_bytes, budget);
        let mut store = Store::new(&config).map_err(|why| why.to_string())?;
        let now = Now { ns: 1, unix: SECONDS_1970 };
        let members = Members::first(1);
        let identity =
            StoreIdentity { volume: 1, instance: 2, seed: 3, member: 0, members, generation: 1 };
        store.start(Start::Create(identity), now);
        let member = SimulatedMember::new(&config);
        let (space, hint, filled) = (SpaceId::NONE, Hint::default(), Stats::default());
        let mut replay = Self { store, member, space, now, hint, block_bytes, shape, filled };
        replay.turn_until(|replay| replay.store.phase() == Phase::Serving)?;
        let asked = replay.store.create_space((0, 0), b"replay", b"{}", 1, replay.now);
        debug_assert_eq!(asked, Begun::Taken);
        replay.turn_until(|replay| replay.store.space(b"replay").is_some())?;
        replay.space = replay.store.space(b"replay").map_or(SpaceId::NONE, |space| space.id);
        replay.filled = *replay.store.stats();
        Ok(replay)
    }

    /// Fills the ring with blocks that no request reads.
    pub(crate) fn fill(&mut self) -> Result<(), String> {
        for block in 0.. {
            if self.store.stats().evicted + self.store.stats().declined > 0 {
                break;
            }
            self.put(Named::Other(block), (Chain::Extends, 0))?;
        }
        self.filled = *self.store.stats();
        Ok(())
    }

    /// The trace has come to a request at this time, of whose blocks this is known.
    pub(crate) fn pass(&mut self, at_ns: u64, Hints { priority, until_ns }: Hints) {
        self.now.ns = self.now.ns.max(at_ns);
        self.now.unix = unix(self.now.ns);
        self.hint = Hint { priority, until: until_ns.map_or(0, unix) };
    }

    /// Puts a block of the trace at this depth of its chain.
    ///
    /// # Errors
    /// A store that is stuck or fails: a fault of its own.
    pub(crate) fn store(&mut self, block: u32, place: (Chain, usize)) -> Result<(), String> {
        self.put(Named::Asked(block), place)
    }

    /// Whether a block of the trace is there.
    ///
    /// # Errors
    /// As `store`.
    pub(crate) fn get(&mut self, block: u32) -> Result<bool, String> {
        let extent = Extent::Whole { capacity: self.block_bytes };
        let get = Get { space: self.space, key: Named::Asked(block).key(), extent };
        match self.store.get(&get) {
            Got::Done(answer) if answer.status == Status::Miss => Ok(false),
            Got::Done(answer) => Err(format!("a get ended with {:?}", answer.status)),
            Got::Read(reading) => {
                self.store.read_ended(reading.id, Outcome::Done);
                self.turn().map(|()| true)
            }
        }
    }

    /// Whether a block of the trace is there, without a use of it.
    pub(crate) fn has(&self, block: u32) -> bool {
        self.store.peek(self.space, lower_half(block)).is_some()
    }

    /// A lookup that counts as a use of a block of the trace.
    ///
    /// # Errors
    /// As `store`.
    pub(crate) fn touch(&mut self, block: u32) -> Result<(), String> {
        let keys = [lower_half(block)];
        let found = self.store.lookup(self.space, 0, &keys, Hold::Touch, self.now);
        found.map_err(|why| format!("a lookup ended with {why:?}"))?;
        self.turn()
    }

    fn put(&mut self, block: Named, (chain, depth): (Chain, usize)) -> Result<(), String> {
        let put = Put {
            user: 0,
            owner: 0,
            space: self.space,
            key: block.key(),
            length: self.block_bytes,
            at: 0,
            bytes: self.block_bytes,
            check: 0,
            chain,
            depth: u16::try_from(depth).unwrap_or(u16::MAX),
            hint: self.hint,
            durability: Durability::Soon,
            metadata: &[],
        };
        let status = match self.store.put(&put, self.now) {
            Begun::Done(answer) => answer.status,
            Begun::Taken | Begun::Confirms => self.answered()?,
        };
        match status {
            Status::Ok | Status::Present => Ok(()),
            // Room is made while the next requests come.
            Status::Declined(DeclineReason::IndexFull) => self.turn(),
            Status::Declined(_) => Ok(()),
            other => Err(format!("a put ended with {other:?}")),
        }
    }

    /// Waits for the one answer.
    fn answered(&mut self) -> Result<Status, String> {
        for _ in 0..STEPS_MAX {
            self.turn()?;
            if let Some(reply) = self.store.next_reply() {
                return Ok(reply.answer.status);
            }
        }
        Err(format!("a request has no answer: {:?}", self.store.stats()))
    }

    fn turn_until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            if done(self) {
                while self.store.next_reply().is_some() {}
                return Ok(());
            }
            self.turn()?;
        }
        Err("the store does not start".into())
    }

    /// Executes all tasks of the store.
    fn turn(&mut self) -> Result<(), String> {
        if let Phase::Failed(why) = self.store.phase() {
            return Err(why.to_string());
        }
        self.now.ns += STEP_NS;
        self.store.step(&self.member, 4096, self.now);
        while let Some(task) = self.store.next_task(&mut self.member) {
            self.member.perform(&task);
            self.store.finish(task.id, Outcome::Done, self.now);
        }
        while self.store.next_evicted().is_some() {}
        Ok(())
    }

    /// The store's counters since the first request, and the bytes it wrote.
    pub(crate) fn counted(&self) -> (StoreCounts, u64) {
        let stats = self.store.stats();
        let counts = StoreCounts {
            segment_bytes: self.shape.segment_bytes,
            segments: self.shape.segments,
            puts: stats.puts - self.filled.puts,
            moved: stats.moved - self.filled.moved,
            evicted: stats.evicted - self.filled.evicted,
            declined_colder: stats.declined_colder - self.filled.declined_colder,
            declined_first_sight: stats.declined_first_sight - self.filled.declined_first_sight,
            declined_budget: stats.declined_budget - self.filled.declined_budget,
        };
        (counts, stats.written_bytes - self.filled.written_bytes)
    }
}

/// Seconds since 1970 at a time of the trace.
fn unix(at_ns: u64) -> u32 {
    let seconds = u32::try_from(at_ns / 1_000_000_000).unwrap_or(u32::MAX);
    SECONDS_1970.saturating_add(seconds)
}

fn config(shape: MemberShape, block_bytes: u32, budget: Budget) -> StoreConfig {
    let padded = block_bytes.next_multiple_of(512);
    StoreConfig {
        area_bytes: FRONT_BYTES.max(shape.segment_bytes.min(1 << 20))
            + shape.segments * shape.segment_bytes,
        logical_block: 512,
        segment_bytes: shape.segment_bytes,
        block_mean: padded,
        spaces: 1,
        puts: 16,
        writes: 16,
        holds: 1,
        owners: 1,
        owner_holds: 1,
        buffers: 16,
        buffer_bytes: padded.next_multiple_of(8 << 10),
        images: 64,
        times: Times::default(),
        discard: Discard::Off,
        budget,
    }
}

/// The lower half of a block's key: what members are chosen by.
pub(crate) fn lower_half(block: u32) -> u64 {
    Named::Asked(block).key().lo()
}

/// Whose block it is: the trace's, or another one.
#[derive(Clone, Copy, Debug)]
enum Named {
    Asked(u32),
    Other(u32),
}

impl Named {
    /// Keys are uniform, as hashes are.
    fn key(self) -> Key {
        let word = match self {
            Self::Asked(block) => u64::from(block),
            Self::Other(block) => 1 << 32 | u64::from(block),
        };
        Key::of(mix(word + 1), mix(word ^ 1 << 40))
    }
}

fn mix(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::MemberShape;

    #[test]
    fn segments_are_many_and_take_more_than_a_block() {
        const MIB: u64 = 1 << 20;
        for (blocks, segment_bytes, segments) in [
            (200, 2 * MIB, 200),
            (500, 2 * MIB, 500),
            (1137, 4 * MIB, 379),
            (2273, 4 * MIB, 757),
            (4547, 8 * MIB, 649),
            (9140, 16 * MIB, 609),
            (182_790, 256 * MIB, 716),
        ] {
            let shape = Some(MemberShape { segment_bytes, segments });
            assert_eq!(MemberShape::of(blocks, 1 << 20), shape, "{blocks}");
        }
        assert_eq!(MemberShape::of(5, 1 << 20), None, "fewer than a store has segments");
    }
}
