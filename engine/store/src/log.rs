//! The writing end of the ring: where blocks are placed, and the pages their records go to.
//!
//! One segment is open, and takes blocks and drops. Up to three before it are closing: blocks
//! placed there are still being written, and their records go there. A drop goes to the open
//! segment, which has the highest epoch of all with content, so that it is never reclaimed before
//! what it drops; records of one key have ascending epochs for that reason.

use crate::core::{Core, Image};
use crate::format::{Head, PAGE_BYTES, Page, PageHeader, Record, RecordKind};
use crate::segments::State;
use crate::task::Verb;

/// Segments that take records at once.
const OPENS: usize = 4;

/// Where a block was placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Row of the open segment.
    pub(crate) open: u8,
    /// In units from the area's begin.
    pub(crate) place: u64,
    /// In units from the segment's begin.
    offset: u32,
}

/// Who wants space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
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
    /// Pages closed.
    pages: u32,
    /// The page that records go to now.
    page: Page,
    /// Of that page.
    header: PageHeader,
    serial: u64,
    since: u64,
    /// Whether somebody waits for the page.
    urgent: bool,
    /// Drops before this segment's end, once it is closing.
    frozen: Option<u64>,
    /// Blocks placed whose records are missing.
    in_flight: u32,
    /// Pages on their way to the medium.
    writing: u32,
}

/// The writing end.
#[derive(Debug)]
pub(crate) struct Log {
    opens: [Option<Open>; OPENS],
    current: Option<usize>,
    spare_pages: Vec<Page>,
    /// Records and drops of the store's life.
    sequence: u64,
    drops: u64,
    drops_durable: u64,
    /// What the last page said of that.
    said: u64,
    next_serial: u64,
}

impl Log {
    pub(crate) fn new() -> Self {
        Self {
            opens: [const { None }; OPENS],
            current: None,
            spare_pages: (0..OPENS).map(|_| Page::new()).collect(),
            sequence: 0,
            drops: 0,
            drops_durable: 0,
            said: 0,
            next_serial: 1,
        }
    }

    /// Goes on counting where the medium ends.
    pub(crate) fn resume(&mut self, sequence: u64, drops: u64) {
        self.sequence = self.sequence.max(sequence);
        self.drops = self.drops.max(drops);
    }

    /// From now on pages and heads say that so many drops are durable.
    pub(crate) fn set_drops_durable(&mut self, drops: u64) {
        self.drops_durable = self.drops_durable.max(drops);
    }

    /// Drops that a flush beginning now makes durable: all before the first that is not written.
    pub(crate) fn drops_written(&self, core: &Core) -> u64 {
        let images = core.images().filter_map(|image| match image {
            Image::Page { drops_before, .. } => drops_before,
            _ => None,
        });
        let pages = self.opens.iter().flatten().filter(|open| open.page.has_drops());
        images.chain(pages.map(|open| open.header.drops_before)).min().unwrap_or(self.drops)
    }

    /// The lowest serial of a page that is not written.
    pub(crate) fn unwritten(&self, core: &Core) -> u64 {
        let images = core.images().filter_map(|image| match image {
            Image::Page { serial, .. } => Some(serial),
            _ => None,
        });
        let pages = self.opens.iter().flatten().filter(|open| !open.page.is_empty());
        images.chain(pages.map(|open| open.serial)).min().unwrap_or(self.next_serial)
    }

    fn open_mut(&mut self, row: u8) -> &mut Open {
        self.opens[usize::from(row)].as_mut().expect("an open segment has a row")
    }

    /// Whether the current segment takes one more record, and a block of that many bytes if that
    /// is not 0.
    fn has_room(&self, core: &Core, bytes: u64) -> bool {
        let Some(open) = self.current.and_then(|row| self.opens[row].as_ref()) else {
            return false;
        };
        // A segment with all of the index could not be reclaimed, being the open one.
        let entries = u64::from(core.segments.live(open.segment) + open.in_flight);
        if bytes > 0 && entries >= core.entries_of_segment() {
            return false;
        }
        // Each record may need a page of its own; the head takes one.
        let records = u64::from(open.pages) + u64::from(!open.page.is_empty());
        let pages = records + u64::from(open.in_flight) + 2;
        open.used + bytes + pages * PAGE_BYTES as u64 <= core.geometry().segment_bytes
    }

    /// Makes the next ready segment the current one. `false`: not now.
    fn roll(&mut self, core: &mut Core, claim: Claim) -> bool {
        let kept = if claim == Claim::Put { 1 } else { 0 };
        let Some(row) = self.opens.iter().position(Option::is_none) else { return false };
        if core.segments.ready() <= kept {
            return false;
        }
        let Some(segment) = core.segments.open() else { return false };
        if let Some(old) = self.current.and_then(|row| self.opens[row].as_mut()) {
            old.frozen = Some(self.drops);
            core.segments.close(old.segment);
        }
        let page = self.spare_pages.pop().expect("one for each row");
        self.opens[row] = Some(Open {
            segment,
            // Behind the copy of the head.
            used: PAGE_BYTES as u64,
            pages: 0,
            page,
            header: PageHeader::default(),
            serial: 0,
            since: 0,
            urgent: false,
            frozen: None,
            in_flight: 0,
            writing: 0,
        });
        self.current = Some(row);
        true
    }

