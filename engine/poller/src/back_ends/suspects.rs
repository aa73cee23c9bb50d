//! Blocks that readers reported: the sidecar reads them itself, a piece in each tick, before it
//! believes.

use std::collections::VecDeque;

use kvrail_counters::ServingCounters;
use kvrail_crc::Crc64;
use kvrail_store::{
    DropKey, Durability, Extent, Get, Got, Key, Now, Outcome, Reading, SpaceId, Status, Store,
    check,
};

use super::own::USER_CORRUPT;
use crate::limits::{SIDECAR, SessionSlot};
use crate::mailbox::CorruptBlock;
use crate::store_call::SUSPECT_BYTES;

/// Reports kept at once; more are declined.
const REPORTS_MAX: usize = 64;

/// A block that a reader found wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SuspectReport {
    pub(crate) space: SpaceId,
    pub(crate) key: Key,
    /// The check that the reader expected, and that the store has.
    pub(crate) check: u64,
    pub(crate) reporter: SessionSlot,
}

/// What a report means by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportStand {
    Open,
    /// Its block was replaced or dropped while a piece is being read: the end of that is its end.
    Withdrawn,
}

/// How far the first report is.
#[derive(Clone, Copy, Debug)]
enum ReportStage {
    /// Not begun.
    None,
    /// Its next piece is to be read.
    Next,
    /// It was found, and is to be read.
    Found(Reading),
    /// It is being read.
    Reading(Reading),
    /// A piece is there.
    There,
}

/// What comes of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReportVerdict {
    /// More is to be read.
    Open,
    Right,
    Wrong,
}

/// Reports of one shard; the first is being looked at.
#[derive(Debug)]
pub(crate) struct Suspects {
    reports: VecDeque<SuspectReport>,
    look: ReportStage,
    /// Of the first one.
    stand: ReportStand,
    crc: Crc64,
    length: u32,
    at: u32,
    /// Where the block begins on the device.
    place: u64,
    scratch: Box<[u8]>,
    counts: ServingCounters<u64>,
    /// Session whose report was false, until it is counted.
    false_reporter: Option<SessionSlot>,
    /// A block that was wrong, until it is reported.
    corrupt_block: Option<CorruptBlock>,
}

