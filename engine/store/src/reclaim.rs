//! Reclaim: the coldest segment's blocks are evicted; recently used and held blocks are moved.
//! `quota.rs` chooses the pool; moved blocks stay in their pool.
//!
//! Segments go in any order. A drop in one that is not its pool's oldest is written again as long
//! as an older segment may have a put of its key, and the drops' numbers go into the pool's ledger.
//! A pool is reclaimed in the order of epochs while recovery goes on, while its ledger is nearly
//! full, and while drops take much of it.
//!
//! Reclaim reads the victim's pages twice: to choose the blocks that move, and to move or evict
//! them. Blocks that move because of their use amount to at most the bytes that were put, so that
//! writes at most double, and to at most 3/4 of a segment, so that each segment gains space. Held
//! blocks move regardless. Reclaim passes over a segment with many held bytes: the limit of holds
//! guarantees another one.

use crate::config::StoreConfig;
use crate::core::Core;
use crate::entry::Entry;
use crate::format::{PAGE, POOLS_MAX, Page, Record, RecordKind};
use crate::holds::Holds;
use crate::index::Position;
use crate::kept::VictimDrops;
use crate::log::{Log, SpaceClaim};
use crate::moves::Moves;
use crate::segments::{SegmentState, bits};
use crate::task::{Outcome, Pool, Verb};
use crate::victims::{self, VictimChoice};

/// Ranks of blocks: held, then the lately used before the others.
const RANKS: usize = 64;
const HELD: u8 = 63;
/// Eighths of a segment that may move.
const MOVED_EIGHTHS: u64 = 6;
/// The buffer that pages are read into, and its first cell; the others are for moves.
const SCAN: u16 = 0;
/// A segment of which more than this part is held is passed over: else the same blocks would be
/// moved again and again.
const SPARED_SHARE: u64 = 4;
/// A segment that is passed over has its turn after this part of the longest hold.
const SPARED_PARTS: u64 = 16;
/// Moves that were not used are saved up to this part of the pool, as hits come in bursts.
const POOL_PER_SAVED: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReclaimStage {
    Idle,
    /// Sums what should move.
    Weigh,
    /// Moves or evicts.
    Empty,
    /// Waits for moves, then for what no page leads to.
    Drain,
    /// Waits for the pages with the moved blocks' records.
    Settle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    None,
    Reading,
    There,
    Unreadable,
}

/// The reclaim of one segment at a time.
#[derive(Debug)]
pub(crate) struct Reclaim {
    stage: ReclaimStage,
    victim: u32,
    choice: VictimChoice,
    /// The victim's pool, and the one that gets the segment.
    pool: u8,
    taker: u8,
    chunk: ChunkState,
    /// First page of the chunk, and how many it has.
    first: u32,
    count: u32,
    /// The page in `page`, and the next record in it.
    next_page: u32,
    page: Page,
    loaded: bool,
    record_at: u16,
    /// Bytes that should move, by rank; below `threshold` none does but held ones.
    weights: [u64; RANKS],
    threshold: u8,
    /// Bytes of that rank that may move: what is left by the ranks above.
    rest: u64,
    /// Bytes that may still move of this segment, because they were used and because of holds.
    room: u64,
    held_room: u64,
    /// Bytes that may move because of hits, by pool, and the bytes put that they were earned by.
    saved: [u64; POOLS_MAX],
    earned_by: [u64; POOLS_MAX],
    /// The age up to which a block is worth a move.
    age: u64,
    kept: VictimDrops,
    moves: Moves,
}

impl Reclaim {
    pub(crate) fn new(config: &StoreConfig) -> Self {
        Self {
            stage: ReclaimStage::Idle,
            victim: 0,
            choice: VictimChoice::Coldest,
            pool: 0,
            taker: 0,
            chunk: ChunkState::None,
            first: 0,
            count: 0,
            next_page: 0,
            page: Page::new(),
            loaded: false,
            record_at: 0,
            weights: [0; RANKS],
            threshold: 0,
            rest: 0,
            room: 0,
            held_room: 0,
            saved: [0; POOLS_MAX],
            earned_by: [0; POOLS_MAX],
            age: 0,
            kept: VictimDrops::default(),
            moves: Moves::new(config),
        }
    }

