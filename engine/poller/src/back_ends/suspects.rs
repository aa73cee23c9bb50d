//! Blocks that readers reported: the sidecar reads them itself, a piece in each tick, before it
//! believes.

use std::collections::VecDeque;

use crc_fast::{CrcAlgorithm, Digest};
use kvrail_store::{Key, Reading, SpaceId, check};

use crate::limits::SessionSlot;
use crate::store_call::SUSPECT_BYTES;

/// Reports kept at once; more are declined.
const REPORTS_MAX: usize = 64;

/// A block that a reader found wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub(crate) space: SpaceId,
    pub(crate) key: Key,
    /// What the reader expected, and the store says, too.
    pub(crate) check: u64,
    pub(crate) reporter: SessionSlot,
}

/// How far the first report is.
#[derive(Clone, Copy, Debug)]
enum Look {
    /// Nobody has looked.
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
pub(crate) enum Verdict {
    /// More is to be read.
    Open,
    Right,
    Wrong,
}

/// Reports of one shard; the first is being looked at.
#[derive(Debug)]
pub(crate) struct Suspects {
    reports: VecDeque<Report>,
    look: Look,
    digest: Digest,
    length: u32,
    at: u32,
    /// Where the block begins on the device.
    place: u64,
    scratch: Box<[u8]>,
}

impl Suspects {
    pub(crate) fn new() -> Self {
        Self {
            reports: VecDeque::with_capacity(REPORTS_MAX),
            look: Look::None,
            digest: Digest::new(CrcAlgorithm::Crc64Nvme),
            length: 0,
            at: 0,
            place: 0,
            scratch: vec![0; SUSPECT_BYTES as usize].into_boxed_slice(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }

    /// Whether one more can be kept.
    pub(crate) fn has_room(&self) -> bool {
        self.reports.len() < REPORTS_MAX
    }

    /// Keeps a report, unless the block is reported already.
    pub(crate) fn push(&mut self, report: Report) {
        let same = |it: &Report| (it.space, it.key) == (report.space, report.key);
        if !self.reports.iter().any(same) {
            self.reports.push_back(report);
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.reports.clear();
        self.look = Look::None;
    }

    /// The report whose length is to be asked for.
    pub(crate) fn unseen(&self) -> Option<Report> {
        if matches!(self.look, Look::None) { self.reports.front().copied() } else { None }
    }

    /// The first one has so many bytes.
    pub(crate) fn begin(&mut self, length: u32) {
        (self.length, self.at, self.look) = (length, 0, Look::Next);
        self.digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    }

    /// The piece that is to be read: first byte and bytes.
    pub(crate) fn next(&self) -> Option<(Report, u32, u32)> {
        let report = self.reports.front().filter(|_| matches!(self.look, Look::Next))?;
        Some((*report, self.at, self.piece()))
    }

    fn piece(&self) -> u32 {
        (self.length - self.at).min(SUSPECT_BYTES)
    }

    /// Its piece was found, and is to be read.
    pub(crate) fn found(&mut self, reading: Reading) {
        self.look = Look::Found(reading);
    }

    /// The piece that is read from now on, in a store that begins there on the device.
    pub(crate) fn begin_read(&mut self, area_at: u64) -> Option<Reading> {
        let Look::Found(reading) = self.look else { return None };
        self.look = Look::Reading(reading);
        if self.at == 0 {
            self.place = area_at + reading.offset;
        }
        Some(reading)
    }

    /// The report of which a piece is being read, and the piece.
    pub(crate) fn reading(&self) -> Option<(Report, Reading)> {
        let Look::Reading(reading) = self.look else { return None };
        Some((self.first()?, reading))
    }

    /// Where the first one begins on the device.
    pub(crate) fn place(&self) -> u64 {
        self.place
    }

    /// Its piece is there.
    pub(crate) fn there(&mut self) {
        self.look = Look::There;
    }

    /// Whether a piece is there, to be added up.
    pub(crate) fn is_there(&self) -> bool {
        matches!(self.look, Look::There)
    }

    /// The first report, which is being looked at.
    pub(crate) fn first(&self) -> Option<Report> {
        self.reports.front().copied()
    }

    /// Adds up the piece that is there; `load` copies it.
    pub(crate) fn add(&mut self, uid: u64, load: impl FnOnce(&mut [u8])) -> Verdict {
        let bytes = self.piece();
        let piece = &mut self.scratch[..bytes as usize];
        load(piece);
        self.digest.update(piece);
        self.at += bytes;
        self.look = Look::Next;
        let Some(report) = self.reports.front().filter(|_| self.at == self.length) else {
            return Verdict::Open;
        };
        let sum = check(self.digest.finalize(), uid, report.key, self.length);
        if sum == report.check { Verdict::Right } else { Verdict::Wrong }
    }

    /// The first one is done.
    pub(crate) fn pop(&mut self) {
        self.reports.pop_front();
        self.look = Look::None;
    }
}
