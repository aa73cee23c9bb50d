//! The writing ends of the rings: where blocks are placed, and the pages their records go to.
//!
//! One segment of a pool is open, and takes its blocks and drops. Up to three before it are
//! closing: writes of blocks placed there are in flight, and the blocks' records go there. A drop
//! goes to the open segment, which has the highest epoch of all with content in its pool, so that
//! records of one key have ascending epochs. A drop whose segment is reclaimed before an older
//! segment is written again, with its original epoch.

use crate::config::StoreGeometry;
use crate::core::{Core, Image};
use crate::format::{Head, PAGE_BYTES, POOLS_MAX, Page, PageHeader, Record, RecordKind};
use crate::key::Key;
use crate::placed::{OPENS, Placed, pool_of};
use crate::segments::{SegmentState, bits};
use crate::task::Verb;

/// Purpose of a claim of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceClaim {
    /// A put: leaves one ready segment to moves.
    Put,
    /// A move or a drop.
    Move,
}

#[derive(Debug)]
struct Open {
    segment: u32,
    /// Bytes placed.
    used: u64,
    /// Bytes up to the end of the last block with a record.
    recorded: u64,
    /// Pages closed.
    pages: u32,
    /// The page that records go to now.
    page: Page,
    /// Of that page.
    header: PageHeader,
    serial: u64,
    since: u64,
    /// Whether a request waits for the page.
    urgent: bool,
    /// Drops before this segment's end, once it is closing.
    frozen: Option<u64>,
    /// Placed blocks without a record yet.
    in_flight: u32,
    /// Pages on their way to the medium.
    writing: u32,
    /// A flush of this makes all pages durable that are written.
    ticket: u64,
}

/// What the records of a segment still need to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentStand {
    /// The write of the page with this serial.
    Page(u64),
    /// A flush of this.
    Flush(u64),
}

/// The head of a pool's log: its open segment, and its account of drops.
#[derive(Clone, Copy, Debug, Default)]
struct LogHead {
    current: Option<usize>,
    /// Drops of the pool's life.
    drops: u64,
    drops_durable: u64,
    /// `drops_durable` as the last page written has it.
    written_durable: u64,
}

/// The heads of all pools' logs.
#[derive(Debug)]
pub(crate) struct Log {
    /// `OPENS` rows for each pool.
    opens: Box<[Option<Open>]>,
    /// Rows in use, as bits of each pool.
    used: [u8; POOLS_MAX],
    ends: [LogHead; POOLS_MAX],
    /// Pools with a row in use, as bits.
    active: u16,
    spare_pages: Vec<Page>,
    /// There are pages for all pools.
    pooled: bool,
    /// Records of the store's life.
    sequence: u64,
    next_serial: u64,
    /// A flush of this makes all pages of segments durable that are complete. Those of an earlier
    /// process too, which may be in the drive's cache.
    sealed: u64,
}

/// A start has written the supers by then: any flush behind it covers this.
const FIRST_FLUSH: u64 = 1;

/// Open segments that each pool can always have, with a page each; other pages are shared.
const OWN: usize = 2;
const PAGES: usize = POOLS_MAX * OWN + OPENS - OWN;

