//! Reclaim: the oldest segment's blocks are evicted, those that were hit or are held are moved.
//! Which pool's oldest it is, `quota.rs` says; what is moved stays in its pool.
//!
//! The victim's pages are read twice: to weigh what should move, and to move or evict it. As much
//! as was put may move because it was hit, so that at most twice that is written, and at most 7/8
//! of a segment, so each segment gains space. A hold is no reason to wait: a held block is moved
//! first of all, and evicted when there is no room.

use crate::config::Config;
use crate::core::{Core, Knowledge};
use crate::entry::Entry;
use crate::format::{PAGE, POOLS_MAX, Page, Record, RecordKind};
use crate::holds::Holds;
use crate::index::Position;
use crate::log::{Claim, Log};
use crate::moves::Moves;
use crate::segments::{State, bits};
use crate::task::{Outcome, Pool, Verb};

/// Ranks of blocks: held, then hits, then shallow before deep.
const RANKS: usize = 64;
const HELD: u8 = 63;
/// The buffer that pages are read into, and its first cell; the others are for moves.
const SCAN: u16 = 0;
/// Moves that were not used are saved up to this part of the pool, as hits come in bursts.
const POOL_PER_SAVED: u64 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
enum Chunk {
    None,
    Reading,
    There,
    Unreadable,
}

/// The reclaim of one segment at a time.
#[derive(Debug)]
pub(crate) struct Reclaim {
    stage: Stage,
    victim: u32,
    /// The victim's pool, and the one that gets the segment.
    pool: u8,
    taker: u8,
    chunk: Chunk,
    /// First page of the chunk, and how many it has.
    first: u32,
    count: u32,
    /// The page in `page`, and the next record in it.
    next_page: u32,
    page: Page,
    loaded: bool,
    record_at: u16,
    /// Bytes that should move, by rank; below `threshold` none does.
    weights: [u64; RANKS],
    threshold: u8,
    /// Bytes that may still move of this segment.
    room: u64,
    /// Bytes that may move because of hits, by pool, and the bytes put that they were earned by.
    saved: [u64; POOLS_MAX],
    earned_by: [u64; POOLS_MAX],
    /// Hits that a block needs to be moved.
    least_hits: u8,
    moves: Moves,
}

