//! Recovery: the pages of all segments, newest first, while requests are served. Pools are read
//! together, in the order of epochs; each keeps its own account of drops.
//!
//! Of two records of a key, the one in the newer segment counts, and in one segment the later one
//! (`log.rs` gives the reason why this is the order in which they were made). Entries already in
//! the index therefore stay, with two exceptions: entries of the segment that is being read, and
//! drops that were written again. Against such a drop, a put in a segment above the drop's original
//! epoch counts, and a put behind the drop itself in its own segment.

use crate::config::{StoreGeometry, UNIT_BYTES};
use crate::core::Core;
use crate::drops::{Drops, Hole};
use crate::entry::{Entry, Kind};
use crate::fifo::Fifo;
use crate::format::{PAGE, POOLS_MAX, Page, PageHeader, RECORDS_MAX, Record, RecordKind};
use crate::hint::WorthClass;
use crate::index::{Hash, Position};
use crate::key::Key;
use crate::log::Log;
use crate::segments::{SegmentState, bits};
use crate::task::{Outcome, Pool};
use crate::worth::{AGE_MAX, TICKS_OF_STORE};

/// Pages in a row that are none of the segment's, behind the last one that is: there the segment
/// ends. One alone may be damaged.
const END_PAGES: u32 = 8;
/// Segments that are read before older ones may be evicted for space.
const READ_FIRST: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageRead {
    Reading,
    There,
    Unreadable,
}

/// A run of pages of one segment, in a cell of the buffers.
#[derive(Clone, Copy, Debug)]
struct PageRun {
    segment: u32,
    first: u32,
    count: u32,
}

/// The remaining work when all pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Reading,
    /// Gaps are being written down.
    Saying,
    Unwritten(u64),
    Unflushed(u64),
    Done,
}

/// The reading of all pages.
#[derive(Debug)]
pub(crate) struct Recovery {
    /// Cells of the buffers in the order in which they are looked at.
    queue: Fifo<u32>,
    chunks: Box<[Option<(PageRun, PageRead)>]>,
    pages_first: u32,
    page: Page,
    next_page: u32,
    /// Pages of the segment so far.
    pages: u32,
    loaded: bool,
    record_at: u16,
    /// Of each record of the page: the key's hash, and its namespace's number.
    hashes: Box<[(Hash, Option<u16>)]>,
    /// And where its entry is likely to be.
    places: Box<[Position]>,
    /// The next record among them.
    nth: usize,
    segments_read: usize,
    sequence: u64,
    /// Bit masks of pools: those whose newest segment with pages was read, and those whose numbers
    /// of drops new pages can continue.
    newest_read: u16,
    resumed: u16,
    /// Page of the last gap written down.
    gap_serial: Option<u64>,
    ending: Ending,
    /// Keeps the prefetching of tags from being optimised away.
    touched: u64,
}

impl Recovery {
    pub(crate) fn new(cells: u32, geometry: &StoreGeometry, block_mean: u32) -> Self {
        // The pages of a segment of such blocks, two pages that were not full, and those that show
        // its end: most segments take one read.
        let records = geometry.segment_bytes / u64::from(block_mean);
        let full = u32::try_from(records.div_ceil(RECORDS_MAX as u64)).unwrap_or(u32::MAX);
        let pages_first = full.saturating_add(2 + END_PAGES);
        Self {
            queue: Fifo::with_limit(cells as usize),
            chunks: vec![None; cells as usize].into_boxed_slice(),
            pages_first,
            page: Page::new(),
            next_page: 0,
            pages: 0,
            loaded: false,
            record_at: 0,
            hashes: vec![(Hash::default(), None); RECORDS_MAX].into_boxed_slice(),
            places: vec![Position::default(); RECORDS_MAX].into_boxed_slice(),
            nth: 0,
            segments_read: 0,
            sequence: 0,
            newest_read: 0,
            resumed: 0,
            gap_serial: None,
            ending: Ending::Reading,
            touched: 0,
        }
    }

