//! Lists what is there: a page of records at a time, segment after segment by their epochs.
//!
//! Blocks move towards higher epochs only, and so does the walk: a block that stays is not missed,
//! wherever it is moved meanwhile. One that is moved after it was listed is listed again. Each
//! block is looked up in the index as it is handed out, so it is there.

use crate::config::StoreGeometry;
use crate::core::Core;
use crate::format::{PAGE, Page, Record, RecordKind};
use crate::key::Key;
use crate::log::Log;
use crate::segments::SegmentState;
use crate::task::{Outcome, Pool};

/// Segments without a block that are passed over in one call.
const SKIPPED: u32 = 64;

/// Where a listing goes on. The default is its begin; any other comes from the page before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Of the segment; one that is gone means the next one.
    pub epoch: u64,
    /// Of the segment's pages.
    pub page: u32,
    /// Records of the page that were seen.
    pub record: u16,
}

impl Cursor {
    fn after(epoch: u64) -> Self {
        Self { epoch: epoch.saturating_add(1), page: 0, record: 0 }
    }
}

/// A block that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its key.
    pub key: Key,
    /// Uid of its namespace.
    pub uid: u64,
    /// Its bytes.
    pub length: u32,
    /// How deep in its chain it is.
    pub depth: u16,
    /// Seconds since 1970 when it was put.
    pub time: u32,
    /// Its check.
    pub check: u64,
    /// Its first byte on the area.
    pub offset: u64,
    /// The metadata of its put, up to 1 KiB.
    pub metadata: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListStage {
    Idle,
    Reading,
    /// In the buffer; not looked at.
    Read,
    Unreadable,
    /// The page can be handed out.
    There,
}

/// One listing's next page.
#[derive(Debug)]
pub(crate) struct Lister {
    stage: ListStage,
    uid: Option<u64>,
    segment: u32,
    cursor: Cursor,
    next: Option<Cursor>,
    readable: bool,
    page: Page,
}

impl Lister {
    pub(crate) fn new() -> Self {
        Self {
            stage: ListStage::Idle,
            uid: None,
            segment: 0,
            cursor: Cursor::default(),
            next: None,
            readable: true,
            page: Page::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.stage == ListStage::Idle
    }

    /// Begins to look for the next page with records: of one namespace by its uid, or of all.
    pub(crate) fn begin(&mut self, core: &mut Core, log: &Log, uid: Option<u64>, from: Cursor) {
        (self.uid, self.cursor, self.readable) = (uid, from, true);
        self.page.clear();
        self.stage = ListStage::There;
        for _ in 0..SKIPPED {
            let Some(segment) = core.segments.first_since(self.cursor.epoch) else {
                self.next = None;
                return;
            };
            let epoch = core.segments.epoch(segment);
            if epoch > self.cursor.epoch {
                self.cursor = Cursor { epoch, page: 0, record: 0 };
            }
            self.segment = segment;
            if core.segments.live(segment) > 0 && self.take_page(core, log) {
                return;
            }
            self.cursor = Cursor::after(epoch);
        }
        self.next = Some(self.cursor);
    }

    /// Takes the page from memory, or begins to read it. `false`: the segment has no such page.
    fn take_page(&mut self, core: &mut Core, log: &Log) -> bool {
        let Cursor { epoch, page: index, .. } = self.cursor;
        self.next = Some(Cursor { epoch, page: index.saturating_add(1), record: 0 });
        let Some((row, closed, page)) = log.open_page(self.segment) else {
            if index >= core.segments.pages(self.segment) {
                return false;
            }
            return self.read(core);
        };
        if index < closed {
            let Some(bytes) = core.page_image(row, index) else { return self.read(core) };
            self.page.bytes_mut().copy_from_slice(bytes);
            self.stage = ListStage::There;
            self.decode(core);
            return true;
        }
        if index > closed || page.is_empty() {
            return false;
        }
        self.page.copy(page);
        self.next = Some(Cursor::after(epoch)).filter(|cursor| {
            let newer = core.segments.first_since(cursor.epoch);
            newer.is_some()
        });
        true
    }

    fn read(&mut self, core: &mut Core) -> bool {
        core.list_task(core.geometry().page_at(self.segment, self.cursor.page), PAGE.into());
        self.stage = ListStage::Reading;
        true
    }

    pub(crate) fn ended(&mut self, end: Outcome) {
        self.stage = if end == Outcome::Done { ListStage::Read } else { ListStage::Unreadable };
    }

    /// Takes what was read out of its buffer.
    pub(crate) fn step(&mut self, core: &Core, pool: &impl Pool) {
        match self.stage {
            ListStage::Read => {
                pool.load(core.list_buffer(), 0, self.page.bytes_mut());
                self.decode(core);
            }
            ListStage::Unreadable => {
                self.page.clear();
                self.readable = false;
            }
            ListStage::Idle | ListStage::Reading | ListStage::There => return,
        }
        self.stage = ListStage::There;
    }

    fn decode(&mut self, core: &Core) {
        let Cursor { epoch, page, .. } = self.cursor;
        let header = self.page.decode(core.instance(), epoch, self.segment, page);
        // Of a segment that was used again meanwhile, what stayed was moved to a higher epoch.
        self.readable = header.is_some() || core.segments.epoch(self.segment) != epoch;
    }

    /// The page, once.
    pub(crate) fn take<'a>(&'a mut self, core: &'a Core) -> Option<ListingPage<'a>> {
        if self.stage != ListStage::There {
            return None;
        }
        self.stage = ListStage::Idle;
        Some(ListingPage { core, lister: self })
    }
}

/// A page of a listing.
#[derive(Clone, Copy, Debug)]
pub struct ListingPage<'a> {
    core: &'a Core,
    lister: &'a Lister,
}