impl Reclaim {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            stage: Stage::Idle,
            victim: 0,
            pool: 0,
            taker: 0,
            chunk: Chunk::None,
            first: 0,
            count: 0,
            next_page: 0,
            page: Page::new(),
            loaded: false,
            record_at: 0,
            weights: [0; RANKS],
            threshold: 0,
            room: 0,
            saved: [0; POOLS_MAX],
            earned_by: [0; POOLS_MAX],
            least_hits: 1,
            moves: Moves::new(config),
        }
    }

    /// The end of a transfer with one of the cells.
    pub(crate) fn ended(&mut self, core: &mut Core, log: &mut Log, cell: u32, end: Outcome) {
        if cell == u32::from(SCAN) {
            let well = end == Outcome::Done;
            self.chunk = if well { Chunk::There } else { Chunk::Unreadable };
        } else {
            self.moves.ended(core, log, cell, end);
        }
    }

    /// Whether a segment is being reclaimed.
    pub(crate) fn is_walking(&self) -> bool {
        self.stage != Stage::Idle
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
        let evicts = matches!(self.stage, Stage::Idle | Stage::Weigh | Stage::Empty);
        if core.is_held_up() && evicts {
            return;
        }
        match self.stage {
            Stage::Idle => self.choose(core),
            Stage::Weigh | Stage::Empty => self.scan(core, log, holds, pool, budget),
            Stage::Drain => self.drain(core, log),
            Stage::Settle => {
                log.hurry();
                if log.unwritten(core) > self.moves.last_serial() {
                    self.release(core, self.pool);
                }
            }
        }
    }

    fn release(&mut self, core: &mut Core, pool: u8) {
        core.segments.release_oldest(pool);
        core.payers().settle();
        core.stats.reclaimed += 1;
        let given = pool != self.taker;
        let stats = core.pool_stats(pool);
        stats.reclaimed += 1;
        stats.given += u64::from(given);
        self.stage = Stage::Idle;
    }

    /// Whether a pool's oldest segment can be reclaimed now.
    fn can_go(core: &Core, pool: u8) -> bool {
        let Some(oldest) = core.segments.oldest(pool) else { return false };
        match core.segments.state(oldest) {
            // After a restart nothing is known of its hits: nothing of it would move.
            State::Unread => core.recovery.may_evict_unread,
            State::Sealed => {
                let whole = core.recovery.knowledge == Knowledge::Whole;
                core.segments.live(oldest) == 0 || whole
            }
            _ => false,
        }
    }

    /// The pool that a segment is taken from, and the pool that it is taken for.
    fn victim(&self, core: &Core) -> Option<(u8, u8)> {
        let can_go = |pool: u8| Self::can_go(core, pool);
        let wanted = core.segments.wanted();
        // Those behind the last one first, so that each has its turn.
        let behind = wanted.rotate_right(u32::from(self.taker) + 1);
        let takers = bits(behind).map(|bit| (bit + self.taker + 1) % 16);
        for taker in takers {
            if core.segments.is_short(taker)
                && let Some(pool) = core.segments.donor(taker, can_go)
            {
                return Some((pool, taker));
            }
        }
        let mut over = bits(core.segments.holding()).filter(|pool| core.segments.is_over(*pool));
        let over = over.find(|pool| can_go(*pool)).map(|pool| (pool, pool));
        over.or_else(|| {
            let capacity = core.index.capacity();
            let dense = |pool: u8| can_go(pool) && core.segments.is_dense(pool, capacity);
            let find = || core.segments.densest(dense).or_else(|| core.segments.densest(can_go));
            let found = core.index.is_crowded().then(find);
            found.flatten().map(|pool| (pool, pool))
        })
    }

    fn choose(&mut self, core: &mut Core) {
        if core.segments.has_dead() {
            let dead = bits(core.segments.holding()).find(|pool| {
                let oldest = core.segments.oldest(*pool);
                oldest.is_some_and(|segment| {
                    core.segments.state(segment) == State::Dead && core.segments.live(segment) == 0
                })
            });
            if let Some(pool) = dead {
                self.taker = pool;
                return self.release(core, pool);
            }
        }
        let Some((pool, taker)) = self.victim(core) else { return };
        self.taker = taker;
        // Also where it is the index that has no more room: small blocks never fill the ring.
        core.admission.end_filling(taker);
        let oldest = core.segments.oldest(pool).expect("it can go");
        match core.segments.state(oldest) {
            State::Unread => {
                core.recovery.seen(pool);
                self.release(core, pool);
            }
            _ if core.segments.live(oldest) == 0 => self.release(core, pool),
            _ => {
                core.segments.set(oldest, State::Victim);
                (self.victim, self.pool) = (oldest, pool);
                self.weights = [0; RANKS];
                core.admission.earn(core.now().ns);
                self.least_hits = core.admission.hits_to_move(pool);
                self.begin(Stage::Weigh);
            }
        }
    }

    fn begin(&mut self, stage: Stage) {
        self.stage = stage;
        (self.first, self.count) = (0, 0);
        (self.chunk, self.loaded) = (Chunk::None, false);
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
                Chunk::Reading => return,
                Chunk::None => {
                    if !self.read_chunk(core) {
                        return self.scanned(core);
                    }
                    return;
                }
                Chunk::Unreadable => self.next_page = self.count,
                Chunk::There => {}
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
                self.chunk = Chunk::None;
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
        self.chunk = Chunk::Reading;
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
            if let Some((position, entry)) = Self::live(core, self.victim, &record) {
                let rank = Self::rank(core, holds, &entry, record.key.lo(), self.least_hits);
                let padded = core.geometry().padded(entry.length());
                if self.stage == Stage::Weigh {
                    if let Some(rank) = rank {
                        self.weights[usize::from(rank)] += u64::from(padded);
                    }
                } else if rank.is_some_and(|rank| self.is_chosen(rank, padded)) {
                    if !self.moves.has_room(core) {
                        return false;
                    }
                    let placed = log.place(core, self.pool, padded, Claim::Move);
                    match placed {
                        Some(placed) => {
                            let bytes = u64::from(padded);
                            self.room -= bytes;
                            let saved = &mut self.saved[usize::from(self.pool)];
                            *saved = saved.saturating_sub(bytes);
                            self.moves.begin(core, &record, &entry, metadata, placed);
                        }
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

    /// How much a block should be kept; nothing: not at all.
    pub(crate) fn rank(
        core: &Core,
        holds: &Holds,
        entry: &Entry,
        lo: u64,
        least_hits: u8,
    ) -> Option<u8> {
        if holds.is_held(entry.number(), lo, core.now().ns) {
            return Some(HELD);
        }
        let hits = entry.hits();
        (hits >= least_hits).then(|| (hits - 1) * 16 + (15 - entry.depth()))
    }

    fn is_chosen(&self, rank: u8, bytes: u32) -> bool {
        let hit = || rank >= self.threshold && self.saved[usize::from(self.pool)] >= bytes.into();
        self.room >= bytes.into() && (rank == HELD || hit())
    }

    fn evict(core: &mut Core, position: Position, rank: Option<u8>, block: (&Record, &[u8])) {
        core.evict(position, block.0, block.1);
        core.stats.holds_broken += u64::from(rank == Some(HELD));
    }

    /// All pages were read.
    fn scanned(&mut self, core: &mut Core) {
        if self.stage == Stage::Empty {
            self.stage = Stage::Drain;
            return;
        }
        self.room = core.geometry().segment_bytes / 8 * 7;
        let most = self.earn(core).min(self.room);
        let mut sum = 0;
        self.threshold = 0;
        for rank in (0..RANKS).rev() {
            sum += self.weights[rank];
            if sum > most {
                // Of this rank as many move as fit.
                self.threshold = u8::try_from(rank).expect("64 ranks");
                break;
            }
        }
        self.begin(Stage::Empty);
    }

    /// The bytes that may move of the victim's pool because they were hit.
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
        if core.segments.live(self.victim) > 0 {
            core.segments.set(self.victim, State::Dead);
            return;
        }
        log.hurry();
        self.stage = Stage::Settle;
    }
}