    /// Whether the buffers belong to recovery.
    pub(crate) fn is_reading(&self) -> bool {
        self.ending == Ending::Reading
    }

    /// Bit mask of the pools whose numbers of drops new pages can continue.
    pub(crate) fn resumed(&self) -> u16 {
        self.resumed
    }

    /// Whether new pages and heads may state the number of durable drops: all gaps have records on
    /// the medium.
    pub(crate) fn is_done(&self) -> bool {
        self.ending == Ending::Done
    }

    pub(crate) fn ended(&mut self, cell: u32, end: Outcome) {
        let chunk = self.chunks[cell as usize].as_mut().expect("the cell is in use");
        let well = end == Outcome::Done;
        chunk.1 = if well { PageRead::There } else { PageRead::Unreadable };
    }

    /// Does what can be done now; looks at `budget` records at most.
    pub(crate) fn step(
        &mut self,
        core: &mut Core,
        log: &mut Log,
        drops: &mut [Drops; POOLS_MAX],
        pool: &impl Pool,
        budget: u32,
    ) {
        match self.ending {
            Ending::Reading => {
                self.issue(core);
                let mut left = budget;
                while left > 0 && self.go_on(core, drops, pool, &mut left) {}
                self.resume(core, log, drops);
            }
            Ending::Saying => self.say(core, log, drops),
            Ending::Unwritten(serial) => {
                if log.unwritten(core) > serial {
                    let ticket = core.flush.ticket();
                    core.flush.want(ticket);
                    self.ending = Ending::Unflushed(ticket);
                }
            }
            Ending::Unflushed(ticket) if core.flush.is_durable(ticket) => {
                self.ending = Ending::Done;
            }
            Ending::Unflushed(_) | Ending::Done => {}
        }
    }

    /// Begins to read the next segments while there is room.
    fn issue(&mut self, core: &mut Core) {
        loop {
            let queued = (0..self.queue.len()).filter_map(|at| self.queue.get(at));
            let chunks = queued.filter_map(|&cell| self.chunks[cell as usize]);
            let open = chunks.filter(|(chunk, _)| {
                matches!(
                    core.segments.state(chunk.segment),
                    SegmentState::Unread | SegmentState::Reading
                )
            });
            let Some(at) = core.recovery.unread.checked_sub(open.count() + 1) else { return };
            let Some(free) = self.chunks.iter().position(Option::is_none) else { return };
            let segment = core.segments.nth(at).expect("unread ones are in the order");
            let cell = u32::try_from(free).expect("made of a u32");
            self.read(core, cell, segment, 0, self.pages_first);
            self.queue.push(cell);
        }
    }

    fn read(&mut self, core: &mut Core, cell: u32, segment: u32, first: u32, most: u32) {
        let most = most.min(core.config().cell_bytes() / PAGE);
        let count = most.min(core.geometry().pages_max() - first);
        let chunk = PageRun { segment, first, count };
        self.chunks[cell as usize] = Some((chunk, PageRead::Reading));
        let at = core.geometry().page_at(segment, first + count - 1);
        core.cell_task(cell, at, u64::from(count) * u64::from(PAGE));
    }

