//! Reclaim: the coldest segment's blocks are evicted; those that were used lately or are held are
//! moved. Which pool it is taken from, `quota.rs` says; what is moved stays in its pool.
//!
//! Segments go in any order. A drop in one that is not its pool's oldest is written again as long
//! as an older segment may have a put of its key, and the drops' numbers go into the pool's ledger.
//! A pool is reclaimed in the order of epochs while recovery goes on, while its ledger is nearly
//! full, and while drops take much of it.
//!
//! The victim's pages are read twice: to weigh what should move, and to move or evict it. As much
//! as was put may move because it was used, so that at most twice that is written, and at most 3/4
//! of a segment, so each segment gains space. A hold is no reason to wait: a held block is moved
//! first of all, and evicted when there is no room.

use crate::config::Config;
use crate::core::{Core, Knowledge};
use crate::entry::Entry;
use crate::format::{PAGE, POOLS_MAX, Page, Record, RecordKind};
use crate::holds::Holds;
use crate::index::Position;
use crate::kept::Kept;
use crate::log::{Claim, Log};
use crate::moves::Moves;
use crate::segments::{State, bits};
use crate::task::{Outcome, Pool, Verb};

/// Ranks of blocks: held, then the lately used before the others.
const RANKS: usize = 64;
const HELD: u8 = 63;
/// Eighths of a segment that may move, and sixteenths that drops may take to be written again.
const MOVED_EIGHTHS: u64 = 6;
const DROPS_SIXTEENTHS: u64 = 1;
/// Bytes that a drop takes when it is written again.
const DROP_BYTES: u64 = 64;
/// Drops in a pool beyond which it is reclaimed in order: those of one in so many of its bytes.
const DROPS_SHARE: u64 = 64;
/// Ranges that one victim adds to its pool's ledger at most: its drops, and gaps.
const RANGES: usize = 16;
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
    /// The age up to which a block is worth a move.
    age: u64,
    kept: Kept,
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
            age: 0,
            kept: Kept::default(),
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
                if log.unwritten(core) > self.moves.last_serial().max(self.kept.serial()) {
                    self.settled(core);
                }
            }
        }
    }

    /// The victim's content does not count any more, unless older segments need its drops.
    fn settled(&mut self, core: &mut Core) {
        let accounted = core.segments.state(self.victim) == State::Victim;
        if accounted || Self::is_oldest(core, self.victim) {
            self.release(core, self.victim);
        } else {
            self.stage = Stage::Idle;
        }
    }

    fn release(&mut self, core: &mut Core, segment: u32) {
        let pool = core.segments.pool(segment);
        core.segments.release(segment);
        let floor = core.segments.oldest(pool).map_or(u64::MAX, |it| core.segments.drops(it).0);
        core.ledgers[usize::from(pool)].forget_below(floor);
        core.payers().settle();
        core.stats.reclaimed += 1;
        let given = pool != self.taker;
        let stats = core.pool_stats(pool);
        stats.reclaimed += 1;
        stats.given += u64::from(given);
        self.stage = Stage::Idle;
    }

    /// Whether a pool's segments go in the order of their epochs.
    fn is_in_order(core: &Core, pool: u8) -> bool {
        let drops = core.segments.drops_of(pool) * DROP_BYTES * DROPS_SHARE;
        let bytes = u64::from(core.segments.held(pool)) * core.geometry().segment_bytes;
        core.recovery.knowledge == Knowledge::Partial
            || !core.ledgers[usize::from(pool)].has_room(RANGES)
            || core.segments.has_dead()
            || drops > bytes
    }

    /// Whether a segment is the one of its pool that may go at any time: nothing is older.
    fn is_oldest(core: &Core, segment: u32) -> bool {
        core.segments.oldest(core.segments.pool(segment)) == Some(segment)
    }

    /// Whether a segment of a pool can be reclaimed now.
    fn can_go(core: &Core, pool: u8) -> bool {
        if !Self::is_in_order(core, pool) {
            return core.segments.sealed(pool) > 0;
        }
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

    /// The segment of a pool that goes next; nothing: the next survey says it.
    fn next(core: &mut Core, pool: u8) -> Option<u32> {
        if Self::is_in_order(core, pool) {
            return core.segments.oldest(pool);
        }
        if let Some(stale) = core.segments.stale(pool) {
            return Some(stale);
        }
        let coldest = core.worth.coldest(pool, &core.segments)?;
        let (from, to) = core.segments.drops(coldest);
        let most = core.geometry().segment_bytes / 16 * DROPS_SIXTEENTHS;
        let few = Self::is_oldest(core, coldest) || (to - from) * DROP_BYTES <= most;
        let oldest = core.segments.oldest(pool);
        let sealed = oldest.filter(|it| core.segments.state(*it) == State::Sealed);
        if few { Some(coldest) } else { sealed }
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
        if core.segments.has_dead()
            && let Some(dead) =
                bits(core.segments.holding()).find_map(|pool| Self::dead(core, pool))
        {
            self.taker = core.segments.pool(dead);
            return self.release(core, dead);
        }
        let Some((pool, taker)) = self.victim(core) else { return };
        // Also where it is the index that has no more room: small blocks never fill the ring.
        core.admission.end_filling(taker);
        let Some(victim) = Self::next(core, pool) else { return };
        self.taker = taker;
        match core.segments.state(victim) {
            State::Unread => {
                core.recovery.seen(pool);
                self.release(core, victim);
            }
            _ if core.segments.live(victim) == 0
                && (Self::is_oldest(core, victim) || !core.segments.has_plain(victim)) =>
            {
                self.release(core, victim);
            }
            _ => {
                core.segments.set(victim, State::Victim);
                (self.victim, self.pool) = (victim, pool);
                self.kept.begin(victim);
                self.weights = [0; RANKS];
                core.admission.earn(core.now().ns);
                self.age = core.admission.age_to_move(pool, core.worth.age_to_move(pool));
                self.begin(Stage::Weigh);
            }
        }
    }

    /// A segment of a pool that is not to be trusted, and that no entry points to any more. One
    /// whose drops could not all be read stays until nothing older is left.
    fn dead(core: &Core, pool: u8) -> Option<u32> {
        core.segments.find(pool, |segment| {
            let (from, to) = core.segments.drops(segment);
            core.segments.state(segment) == State::Dead
                && core.segments.live(segment) == 0
                && (from == to || Self::is_oldest(core, segment))
        })
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
            if self.stage == Stage::Empty && !self.kept.keep(core, log, &record) {
                return false;
            }
            if let Some((position, entry)) = Self::live(core, self.victim, &record) {
                let rank = Self::rank(core, holds, &entry, record.key.lo(), self.age);
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
        let age = core.worth.clock.age(entry.stamp());
        let rank = u64::from(HELD - 1) * (most.saturating_sub(age)) / most.max(1);
        (age < most).then(|| u8::try_from(rank).expect("below HELD"))
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
            self.kept.account(core);
            self.stage = Stage::Drain;
            return;
        }
        self.room = core.geometry().segment_bytes / 8 * MOVED_EIGHTHS;
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
            core.segments.set(self.victim, State::Dead);
        }
        if core.segments.live(self.victim) > 0 {
            return;
        }
        log.hurry();
        self.stage = Stage::Settle;
    }
}