    /// The end of a transfer with one of the cells.
    pub(crate) fn ended(&mut self, core: &mut Core, log: &mut Log, cell: u32, end: Outcome) {
        if cell == u32::from(SCAN) {
            let well = end == Outcome::Done;
            self.chunk = if well { ChunkState::There } else { ChunkState::Unreadable };
        } else {
            self.moves.ended(core, log, cell, end);
        }
    }

    /// Whether a segment is being reclaimed.
    pub(crate) fn is_walking(&self) -> bool {
        self.stage != ReclaimStage::Idle
    }

    /// Does what can be done now; looks at `budget` records at most.
    pub(crate) fn step(
        &mut self,
        core: &mut Core,
        log: &mut Log,
        holds: &Holds,
        pool: &impl Pool,
        budget: u32,
    ) {
        self.moves.step(core, log);
        // No block is evicted for space that the drive does not take.
        let evicts =
            matches!(self.stage, ReclaimStage::Idle | ReclaimStage::Weigh | ReclaimStage::Empty);
        if core.is_held_up() && evicts {
            return;
        }
        match self.stage {
            ReclaimStage::Idle => self.choose(core, holds),
            ReclaimStage::Weigh | ReclaimStage::Empty => self.scan(core, log, holds, pool, budget),
            ReclaimStage::Drain => self.drain(core, log),
            ReclaimStage::Settle => {
                log.hurry();
                if log.unwritten(core) > self.moves.last_serial().max(self.kept.serial()) {
                    self.settled(core);
                }
            }
        }
    }

    /// The victim's content does not count any more, unless older segments need its drops.
    fn settled(&mut self, core: &mut Core) {
        let accounted = core.segments.state(self.victim) == SegmentState::Victim;
        if accounted || victims::is_oldest(core, self.victim) {
            self.release(core, self.victim);
        } else {
            self.stage = ReclaimStage::Idle;
        }
    }

    fn release(&mut self, core: &mut Core, segment: u32) {
        let pool = core.segments.pool(segment);
        core.segments.release(segment);
        core.payers().settle();
        core.stats.reclaimed += 1;
        let given = pool != self.taker;
        let stats = core.pool_stats(pool);
        stats.reclaimed += 1;
        stats.given += u64::from(given);
        self.stage = ReclaimStage::Idle;
    }

    fn choose(&mut self, core: &mut Core, holds: &Holds) {
        if core.segments.has_dead()
            && let Some(dead) =
                bits(core.segments.holding()).find_map(|pool| victims::dead(core, pool))
        {
            self.taker = core.segments.pool(dead);
            return self.release(core, dead);
        }
        let Some((pool, taker)) = victims::victim(core, holds, self.taker) else { return };
        // Also where it is the index that has no more room: small blocks never fill the ring.
        core.admission.end_filling(taker);
        let Some((victim, choice)) = victims::next(core, pool) else { return };
        (self.taker, self.choice) = (taker, choice);
        match core.segments.state(victim) {
            SegmentState::Unread => {
                core.recovery.seen(pool);
                self.release(core, victim);
            }
            _ if core.segments.live(victim) == 0
                && (victims::is_oldest(core, victim) || !core.segments.has_plain(victim)) =>
            {
                self.release(core, victim);
            }
            _ => {
                core.segments.set(victim, SegmentState::Victim);
                (self.victim, self.pool) = (victim, pool);
                self.kept.begin(victim);
                self.weights = [0; RANKS];
                core.admission.earn(core.now().ns);
                self.age = core.admission.age_to_move(pool, core.worth.age_to_move(pool));
                self.begin(ReclaimStage::Weigh);
            }
        }
    }

    fn begin(&mut self, stage: ReclaimStage) {
        self.stage = stage;
        (self.first, self.count) = (0, 0);
        (self.chunk, self.loaded) = (ChunkState::None, false);
    }