    /// Takes one step with the first chunk. `false`: it is not there, or there is none.
    fn go_on(
        &mut self,
        core: &mut Core,
        drops: &mut [Drops; POOLS_MAX],
        pool: &impl Pool,
        left: &mut u32,
    ) -> bool {
        let Some(&cell) = self.queue.front() else {
            if core.recovery.unread == 0 {
                core.know_all();
                self.ending = Ending::Saying;
            }
            return false;
        };
        let (chunk, transfer) = self.chunks[cell as usize].expect("queued ones are in use");
        if transfer == PageRead::Reading {
            return false;
        }
        match core.segments.state(chunk.segment) {
            SegmentState::Unread => core.segments.set(chunk.segment, SegmentState::Reading),
            SegmentState::Reading => {}
            // Given up meanwhile.
            _ => {
                self.free(cell);
                return true;
            }
        }
        let drops = &mut drops[usize::from(core.segments.pool(chunk.segment))];
        if transfer == PageRead::Unreadable || !self.loaded && self.is_over(chunk) {
            self.chunk_end(core, drops, cell, (chunk, transfer));
            return true;
        }
        if !self.loaded {
            *left = left.saturating_sub(1);
            if self.load(core, drops, pool, cell, chunk) == Hole::Damage {
                self.distrust(core, drops, cell, chunk.segment);
                return true;
            }
        }
        while let Some((record, _, next)) = self.page.record(self.record_at) {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            self.record(core, drops, chunk.segment, &record);
            (self.record_at, self.nth) = (next, self.nth + 1);
        }
        (self.loaded, self.next_page) = (false, self.next_page + 1);
        true
    }

    /// Takes the next page out of its cell.
    fn load(
        &mut self,
        core: &mut Core,
        drops: &mut Drops,
        pool: &impl Pool,
        cell: u32,
        chunk: PageRun,
    ) -> Hole {
        let (buffer, first) = core.cell(cell);
        let at = (chunk.count - 1 - self.next_page) * PAGE;
        pool.load(buffer, first + at, self.page.bytes_mut());
        (self.loaded, self.record_at) = (true, 0);
        let index = chunk.first + self.next_page;
        let epoch = core.segments.epoch(chunk.segment);
        let header = self.page.decode(core.instance(), epoch, chunk.segment, index);
        let of_pool = |header: &PageHeader| header.pool == core.segments.pool(chunk.segment);
        let Some(header) = header.filter(of_pool) else {
            self.page.clear();
            return Hole::Harmless;
        };
        self.pages = index + 1;
        self.sequence = self.sequence.max(header.sequence + u64::from(self.page.count()));
        drops.durable(header.drops_durable);
        self.touch(core);
        let ledger = core.ledger(header.pool);
        drops.page(ledger, header.drops_before, self.page.drops())
    }

    /// Hashes all keys of the page, then loads their tags, then their entries. Loops that miss the
    /// cache are short: a core looks some 300 instructions ahead, and overlaps only the misses
    /// within that window.
    fn touch(&mut self, core: &mut Core) {
        let (mut at, mut count) = (0, 0);
        while let Some((record, _, next)) = self.page.record(at)
            && let Some(slot) = self.hashes.get_mut(count)
        {
            let number = core.spaces.number_of(record.uid);
            let hash = core.index.hash(number.unwrap_or(0), record.key.lo());
            *slot = (hash, number);
            (at, count) = (next, count + 1);
        }
        let Self { hashes, places, touched, .. } = self;
        let (hashes, places) = (&hashes[..count], &mut places[..count]);
        let index = &core.index;
        *touched ^= hashes.iter().fold(0, |tags, (hash, _)| tags ^ index.touch(*hash));
        for (place, (hash, _)) in places.iter_mut().zip(hashes) {
            *place = index.expect(*hash);
        }
        *touched ^= places.iter().fold(0, |entries, place| entries ^ index.get(*place).lo());
        self.nth = 0;
    }

    fn record(&mut self, core: &mut Core, drops: &mut Drops, segment: u32, record: &Record) {
        if record.kind == RecordKind::Gap {
            if record.key != Key::default() {
                core.segments.set_gaps(segment);
                drops.known(record.key.lo(), record.key.hi());
            }
            return;
        }
        if core.is_strange(record.uid, record.key.lo(), segment) {
            return;
        }
        let (hash, Some(number)) = self.hashes[self.nth] else { return };
        let found = core.index.find(hash, record.key, number);
        let found = found.map(|(position, entry)| (position, *entry));
        if record.kind == RecordKind::Put {
            let end = u64::from(record.offset) * u64::from(UNIT_BYTES) + u64::from(record.length);
            let possible = (1..=core.geometry().block_max()).contains(&record.length)
                && end <= core.geometry().segment_bytes;
            if !possible {
                return;
            }
            core.stats.recovered += 1;
        }
        let Some((position, old)) = found else {
            let entry = self.entry(core, (number, segment), record, None);
            return Self::add(core, hash, record.key, entry);
        };
        if Self::counts(core, &old, segment, record) {
            let new = self.entry(core, (number, segment), record, Some(&old));
            core.replace(position, &old, new);
        } else if record.kind == RecordKind::Put && !Self::is_recorded_drop(&old) {
            core.segments.set_stale(segment);
        }
    }