/// Bytes of RAM of all rows, and of the pages of a store without pools; with some they are
/// `PAGES`.
pub(crate) const LOG_BYTES: u64 = (POOLS_MAX * OPENS * size_of::<Option<Open>>()
    + OPENS * (size_of::<Page>() + PAGE_BYTES)) as u64;

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            opens: (0..POOLS_MAX * OPENS).map(|_| None).collect(),
            used: [0; POOLS_MAX],
            ends: [LogHead::default(); POOLS_MAX],
            active: 0,
            spare_pages: (0..OPENS).map(|_| Page::new()).collect(),
            pooled: false,
            sequence: 0,
            next_serial: 1,
            sealed: FIRST_FLUSH,
        }
    }

    /// Allocates what pools need. Before any segment is open.
    pub(crate) fn set_pooled(&mut self) {
        if !self.pooled {
            self.pooled = true;
            self.spare_pages.extend((OPENS..PAGES).map(|_| Page::new()));
        }
    }

    fn end(&mut self, pool: u8) -> &mut LogHead {
        &mut self.ends[usize::from(pool)]
    }

    /// Rows that are in use: of one pool.
    fn rows_of(&self, pool: u8) -> impl Iterator<Item = usize> + use<> {
        let used = self.used[usize::from(pool)];
        let first = usize::from(pool) * OPENS;
        (0..OPENS).filter(move |row| used >> row & 1 == 1).map(move |row| first + row)
    }

    /// Of all pools.
    fn rows(&self) -> impl Iterator<Item = usize> + '_ {
        bits(self.active).flat_map(|pool| self.rows_of(pool))
    }

    fn open_rows(&self) -> impl Iterator<Item = &Open> {
        self.rows().filter_map(|row| self.opens[row].as_ref())
    }

    /// A row begins or ends to be in use.
    fn mark(&mut self, row: usize, open: Option<Open>) -> Option<Open> {
        debug_assert!(
            open.is_some() != self.opens[row].is_some(),
            "row {row} begins or ends twice"
        );
        let (pool, bit) = (row / OPENS, 1 << (row % OPENS));
        self.used[pool] &= !bit;
        self.used[pool] |= if open.is_some() { bit } else { 0 };
        self.active &= !(1 << pool);
        self.active |= u16::from(self.used[pool] != 0) << pool;
        std::mem::replace(&mut self.opens[row], open)
    }

    /// Goes on counting where a pool ends on the medium.
    pub(crate) fn resume(&mut self, pool: u8, sequence: u64, drops: u64) {
        self.sequence = self.sequence.max(sequence);
        let end = self.end(pool);
        end.drops = end.drops.max(drops);
    }

    /// Sets the number of durable drops of a pool for later pages and heads.
    pub(crate) fn set_drops_durable(&mut self, pool: u8, drops: u64) {
        let end = self.end(pool);
        end.drops_durable = end.drops_durable.max(drops);
    }

    /// Of each pool: drops that a flush beginning now makes durable, all before the first that is
    /// not written.
    pub(crate) fn drops_written(&self, core: &Core) -> [u64; POOLS_MAX] {
        let mut drops = self.ends.map(|end| end.drops);
        let images = core.images().filter_map(|image| match image {
            Image::Page { open, drops_before, .. } => Some((pool_of(open), drops_before?)),
            _ => None,
        });
        let pages = self.open_rows().filter(|open| open.page.has_drops());
        for (pool, before) in
            images.chain(pages.map(|page| (page.header.pool, page.header.drops_before)))
        {
            let written = &mut drops[usize::from(pool)];
            *written = before.min(*written);
        }
        drops
    }

    /// The lowest serial of a page that is not written.
    pub(crate) fn unwritten(&self, core: &Core) -> u64 {
        let images = core.images().filter_map(|image| match image {
            Image::Page { serial, .. } => Some(serial),
            _ => None,
        });
        let pages = self.open_rows().filter(|open| !open.page.is_empty());
        images.chain(pages.map(|open| open.serial)).min().unwrap_or(self.next_serial)
    }

    /// Whether all pages with records are on the medium.
    pub(crate) fn is_written(&self, core: &Core) -> bool {
        self.unwritten(core) == self.next_serial
    }

    fn open_mut(&mut self, row: u8) -> &mut Open {
        self.opens[usize::from(row)].as_mut().expect("an open segment has a row")
    }

    fn current(&self, pool: u8) -> Option<&Open> {
        self.ends[usize::from(pool)].current.and_then(|row| self.opens[row].as_ref())
    }

    /// Whether a pool's current segment takes one more record, and a block of that many bytes if
    /// that is not 0.
    fn has_room(&self, core: &Core, pool: u8, bytes: u64) -> bool {
        let Some(open) = self.current(pool) else { return false };
        // A segment with all of the index could not be reclaimed, being the open one.
        let entries = u64::from(core.segments.live(open.segment) + open.in_flight);
        if bytes > 0 && core.is_many(entries) {
            return false;
        }
        // Each record may need a page of its own; the head takes one.
        let records = u64::from(open.pages) + u64::from(!open.page.is_empty());
        let pages = records + u64::from(open.in_flight) + 2;
        open.used + bytes + pages * PAGE_BYTES as u64 <= core.geometry().segment_bytes
    }

    /// Whether a pool may have one more segment open: what other pools need is left.
    fn has_page(&self, pool: u8) -> bool {
        if !self.pooled {
            return true;
        }
        let rows = |used: &u8| used.count_ones() as usize;
        let kept: usize = self.used.iter().map(|used| OWN.saturating_sub(rows(used))).sum();
        rows(&self.used[usize::from(pool)]) < OWN || self.spare_pages.len() > kept
    }

    /// Makes a pool's next ready segment the current one. `false`: not now.
    fn roll(&mut self, core: &mut Core, pool: u8, claim: SpaceClaim) -> bool {
        core.segments.want(pool);
        let kept = if claim == SpaceClaim::Put { 1 } else { 0 };
        let first = usize::from(pool) * OPENS;
        let free = (first..first + OPENS).find(|row| self.opens[*row].is_none());
        let Some(row) = free else { return false };
        if core.segments.ready(pool) <= kept || !self.has_page(pool) {
            return false;
        }
        let Some(segment) = core.segments.open(pool) else { return false };
        let LogHead { current, drops, .. } = *self.end(pool);
        if let Some(old) = current.and_then(|row| self.opens[row].as_mut()) {
            old.frozen = Some(drops);
            core.segments.close(old.segment, drops);
        }
        core.segments.set_drops(segment, (drops, drops));
        let page = self.spare_pages.pop().expect("has_page");
        let open = Open {
            segment,
            // Behind the copy of the head.
            used: PAGE_BYTES as u64,
            recorded: PAGE_BYTES as u64,
            pages: 0,
            page,
            header: PageHeader::default(),
            serial: 0,
            since: 0,
            urgent: false,
            frozen: None,
            in_flight: 0,
            writing: 0,
            ticket: 0,
        };
        self.mark(row, Some(open));
        self.end(pool).current = Some(row);
        true
    }

    /// Finds room for a block of that many bytes on the medium, in a pool.
    pub(crate) fn place(
        &mut self,
        core: &mut Core,
        pool: u8,
        bytes: u32,
        claim: SpaceClaim,
    ) -> Option<Placed> {
        // While space is short, what is there belongs to moves: else reclaim cannot end.
        if claim == SpaceClaim::Put && core.segments.ready(pool) == 0 {
            core.segments.want(pool);
            return None;
        }
        if !self.has_room(core, pool, bytes.into()) && !self.roll(core, pool, claim) {
            return None;
        }
        let row = self.end(pool).current.expect("has_room or roll");
        let open = self.opens[row].as_mut().expect("the current one is open");
        let offset = u32::try_from(open.used / 512).expect("a segment has at most 16 GiB");
        open.used += u64::from(bytes);
        open.in_flight += 1;
        debug_assert!(open.used <= core.geometry().segment_bytes, "a block beyond its segment");
        debug_assert!(open.used.is_multiple_of(512), "{bytes} bytes leave the next block no place");
        let place = core.geometry().place(open.segment, offset);
        Some(Placed { open: u8::try_from(row).expect("64 rows"), place, offset })
    }

    /// A placed block will have no record: its bytes stay a hole, unless no live block is or comes
    /// behind it. Blocks whose writes fail must not use up the ring.
    pub(crate) fn forgo(&mut self, placed: Placed) {
        let open = self.open_mut(placed.open);
        open.in_flight -= 1;
        if open.in_flight == 0 {
            open.used = open.recorded;
        }
    }

    /// The place of a block is kept until it is forgone once more.
    pub(crate) fn keep(&mut self, placed: Placed) {
        self.open_mut(placed.open).in_flight += 1;
    }

    /// Appends the record of a placed block; `urgent` if a request waits for its page. Returns the
    /// serial of the page, or `None` when no page can be closed now.
    pub(crate) fn append(
        &mut self,
        core: &mut Core,
        placed: Placed,
        record: &Record,
        metadata: &[u8],
        urgent: bool,
    ) -> Option<u64> {
        let record = Record { offset: placed.offset, ..*record };
        let serial = self.write(core, usize::from(placed.open), &record, metadata, urgent)?;
        let end = StoreGeometry::place_at(placed.offset.into());
        let end = end + u64::from(core.geometry().padded(record.length));
        let open = self.open_mut(placed.open);
        open.in_flight -= 1;
        open.recorded = open.recorded.max(end);
        debug_assert!(open.recorded <= open.used, "a record of a block that was not placed");
        Some(serial)
    }

    /// Appends a record that belongs to no block to a pool's current segment: a drop.
    pub(crate) fn append_plain(
        &mut self,
        core: &mut Core,
        pool: u8,
        record: &Record,
        urgent: bool,
    ) -> Option<u64> {
        let current = self.current(pool);
        let fits = current.is_some_and(|open| !open.page.is_empty() && open.page.fits(0));
        if !fits && !self.has_room(core, pool, 0) && !self.roll(core, pool, SpaceClaim::Move) {
            return None;
        }
        let row = self.end(pool).current.expect("has_room or roll");
        self.write(core, row, record, &[], urgent)
    }

    fn write(
        &mut self,
        core: &mut Core,
        row: usize,
        record: &Record,
        metadata: &[u8],
        urgent: bool,
    ) -> Option<u64> {
        let full = self.opens[row].as_ref().is_some_and(|open| !open.page.fits(metadata.len()));
        if full && !self.close_page(core, row) {
            return None;
        }
        let sequence = self.sequence;
        let end = self.ends[row / OPENS];
        let open = self.opens[row].as_mut().expect("the row is open");
        if open.page.is_empty() {
            open.header = PageHeader {
                epoch: core.segments.epoch(open.segment),
                sequence,
                drops_before: open.frozen.unwrap_or(end.drops),
                drops_durable: 0,
                segment: open.segment,
                index: open.pages,
                pool: core.segments.pool(open.segment),
            };
            (open.serial, open.since, open.urgent) = (self.next_serial, core.now().ns, false);
            self.next_serial += 1;
        }
        let mut record = *record;
        if record.kind == RecordKind::Drop && record.check == 0 {
            record.check = open.header.epoch;
        }
        if record.kind == RecordKind::Gap && record.key != Key::default() {
            core.segments.set_gaps(open.segment);
        }
        open.page.append(&record, metadata);
        open.urgent |= urgent;
        let serial = open.serial;
        self.sequence += 1;
        self.ends[row / OPENS].drops += u64::from(record.kind == RecordKind::Drop);
        Some(serial)
    }

    /// Hands a page to the medium. `false`: no image is free.
    fn close_page(&mut self, core: &mut Core, row: usize) -> bool {
        if !core.has_image() {
            return false;
        }
        let end = &mut self.ends[row / OPENS];
        let drops_durable = end.drops_durable;
        end.written_durable = drops_durable;
        let open = self.opens[row].as_mut().expect("the row is open");
        let header = PageHeader { drops_durable, ..open.header };
        let image = Image::Page {
            segment: open.segment,
            open: u8::try_from(row).expect("64 rows"),
            index: open.pages,
            serial: open.serial,
            drops_before: open.page.has_drops().then_some(header.drops_before),
        };
        let at = core.geometry().page_at(open.segment, open.pages);
        let page = &mut open.page;
        core.write_image(image, Verb::Write, at, PAGE_BYTES, |core, bytes| {
            bytes.copy_from_slice(page.encode(&header, core.instance()));
        });
        open.page.clear();
        open.pages += 1;
        open.writing += 1;
        core.stats.pages += 1;
        true
    }

    /// Of a segment that takes records: its row, its closed pages, and the page that is not closed.
    pub(crate) fn open_page(&self, segment: u32) -> Option<(u8, u32, &Page)> {
        let row = self.row_of(segment)?;
        let open = self.opens[row].as_ref()?;
        Some((u8::try_from(row).expect("64 rows"), open.pages, &open.page))
    }

    /// The row of a segment that takes records.
    fn row_of(&self, segment: u32) -> Option<usize> {
        let is_it = |open: &Open| open.segment == segment;
        self.rows().find(|row| self.opens[*row].as_ref().is_some_and(is_it))
    }

    /// What all records of a segment still need to be durable.
    pub(crate) fn stand_of(&self, core: &Core, segment: u32) -> SegmentStand {
        let open = self.row_of(segment).and_then(|row| self.opens[row].as_ref());
        if let Some(open) = open.filter(|open| !open.page.is_empty()) {
            return SegmentStand::Page(open.serial);
        }
        let images = core.images().filter_map(|image| match image {
            Image::Page { segment: of, serial, .. } if of == segment => Some(serial),
            _ => None,
        });
        match images.max() {
            Some(serial) => SegmentStand::Page(serial),
            None => SegmentStand::Flush(open.map_or(self.sealed, |open| open.ticket)),
        }
    }

    /// A request waits for the page of a segment that is not closed, if there is one.
    pub(crate) fn hurry_segment(&mut self, segment: u32) {
        if let Some(open) = self.row_of(segment).and_then(|row| self.opens[row].as_mut()) {
            open.urgent |= !open.page.is_empty();
        }
    }

    /// A page is on the medium; a flush of this makes it durable.
    pub(crate) fn page_written(&mut self, row: u8, ticket: u64) {
        let open = self.open_mut(row);
        open.writing -= 1;
        open.ticket = ticket;
    }

    /// Marks the pages with records as urgent.
    pub(crate) fn hurry(&mut self) {
        for pool in bits(self.active) {
            for row in self.rows_of(pool) {
                if let Some(open) = self.opens[row].as_mut() {
                    open.urgent |= !open.page.is_empty();
                }
            }
        }
    }

    /// Appends a mark if no page states the current number of durable drops: without it, recovery
    /// would not notice the loss of the last page with drops.
    fn mark_durable(&mut self, core: &mut Core, pool: u8) {
        let LogHead { current, drops_durable, written_durable, .. } = *self.end(pool);
        if drops_durable <= written_durable || current.is_none() || core.is_held_up() {
            return;
        }
        let mut own = self.rows_of(pool).filter_map(|row| self.opens[row].as_ref());
        if own.all(|open| open.page.is_empty()) {
            let record = Record::mark(core.now().unix);
            let _ = self.append_plain(core, pool, &record, false);
        }
    }

    /// Closes pages that are due, and seals segments that are complete.
    pub(crate) fn step(&mut self, core: &mut Core) {
        for pool in bits(self.active) {
            self.mark_durable(core, pool);
            self.step_pool(core, pool);
        }
    }

    fn step_pool(&mut self, core: &mut Core, pool: u8) {
        for row in self.rows_of(pool) {
            let Some(open) = &self.opens[row] else { continue };
            let closing = core.segments.state(open.segment) == SegmentState::Closing;
            let complete = closing && open.in_flight == 0;
            let old = core.now().ns.saturating_sub(open.since) >= core.config().times.page;
            if !open.page.is_empty() && (open.urgent || old || complete) {
                self.close_page(core, row);
            }
            let Some(open) = &self.opens[row] else { continue };
            if complete && open.page.is_empty() && open.writing == 0 {
                core.segments.seal(open.segment, open.pages);
                let open = self.mark(row, None).expect("the row is open");
                self.sealed = self.sealed.max(open.ticket);
                self.spare_pages.push(open.page);
            }
        }
    }

    /// The head to write now.
    pub(crate) fn head(
        &self,
        core: &Core,
        (segment, before): (u32, u8),
        floors: [u64; POOLS_MAX],
    ) -> Head {
        let pool = core.segments.pool(segment);
        let second = core.second_ledger((segment, before), pool);
        Head {
            epoch: core.segments.epoch(segment),
            pool,
            second,
            ledgers: [pool, second].map(|pool| *core.ledger(pool)),
            floors,
            drops: self.ends.map(|end| end.drops_durable),
            time: core.now().unix,
        }
    }
}