    fn scan(
        &mut self,
        core: &mut Core,
        log: &mut Log,
        holds: &Holds,
        pool: &impl Pool,
        budget: u32,
    ) {
        let mut left = budget;
        while left > 0 {
            match self.chunk {
                ChunkState::Reading => return,
                ChunkState::None => {
                    if !self.read_chunk(core) {
                        return self.scanned(core);
                    }
                    return;
                }
                ChunkState::Unreadable => self.next_page = self.count,
                ChunkState::There => {}
            }
            if self.loaded {
                if !self.records(core, log, holds, &mut left) {
                    return;
                }
                self.loaded = false;
                self.next_page += 1;
            }
            if self.next_page >= self.count {
                self.first += self.count;
                self.chunk = ChunkState::None;
            } else {
                self.load_page(core, pool);
                left -= 1;
            }
        }
    }

    /// Begins to read the next pages. `false`: there are none.
    fn read_chunk(&mut self, core: &mut Core) -> bool {
        let pages = core.segments.pages(self.victim);
        let most = core.config().buffer_bytes / PAGE;
        (self.count, self.next_page) = (most.min(pages - self.first), 0);
        if self.count == 0 {
            return false;
        }
        let at = core.geometry().page_at(self.victim, self.first + self.count - 1);
        let length = u64::from(self.count) * u64::from(PAGE);
        core.space_task(SCAN.into(), Verb::Read, at, length);
        self.chunk = ChunkState::Reading;
        true
    }

    fn load_page(&mut self, core: &Core, pool: &impl Pool) {
        let at = (self.count - 1 - self.next_page) * PAGE;
        pool.load(SCAN, at, self.page.bytes_mut());
        let epoch = core.segments.epoch(self.victim);
        let index = self.first + self.next_page;
        // A page that is not whole leaves entries behind; the sweep finds them.
        let _ = self.page.decode(core.instance(), epoch, self.victim, index);
        (self.loaded, self.record_at) = (true, 0);
    }

    /// Goes through the page's records. `false`: something must end first, or the budget is used.
    fn records(&mut self, core: &mut Core, log: &mut Log, holds: &Holds, left: &mut u32) -> bool {
        while *left > 0 {
            let Some((record, metadata, next)) = self.page.record(self.record_at) else {
                return true;
            };
            *left -= 1;
            if self.stage == ReclaimStage::Empty && !self.kept.keep(core, log, &record) {
                if self.gets_space(core) {
                    return false;
                }
                self.kept.lose();
            }
            if let Some((position, entry)) = Self::live(core, self.victim, &record) {
                let rank = Self::rank(core, holds, &entry, record.key.lo(), self.age);
                let over = record.hint.is_over(core.now().unix);
                let rank = rank.filter(|rank| !over || *rank == HELD);
                let padded = core.geometry().padded(entry.length());
                if self.stage == ReclaimStage::Weigh {
                    if let Some(rank) = rank {
                        self.weights[usize::from(rank)] += u64::from(padded);
                    }
                } else if rank.is_some_and(|rank| self.is_chosen(rank, padded)) {
                    if !self.moves.has_room(core) {
                        return false;
                    }
                    let placed = log.place(core, self.pool, padded, SpaceClaim::Move);
                    match placed {
                        Some(placed) => {
                            self.moves.begin(core, &record, &entry, metadata, placed);
                            self.pay(rank, padded.into());
                        }
                        None if rank == Some(HELD) && self.gets_space(core) => return false,
                        None => Self::evict(core, position, rank, (&record, metadata)),
                    }
                } else {
                    Self::evict(core, position, rank, (&record, metadata));
                }
            }
            self.record_at = next;
        }
        false
    }

    /// The entry that a record of the victim stands for now.
    fn live(core: &mut Core, victim: u32, record: &Record) -> Option<(Position, Entry)> {
        if record.kind != RecordKind::Put {
            return None;
        }
        let number = core.spaces.number_of(record.uid)?;
        let place = core.geometry().place(victim, record.offset);
        let (_, found) = core.find(number, record.key);
        found.filter(|(_, entry)| entry.is_there() && entry.place() == place)
    }