    /// Whether a record on the medium keeps older puts away. A put that was given up while
    /// recovery went on stands for a drop without a record.
    fn is_recorded_drop(entry: &Entry) -> bool {
        entry.kind() == Kind::Dropped && entry.bound() < u64::MAX
    }

    /// Whether a record overrules the present entry of its key.
    fn counts(core: &Core, old: &Entry, segment: u32, record: &Record) -> bool {
        let here = || core.geometry().segment_of(old.place()) == segment;
        let epoch = core.segments.epoch(segment);
        match (old.kind(), record.kind) {
            (Kind::Writing, _) => false,
            // A drop that was written again is older than the segment.
            (Kind::Live | Kind::Suspect, RecordKind::Drop) => here() && record.check >= epoch,
            (Kind::Live | Kind::Suspect, _) => here(),
            // The drop of which a newer segment has a copy: puts behind it count.
            (Kind::Dropped, RecordKind::Drop) => {
                record.check > old.bound() || record.check == epoch && old.bound() == epoch
            }
            (Kind::Dropped, _) => epoch > old.bound() || old.place() != 0 && here(),
        }
    }

    /// The entry of a record. When a block was used is not known: those of older segments count as
    /// older, up to the ticks in which the store is used once.
    fn entry(
        &self,
        core: &mut Core,
        (number, segment): (u16, u32),
        record: &Record,
        old: Option<&Entry>,
    ) -> Entry {
        if record.kind == RecordKind::Drop {
            let place = core.geometry().place(segment, 0);
            return Entry::dropped(record.key, number, record.check, place);
        }
        let read = u64::try_from(self.segments_read).unwrap_or(u64::MAX);
        let age = read * TICKS_OF_STORE / u64::from(core.segments.count());
        let place = (core.segments.pool(segment), record.length);
        let class = core.class_of_recovered((number, record.key), place, record.hint, old);
        let age = if class == WorthClass::Over { AGE_MAX } else { age };
        Entry::new(record.key, number, Kind::Live)
            .with_place(core.geometry().place(segment, record.offset))
            .with_class(class)
            .with_stamp(core.worth.clock.stamp(age))
            .with_length(record.length)
            .with_check(record.check)
    }

    /// A key of which nothing is known yet.
    fn add(core: &mut Core, hash: Hash, key: Key, entry: Entry) {
        if entry.kind() == Kind::Dropped {
            core.insert_dropped(hash, key, entry);
        } else {
            // A full index forgets the oldest: recovery comes to them last.
            let _ = core.insert_live(hash, key, entry);
        }
    }

    /// Whether all pages of a chunk are seen that count. Where chunks end makes no difference.
    fn is_over(&self, chunk: PageRun) -> bool {
        let seen = chunk.first + self.next_page;
        self.next_page == chunk.count || seen - self.pages >= END_PAGES
    }

