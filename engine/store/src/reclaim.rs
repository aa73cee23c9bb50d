//! Reclaim: the oldest segment's blocks are evicted, those that were hit or are held are moved.
//!
//! The victim's pages are read twice: to weigh what should move, and to move or evict it. At most
//! 7/8 of a segment moves, so each segment gains space. A hold is no reason to wait: a held block
//! is moved first of all, and evicted when there is no room.

use crate::core::{Core, Knowledge};
use crate::entry::Entry;
use crate::format::{PAGE, Page, Record, RecordKind};
use crate::holds::Holds;
use crate::index::Position;
use crate::log::{Claim, Log};
use crate::moves::Moves;
use crate::segments::State;
use crate::task::{Outcome, Pool, Verb};

/// Spare segments below which the oldest is reclaimed.
const SPARE: usize = 2;
/// Ranks of blocks: held, then hits, then shallow before deep.
const RANKS: usize = 64;
const HELD: u8 = 63;
/// The buffer that pages are read into; the others are for moves.
const SCAN: u16 = 0;

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
    quota: u64,
    /// Hits that a block needs to be moved.
    least_hits: u8,
    moves: Moves,
}

impl Reclaim {
    pub(crate) fn new(buffers: u16) -> Self {
        Self {
            stage: Stage::Idle,
            victim: 0,
            chunk: Chunk::None,
            first: 0,
            count: 0,
            next_page: 0,
            page: Page::new(),
            loaded: false,
            record_at: 0,
            weights: [0; RANKS],
            threshold: 0,
            quota: 0,
            least_hits: 1,
            moves: Moves::new(buffers),
        }
    }

    /// The end of a transfer with one of the buffers.
    pub(crate) fn ended(&mut self, core: &mut Core, log: &mut Log, buffer: u32, end: Outcome) {
        if buffer == u32::from(SCAN) {
            let well = end == Outcome::Done;
            self.chunk = if well { Chunk::There } else { Chunk::Unreadable };
        } else {
            self.moves.ended(core, log, buffer, end);
        }
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
        match self.stage {
            Stage::Idle => self.choose(core),
            Stage::Weigh | Stage::Empty => self.scan(core, log, holds, pool, budget),
            Stage::Drain => self.drain(core, log),
            Stage::Settle => {
                log.hurry();
                if log.unwritten(core) > self.moves.last_serial() {
                    self.release(core);
                }
            }
        }
    }

    fn release(&mut self, core: &mut Core) {
        core.segments.release_oldest();
        core.stats.reclaimed += 1;
        self.stage = Stage::Idle;
    }

    fn choose(&mut self, core: &mut Core) {
        let Some(oldest) = core.segments.oldest() else { return };
        let state = core.segments.state(oldest);
        if state == State::Dead {
            if core.segments.live(oldest) == 0 {
                self.release(core);
            }
            return;
        }
        let short = core.segments.spare() < SPARE || core.index.is_crowded();
        if !short || core.is_broken() {
            return;
        }
        match state {
            // After a restart nothing is known of its hits: nothing of it would move.
            State::Unread if core.recovery.may_evict_unread => {
                core.recovery.unread -= 1;
                self.release(core);
            }
            State::Sealed if core.segments.live(oldest) == 0 => self.release(core),
            State::Sealed if core.recovery.knowledge == Knowledge::Whole => {
                core.segments.set(oldest, State::Victim);
                self.victim = oldest;
                self.weights = [0; RANKS];
                core.admission.earn(core.now().ns);
                self.least_hits = core.admission.hits_to_move();
                self.begin(Stage::Weigh);
            }
            _ => {}
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
        core.buffer_task(SCAN.into(), Verb::Read, at, length);
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
                    if !self.moves.has_room() {
                        return false;
                    }
                    let placed = log.place(core, padded, Claim::Move);
                    match placed {
                        Some(placed) => {
                            self.quota -= u64::from(padded);
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
        rank >= self.threshold && self.quota >= u64::from(bytes)
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
        self.quota = core.geometry().segment_bytes / 8 * 7;
        let mut sum = 0;
        self.threshold = 0;
        for rank in (0..RANKS).rev() {
            sum += self.weights[rank];
            if sum > self.quota {
                // Of this rank as many move as fit.
                self.threshold = u8::try_from(rank).expect("64 ranks");
                break;
            }
        }
        self.begin(Stage::Empty);
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