impl<'a> ListingPage<'a> {
    /// Where the next page begins; nothing: this was the last one.
    #[must_use]
    pub fn next_cursor(&self) -> Option<Cursor> {
        self.lister.next
    }

    /// Whether the page could be read. If not, its blocks are there and are not listed.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.lister.readable
    }

    /// The blocks of the page that are there now, 71 at most; often none.
    pub fn blocks(&self) -> impl Iterator<Item = Listed<'a>> + use<'a> {
        let Self { core, lister } = *self;
        let mut at = 0;
        let records = std::iter::from_fn(move || {
            let (record, metadata, next) = lister.page.record(at)?;
            at = next;
            Some((record, metadata))
        });
        let mut numbers = SpaceNumbers { core, recent: None };
        let unseen = records.skip(lister.cursor.record.into());
        unseen.filter_map(move |(record, metadata)| lister.block(&mut numbers, &record, metadata))
    }
}

/// Numbers of namespaces, with a cache of the last lookup.
struct SpaceNumbers<'a> {
    core: &'a Core,
    recent: Option<(u64, Option<u16>)>,
}

impl SpaceNumbers<'_> {
    fn of(&mut self, uid: u64) -> Option<u16> {
        match self.recent {
            Some((recent, number)) if recent == uid => number,
            _ => {
                let number = self.core.spaces.look_up(uid);
                self.recent = Some((uid, number));
                number
            }
        }
    }
}

impl Lister {
    /// The block of a record, if it is there.
    fn block<'a>(
        &self,
        numbers: &mut SpaceNumbers<'_>,
        record: &Record,
        metadata: &'a [u8],
    ) -> Option<Listed<'a>> {
        let core = numbers.core;
        let Record { key, uid, .. } = *record;
        let wanted = record.kind == RecordKind::Put && self.uid.is_none_or(|listed| listed == uid);
        let same = core.segments.epoch(self.segment) == self.cursor.epoch
            && core.segments.state(self.segment) != SegmentState::Free;
        let number = if wanted && same { numbers.of(uid) } else { None }?;
        let place = core.geometry().place(self.segment, record.offset);
        let (_, found) = core.find(number, key);
        found.filter(|(_, entry)| core.readable(entry).is_some() && entry.place() == place)?;
        Some(Listed {
            key,
            uid,
            length: record.length,
            depth: u16::try_from(record.depth).unwrap_or(u16::MAX),
            time: record.time,
            check: record.check,
            offset: StoreGeometry::place_at(place),
            metadata,
        })
    }
}