impl Suspects {
    pub(crate) fn new() -> Self {
        Self {
            reports: VecDeque::with_capacity(REPORTS_MAX),
            look: ReportStage::None,
            stand: ReportStand::Open,
            crc: Crc64::default(),
            length: 0,
            at: 0,
            place: 0,
            scratch: vec![0; SUSPECT_BYTES as usize].into_boxed_slice(),
            counts: ServingCounters::default(),
            false_reporter: None,
            corrupt_block: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Whether one more can be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.reports.len() < REPORTS_MAX
    }

    /// Whether a block was reported, and was not read yet.
    pub(crate) fn has(&self, space: SpaceId, lo: u64) -> bool {
        self.open().any(|kept| kept.space == space && kept.key.lo() == lo)
    }

    /// The check that was reported of a block.
    pub(crate) fn check_of(&self, space: SpaceId, key: Key) -> Option<u64> {
        self.open().find(|kept| (kept.space, kept.key) == (space, key)).map(|kept| kept.check)
    }

    /// The reported block is no more: what has its key from now on is another one.
    pub(crate) fn withdraw(&mut self, space: SpaceId, key: Key) {
        let same = |kept: &SuspectReport| (kept.space, kept.key) == (space, key);
        let gone = usize::from(self.stand == ReportStand::Withdrawn);
        let Some(at) = self.open().position(same).map(|at| at + gone) else { return };
        match self.look {
            ReportStage::Found(_) | ReportStage::Reading(_) if at == 0 => {
                self.stand = ReportStand::Withdrawn;
            }
            _ if at == 0 => self.pop(),
            _ => drop(self.reports.remove(at)),
        }
    }

    /// Reports that count.
    fn open(&self) -> impl Iterator<Item = &SuspectReport> {
        self.reports.iter().skip(usize::from(self.stand == ReportStand::Withdrawn))
    }

    /// Keeps a report, unless the block is reported already.
    pub(crate) fn push(&mut self, report: SuspectReport) {
        if self.check_of(report.space, report.key).is_none() {
            self.reports.push_back(report);
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.reports.clear();
        (self.look, self.stand) = (ReportStage::None, ReportStand::Open);
    }

    /// What became of reports so far.
    pub(crate) fn counts(&self) -> ServingCounters<u64> {
        self.counts
    }

    /// Counts the report of a session that may not write: it changes nothing.
    pub(crate) fn count_ignored(&mut self) {
        self.counts.ignored += 1;
    }

    /// Takes the session whose report was false, to be counted.
    pub(crate) fn take_false_reporter(&mut self) -> Option<SessionSlot> {
        self.false_reporter.take()
    }

    /// Takes a block that was wrong, to be reported.
    pub(crate) fn take_corrupt(&mut self) -> Option<CorruptBlock> {
        self.corrupt_block.take()
    }

    /// Goes on with the first report; `load` copies the piece that was read. True where a piece
    /// was added up.
    pub(crate) fn step(
        &mut self,
        store: &mut Store,
        load: impl FnOnce(&mut [u8]),
        device: u8,
        now: Now,
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        let get =
            |report: &SuspectReport, extent| Get { space: report.space, key: report.key, extent };
        if let Some(report) = self.unseen() {
            match store.inspect(&get(&report, Extent::Whole { capacity: 0 })) {
                Got::Done(answer)
                    if answer.status == Status::TooSmall && answer.check == report.check =>
                {
                    self.begin(answer.length);
                }
                _ => self.pop(),
            }
        }
        let there = self.is_there();
        if there {
            self.add_up(store, load, device, now);
        }
        if let Some((report, at, bytes)) = self.next() {
            match store.inspect(&get(&report, Extent::Part { at, bytes })) {
                Got::Read(reading) => self.found(reading),
                Got::Done(_) => self.pop(),
            }
        }
        there
    }

    /// Adds up what was read of a reported block, and judges.
    fn add_up(&mut self, store: &mut Store, load: impl FnOnce(&mut [u8]), device: u8, now: Now) {
        let report = self.first().expect("it was read for one");
        let view = store.spaces().find(|view| view.id == report.space);
        let Some(uid) = view.map(|view| view.uid) else { return self.pop() };
        match self.add(uid, load) {
            ReportVerdict::Open => {}
            ReportVerdict::Right => {
                self.pop();
                store.absolve(report.space, report.key, report.check);
                self.counts.verified_good += 1;
                self.false_reporter = Some(report.reporter);
            }
            ReportVerdict::Wrong => self.drop_corrupt(&report, store, device, now),
        }
    }

    /// Has the store drop a block that is wrong.
    fn drop_corrupt(&mut self, report: &SuspectReport, store: &mut Store, device: u8, now: Now) {
        let view = store.spaces().find(|view| view.id == report.space);
        let name = view.map_or(&[][..], |view| view.name);
        let block = CorruptBlock::new(device.into(), name, report.key, self.place);
        self.corrupt_block = Some(block);
        self.pop();
        self.counts.corrupt += 1;
        // Without room it stays, and is reported again.
        let _begun = store.drop_key(&drop_of((report.space, report.key), report.check), now);
    }

    /// The read of a piece of the first report has ended.
    pub(crate) fn piece_ended(
        &mut self,
        store: &mut Store,
        device: u8,
        outcome: Outcome,
        now: Now,
    ) {
        let Some((report, reading)) = self.reading() else { return };
        store.read_ended(reading.id, outcome);
        if self.stand == ReportStand::Withdrawn {
            return self.pop();
        }
        let answer = reading.ended(outcome);
        let same = answer.check == report.check;
        match answer.status {
            Status::Ok if same => self.look = ReportStage::There,
            Status::Failed(_) if same => self.drop_corrupt(&report, store, device, now),
            _ => self.pop(),
        }
    }

    /// The report whose length is to be asked for.
    fn unseen(&self) -> Option<SuspectReport> {
        if matches!(self.look, ReportStage::None) { self.reports.front().copied() } else { None }
    }

    /// The first one has this many bytes.
    fn begin(&mut self, length: u32) {
        (self.length, self.at, self.look) = (length, 0, ReportStage::Next);
        self.crc = Crc64::default();
    }

    /// The piece that is to be read: first byte and bytes.
    fn next(&self) -> Option<(SuspectReport, u32, u32)> {
        let report = self.reports.front().filter(|_| matches!(self.look, ReportStage::Next))?;
        Some((*report, self.at, self.piece()))
    }

    fn piece(&self) -> u32 {
        (self.length - self.at).min(SUSPECT_BYTES)
    }

    /// Its piece was found, and is to be read.
    fn found(&mut self, reading: Reading) {
        self.look = ReportStage::Found(reading);
    }

    /// The piece that is read from now on, in a store that begins there on the device.
    pub(crate) fn begin_read(&mut self, area_at: u64) -> Option<Reading> {
        let ReportStage::Found(reading) = self.look else { return None };
        self.look = ReportStage::Reading(reading);
        if self.at == 0 {
            self.place = area_at + reading.offset;
        }
        Some(reading)
    }

    /// The report of which a piece is being read, and the piece.
    fn reading(&self) -> Option<(SuspectReport, Reading)> {
        let ReportStage::Reading(reading) = self.look else { return None };
        Some((self.first()?, reading))
    }

    /// Whether a piece is there, to be added up.
    fn is_there(&self) -> bool {
        matches!(self.look, ReportStage::There)
    }

    /// The first report, which is being looked at.
    fn first(&self) -> Option<SuspectReport> {
        self.reports.front().copied()
    }

    /// Adds up the piece that is there; `load` copies it.
    fn add(&mut self, uid: u64, load: impl FnOnce(&mut [u8])) -> ReportVerdict {
        debug_assert!(self.at < self.length, "a piece is added up once");
        let bytes = self.piece();
        let piece = &mut self.scratch[..bytes as usize];
        load(piece);
        self.crc.update(piece);
        self.at += bytes;
        self.look = ReportStage::Next;
        let Some(report) = self.reports.front().filter(|_| self.at == self.length) else {
            return ReportVerdict::Open;
        };
        let sum = check(self.crc.finish(), uid, report.key, self.length);
        if sum == report.check { ReportVerdict::Right } else { ReportVerdict::Wrong }
    }

    /// The first one is done.
    fn pop(&mut self) {
        self.reports.pop_front();
        (self.look, self.stand) = (ReportStage::None, ReportStand::Open);
    }
}

/// The drop of a block that was reported.
pub(crate) fn drop_of((space, key): (SpaceId, Key), check: u64) -> DropKey {
    DropKey {
        user: USER_CORRUPT,
        owner: SIDECAR.0.into(),
        space,
        key,
        only: Some(check),
        durability: Durability::Soon,
    }
}