    /// All pages of a chunk are seen: goes on with the segment's next ones, or ends it.
    fn chunk_end(
        &mut self,
        core: &mut Core,
        drops: &mut Drops,
        cell: u32,
        (chunk, transfer): (PageRun, PageRead),
    ) {
        let first = chunk.first + self.next_page;
        let more = transfer == PageRead::There
            && self.next_page == chunk.count
            && first - self.pages < END_PAGES
            && first < core.geometry().pages_max();
        (self.next_page, self.loaded) = (0, false);
        if more {
            return self.read(core, cell, chunk.segment, first, chunk.count.saturating_mul(2));
        }
        let at = core.recovery.unread - 1;
        assert!(core.segments.nth(at) == Some(chunk.segment), "segments are read in order");
        if self.pages == 0 {
            core.segments.release_nth(at);
        } else {
            core.segments.set_drops(chunk.segment, drops.numbers());
            let pool = core.segments.pool(chunk.segment);
            if drops.segment_end(core.ledger(pool)) == Hole::Damage {
                return self.distrust(core, drops, cell, chunk.segment);
            }
            core.segments.seal(chunk.segment, self.pages);
        }
        let pool = core.segments.pool(chunk.segment);
        core.recovery.seen(pool);
        self.segment_over(core, cell, pool);
        for pool in bits(core.recovery.overflow) {
            Self::give_up_older(core, pool);
        }
    }

    fn segment_over(&mut self, core: &mut Core, cell: u32, pool: u8) {
        self.segments_read += 1;
        core.recovery.may_evict_unread |= self.segments_read >= READ_FIRST;
        self.newest_read |= u16::from(self.pages > 0) << pool;
        self.pages = 0;
        self.free(cell);
    }

    fn free(&mut self, cell: u32) {
        let front = self.queue.pop();
        assert!(front == Some(cell), "chunks are looked at in order");
        self.chunks[cell as usize] = None;
        (self.next_page, self.loaded) = (0, false);
    }

    /// Durable drops are missing in or behind this segment: it and all older ones of its pool do
    /// not count.
    fn distrust(&mut self, core: &mut Core, drops: &mut Drops, cell: u32, segment: u32) {
        let pool = core.segments.pool(segment);
        let _ = drops.segment_end(core.ledger(pool));
        core.stats.distrusted += u64::from(core.recovery.unread_of[usize::from(pool)]);
        core.segments.set(segment, SegmentState::Dead);
        core.recovery.seen(pool);
        self.segment_over(core, cell, pool);
        Self::give_up_older(core, pool);
    }

    /// A pool's segments that are not read yet do not count.
    fn give_up_older(core: &mut Core, pool: u8) {
        while core.recovery.unread_of[usize::from(pool)] > 0 {
            core.recovery.seen(pool);
            core.segments.release_oldest(pool);
        }
    }

    /// Lets new pages continue the numbers of the newest pages of their pools.
    fn resume(&mut self, core: &Core, log: &mut Log, drops: &[Drops; POOLS_MAX]) {
        if self.resumed == u16::MAX {
            return;
        }
        for (pool, drops) in (0_u8..).zip(drops) {
            let bit = 1 << pool;
            let unread = core.recovery.unread_of[usize::from(pool)] > 0;
            if self.resumed & bit == 0 && (self.newest_read & bit != 0 || !unread) {
                self.resumed |= bit;
                log.resume(pool, self.sequence, drops.last());
                log.set_drops_durable(pool, drops.drops_durable());
            }
        }
    }

    /// Writes down which drops are missing without harm.
    fn say(&mut self, core: &mut Core, log: &mut Log, drops: &mut [Drops; POOLS_MAX]) {
        for (pool, drops) in (0..).zip(drops.iter_mut()) {
            while let Some((from, to)) = drops.unrecorded() {
                let key = Key::of(to, from);
                let record = Record::plain(RecordKind::Gap, key, 0, core.now().unix);
                let serial = log.append_plain(core, pool, &record, true);
                let Some(serial) = serial else { break };
                self.gap_serial = self.gap_serial.max(Some(serial));
                drops.recorded();
            }
        }
        if drops.iter().all(|drops| drops.unrecorded().is_none()) {
            self.ending = self.gap_serial.map_or(Ending::Done, Ending::Unwritten);
        }
    }
}