    /// Finds room for a block of that many bytes on the medium.
    pub(crate) fn place(&mut self, core: &mut Core, bytes: u32, claim: Claim) -> Option<Placed> {
        // While space is short, what is there belongs to moves: else reclaim cannot end.
        if claim == Claim::Put && core.segments.ready() == 0 {
            return None;
        }
        if !self.has_room(core, bytes.into()) && !self.roll(core, claim) {
            return None;
        }
        let row = self.current.expect("has_room or roll");
        let open = self.opens[row].as_mut().expect("the current one is open");
        let offset = u32::try_from(open.used / 512).expect("a segment has at most 16 GiB");
        open.used += u64::from(bytes);
        open.in_flight += 1;
        let place = core.geometry().place(open.segment, offset);
        Some(Placed { open: u8::try_from(row).expect("four rows"), place, offset })
    }

    /// A placed block will have no record: what it took stays a hole.
    pub(crate) fn forgo(&mut self, placed: Placed) {
        self.open_mut(placed.open).in_flight -= 1;
    }

    /// Appends the record of a placed block; `urgent` if somebody waits for its page. The serial
    /// of the page, or nothing when no page can be closed now.
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
        self.open_mut(placed.open).in_flight -= 1;
        Some(serial)
    }

    /// Appends a record that belongs to no block to the current segment: a drop.
    pub(crate) fn append_plain(
        &mut self,
        core: &mut Core,
        record: &Record,
        urgent: bool,
    ) -> Option<u64> {
        let current = self.current.and_then(|row| self.opens[row].as_ref());
        let fits = current.is_some_and(|open| !open.page.is_empty() && open.page.fits(0));
        if !fits && !self.has_room(core, 0) && !self.roll(core, Claim::Move) {
            return None;
        }
        self.write(core, self.current.expect("has_room or roll"), record, &[], urgent)
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
        let (sequence, drops) = (self.sequence, self.drops);
        let open = self.opens[row].as_mut().expect("the row is open");
        if open.page.is_empty() {
            open.header = PageHeader {
                epoch: core.segments.epoch(open.segment),
                sequence,
                drops_before: open.frozen.unwrap_or(drops),
                drops_durable: 0,
                segment: open.segment,
                index: open.pages,
            };
            (open.serial, open.since, open.urgent) = (self.next_serial, core.now().ns, false);
            self.next_serial += 1;
        }
        open.page.append(record, metadata);
        open.urgent |= urgent;
        self.sequence += 1;
        self.drops += u64::from(record.kind == RecordKind::Drop);
        Some(open.serial)
    }

    /// Hands a page to the medium. `false`: no image is free.
    fn close_page(&mut self, core: &mut Core, row: usize) -> bool {
        if !core.has_image() {
            return false;
        }
        let drops_durable = self.drops_durable;
        self.said = drops_durable;
        let open = self.opens[row].as_mut().expect("the row is open");
        let header = PageHeader { drops_durable, ..open.header };
        let image = Image::Page {
            open: u8::try_from(row).expect("four rows"),
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
        let rows = (0..).zip(&self.opens).filter_map(|(row, open)| Some((row, open.as_ref()?)));
        let mut of = rows.filter(|(_, open)| open.segment == segment);
        of.next().map(|(row, open)| (row, open.pages, &open.page))
    }

    /// A page is on the medium.
    pub(crate) fn page_written(&mut self, row: u8) {
        self.open_mut(row).writing -= 1;
    }

    /// Asks that all records so far be written soon.
    pub(crate) fn hurry(&mut self) {
        for open in self.opens.iter_mut().flatten() {
            open.urgent |= !open.page.is_empty();
        }
    }

    /// Sees to it that some page says how many drops are durable: else the loss of the last page
    /// with drops would not be noticed.
    fn say_durable(&mut self, core: &mut Core) {
        let empty = self.opens.iter().flatten().all(|open| open.page.is_empty());
        if self.drops_durable > self.said && empty && self.current.is_some() && !core.is_broken() {
            let record = Record::mark(core.now().unix);
            let _ = self.append_plain(core, &record, false);
        }
    }

    /// Closes pages that are due, and seals segments that are complete.
    pub(crate) fn step(&mut self, core: &mut Core) {
        self.say_durable(core);
        for row in 0..OPENS {
            let Some(open) = &self.opens[row] else { continue };
            let closing = core.segments.state(open.segment) == State::Closing;
            let complete = closing && open.in_flight == 0;
            let old = core.now().ns.saturating_sub(open.since) >= core.config().times.page;
            if !open.page.is_empty() && (open.urgent || old || complete) {
                self.close_page(core, row);
            }
            let Some(open) = &self.opens[row] else { continue };
            if complete && open.page.is_empty() && open.writing == 0 {
                core.segments.seal(open.segment, open.pages);
                let open = self.opens[row].take().expect("the row is open");
                self.spare_pages.push(open.page);
            }
        }
    }

    /// What a head written now says.
    pub(crate) fn head(&self, core: &Core, segment: u32, floor: u64) -> Head {
        Head {
            epoch: core.segments.epoch(segment),
            floor,
            drops: self.drops_durable,
            time: core.now().unix,
        }
    }
}