    /// How much a block should be kept, if it is not older than `most`; nothing: not at all.
    pub(crate) fn rank(
        core: &Core,
        holds: &Holds,
        entry: &Entry,
        lo: u64,
        most: u64,
    ) -> Option<u8> {
        if holds.is_held(entry.number(), lo, core.now().ns) {
            return Some(HELD);
        }
        let age = core.worth.clock.weighed_age(entry);
        let rank = u64::from(HELD - 1) * (most.saturating_sub(age)) / most.max(1);
        (age < most).then(|| u8::try_from(rank).expect("below HELD"))
    }

    fn is_chosen(&self, rank: u8, bytes: u32) -> bool {
        let bytes = u64::from(bytes);
        match rank {
            HELD => self.held_room >= bytes,
            rank if rank == self.threshold => self.rest.min(self.room) >= bytes,
            rank => rank > self.threshold && self.room >= bytes,
        }
    }

    /// Charges the move of a block of `bytes`.
    fn pay(&mut self, rank: Option<u8>, bytes: u64) {
        let room = if rank == Some(HELD) { &mut self.held_room } else { &mut self.room };
        *room -= bytes;
        self.rest -= if rank == Some(self.threshold) { bytes } else { 0 };
        let saved = &mut self.saved[usize::from(self.pool)];
        *saved = saved.saturating_sub(bytes);
    }

    /// Whether there is space in the victim's pool soon, without this reclaim.
    fn gets_space(&self, core: &Core) -> bool {
        !self.moves.is_idle() || core.segments.has_next(self.pool)
    }

    fn evict(core: &mut Core, position: Position, rank: Option<u8>, block: (&Record, &[u8])) {
        core.evict(position, block.0, block.1);
        core.stats.holds_broken += u64::from(rank == Some(HELD));
    }

    /// All pages were read.
    fn scanned(&mut self, core: &mut Core) {
        if self.stage == ReclaimStage::Empty {
            self.kept.account(core);
            self.stage = ReclaimStage::Drain;
            return;
        }
        let segment = core.geometry().segment_bytes;
        let (room, held) = (segment / 8 * MOVED_EIGHTHS, self.weights[usize::from(HELD)]);
        if held > segment / SPARED_SHARE && self.choice == VictimChoice::Coldest {
            let until = core.now().ns + core.config().times.hold / SPARED_PARTS;
            core.segments.pass_over(self.victim, held, until);
            self.stage = ReclaimStage::Idle;
            return;
        }
        self.held_room = if self.choice == VictimChoice::LastOfAll { room } else { segment };
        self.room = self.earn(core).min(room).saturating_sub(held);
        (self.threshold, self.rest) = (HELD - 1, self.room);
        // Of the last rank as many move as fit, and no block of it instead of one used later.
        while self.threshold > 0 && self.weights[usize::from(self.threshold)] <= self.rest {
            self.rest -= self.weights[usize::from(self.threshold)];
            self.threshold -= 1;
        }
        self.begin(ReclaimStage::Empty);
    }

    /// The bytes that may move of the victim's pool because they were used.
    fn earn(&mut self, core: &mut Core) -> u64 {
        let pool = usize::from(self.pool);
        let put = core.pool_stats(self.pool).put_bytes;
        let earned = put - self.earned_by[pool];
        let segment = core.geometry().segment_bytes;
        let whole = segment * u64::from(core.segments.shares()[pool]);
        self.earned_by[pool] = put;
        self.saved[pool] = (self.saved[pool] + earned).min(segment.max(whole / POOL_PER_SAVED));
        self.saved[pool]
    }

    fn drain(&mut self, core: &mut Core, log: &mut Log) {
        if !self.moves.is_idle() {
            return;
        }
        let (from, to) = core.segments.drops(self.victim);
        if core.segments.live(self.victim) > 0 || from != to {
            core.segments.set(self.victim, SegmentState::Dead);
        }
        if core.segments.live(self.victim) > 0 {
            return;
        }
        log.hurry();
        self.stage = ReclaimStage::Settle;
    }
}
