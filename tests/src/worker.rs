//! One thread of the traffic: its queue, its blocks, its ledger.

use std::time::{Duration, Instant};

use kvrail_bench::pattern::{Pattern, SECTOR_BYTES};
use kvrail_client::{
    Arena, Client, ClientError, Completed, Lease, Queue, Request, Status, SubmitErrorKind, Volume,
};

use crate::blocks::Block;
use crate::ledger::{Entry, Kind, Ledger};
use crate::tally::{Acknowledged, Tally};

/// Longest wait for the end of a request: far beyond the time of a loaded disk, so a slower one
/// hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Pieces that one queue holds.
const DEPTH: usize = 64;

/// One read of this number requests its checksum.
const CHECKSUM_ONE_OF: u32 = 4;

/// State of a block's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Not read yet: the first filling, or the write of an earlier process, torn perhaps by its
    /// death.
    Unseen,
    /// All of this version.
    Version(u32),
    /// A write whose end is unknown.
    Doubtful,
}

#[derive(Debug)]
struct Own {
    block: Block,
    content: Content,
    /// The block's memory while the block is idle.
    lease: Option<Lease>,
}

/// Whether the sidecar still takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    Ending,
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Worker {
    queue: Queue,
    volume: Volume,
    pattern: Pattern,
    own: Vec<Own>,
    ledger: Ledger,
    tally: Tally,
    dice: fastrand::Rng,
    flow: Flow,
}

impl Worker {
    pub(crate) fn new(
        client: &Client,
        volume: &Volume,
        arena: &Arena,
        blocks: &[Block],
        seed: u64,
    ) -> Result<Self, ClientError> {
        let own = blocks.iter().map(|block| {
            let lease = Some(arena.lease(block.bytes)?);
            Ok(Own { block: *block, content: Content::Unseen, lease })
        });
        Ok(Self {
            queue: client.open_queue(DEPTH)?,
            volume: volume.clone(),
            pattern: Pattern::new(volume.uuid()),
            own: own.collect::<Result<_, ClientError>>()?,
            ledger: Ledger::default(),
            tally: Tally::default(),
            dice: fastrand::Rng::with_seed(seed),
            flow: Flow::On,
        })
    }

    /// Reads and writes until the time is over or the sidecar ends, then lets everything end.
    pub(crate) fn run(mut self, until: Instant, started: impl FnOnce()) -> Tally {
        let mut started = Some(started);
        loop {
            if self.flow == Flow::On && Instant::now() < until {
                self.submit_some();
            }
            if self.ledger.open() == 0 {
                break;
            }
            match self.queue.wait(PATIENCE) {
                Ok(Some(done)) => self.end(done),
                Ok(None) => {
                    let open = self.ledger.open();
                    self.tally.blame(format!("{open} requests did not end in {PATIENCE:?}"));
                    break;
                }
                Err(error) => {
                    self.tally.blame(format!("waiting: {error}"));
                    break;
                }
            }
            if let Some(started) = started.take() {
                started();
            }
        }
        self.finish()
    }

    /// No more ends come; reports the blocks of known content.
    fn finish(mut self) -> Tally {
        let mut more = Vec::new();
        self.queue.poll(&mut more);
        for done in more {
            self.tally.blame(format!("an end too many: {done:?}"));
        }
        for own in &self.own {
            if let Content::Version(version) = own.content {
                let Block { offset, bytes } = own.block;
                self.tally.acknowledged.push(Acknowledged { offset, bytes, version });
            }
        }
        self.tally
    }

    /// Gives some idle blocks something to do: one by one, or all of them as one batch.
    fn submit_some(&mut self) {
        let batch = self.dice.bool();
        let first = self.dice.usize(..self.own.len());
        for step in 0..self.own.len() {
            let index = (first + step) % self.own.len();
            let large = self.own[index].block.bytes > 1 << 20;
            // Large blocks are drawn less often, because the disk's bandwidth is scarce.
            let drawn = if large { self.dice.u8(..8) == 0 } else { self.dice.bool() };
            let idle = self.ledger.open() == 0;
            if (drawn || idle) && self.own[index].lease.is_some() && self.flow == Flow::On {
                self.submit(index, batch);
            }
        }
        self.queue.publish();
    }

    fn submit(&mut self, index: usize, batch: bool) {
        let own = &mut self.own[index];
        let (kind, before) = match own.content {
            Content::Unseen => (Kind::Read, None),
            Content::Version(now) if self.dice.bool() => (Kind::Write(now + 1), Some(now)),
            Content::Version(now) => (Kind::Read, Some(now)),
            Content::Doubtful => return,
        };
        let Some(mut lease) = own.lease.take() else { return };
        let offset = own.block.offset;
        let mut wants_checksum = false;
        let request = match kind {
            Kind::Write(version) => {
                self.pattern.fill(&mut lease, offset, version);
                Request::write(&self.volume, offset, lease)
            }
            Kind::Read => {
                lease.fill(0xee); // stale bytes cannot pass for the read ones
                wants_checksum = self.dice.u32(..CHECKSUM_ONE_OF) == 0 && self.is_whole(index);
                let request = Request::read(&self.volume, offset, lease);
                if wants_checksum { request.checksum() } else { request }
            }
        };
        let request = request.tag(index as u64);
        let outcome = if batch { self.queue.stage(request) } else { self.queue.submit(request) };
        match outcome {
            Ok(ticket) => {
                if matches!(kind, Kind::Write(_)) {
                    self.own[index].content = Content::Doubtful;
                }
                self.tally.submitted += 1;
                let entry = Entry { block: index, kind, before, wants_checksum };
                let booked = self.ledger.book(ticket, entry);
                self.note(booked);
            }
            Err(refused) => {
                match refused.reason {
                    SubmitErrorKind::SidecarGone => self.flow = Flow::Ending,
                    SubmitErrorKind::Full { .. } => {}
                    other => self.tally.blame(format!("refused: {other}")),
                }
                self.own[index].lease = refused.into_lease();
            }
        }
    }

    /// Whether a block lies within one stripe.
    fn is_whole(&self, index: usize) -> bool {
        let block = self.own[index].block;
        let stripe = self.volume.geometry().stripe_bytes;
        block.offset % stripe + block.bytes as u64 <= stripe
    }

    fn end(&mut self, done: Completed) {
        self.tally.ended += 1;
        *self.tally.statuses.entry(done.status.name().to_owned()).or_default() += 1;
        let entry = match self.ledger.settle(&done) {
            Ok(entry) => entry,
            Err(what) => return self.tally.blame(what),
        };
        match done.status {
            Status::Ok => self.succeeded(entry, done),
            Status::Restarted => self.flow = Flow::Ending,
            // The request was not executed, unless a piece of it was: a write left the version
            // before.
            Status::Draining => {
                self.flow = Flow::Ending;
                if done.bytes == 0 {
                    let before = entry.before.map_or(Content::Doubtful, Content::Version);
                    self.own[entry.block].content = before;
                }
            }
            other => {
                let block = self.own[entry.block].block;
                self.tally.blame(format!("{entry:?} of {block:?} ended {other}"));
            }
        }
    }

    fn succeeded(&mut self, entry: Entry, done: Completed) {
        let block = self.own[entry.block].block;
        if done.bytes != block.bytes as u64 {
            self.tally.blame(format!("OK with {} bytes of {block:?}", done.bytes));
        }
        self.tally.bytes += done.bytes;
        let Some(lease) = done.lease else {
            return self.tally.blame(format!("{entry:?} came back without its lease"));
        };
        if entry.wants_checksum {
            let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &lease);
            if crc != done.checksum {
                let reported = done.checksum;
                self.tally
                    .blame(format!("{block:?}: checksum {reported:#x} of bytes with {crc:#x}"));
            }
        }
        match (entry.kind, self.own[entry.block].content) {
            (Kind::Write(version), _) => self.own[entry.block].content = Content::Version(version),
            (Kind::Read, Content::Version(version)) => {
                let (count, first) = self.pattern.verify(&lease, block.offset, version);
                if let Some(first) = first {
                    self.tally.blame(format!("{block:?}: {count} sectors wrong: {first}"));
                }
                self.tally.verified += 1;
            }
            (Kind::Read, _) => {
                let (_, seen) = inspect(&self.pattern, &mut self.tally, &lease, block.offset);
                // Every sector is right on its own; the first write makes the whole block right.
                self.own[entry.block].lease = Some(lease);
                return self.write_first(entry.block, seen + 1);
            }
        }
        self.own[entry.block].lease = Some(lease);
    }

    /// Writes a block as a whole for the first time in this process.
    fn write_first(&mut self, index: usize, version: u32) {
        if self.flow == Flow::Ending {
            self.own[index].content = Content::Doubtful;
            return;
        }
        let own = &mut self.own[index];
        let Some(mut lease) = own.lease.take() else { return };
        own.content = Content::Doubtful;
        self.pattern.fill(&mut lease, own.block.offset, version);
        let request = Request::write(&self.volume, own.block.offset, lease).tag(index as u64);
        match self.queue.submit(request) {
            Ok(ticket) => {
                self.tally.submitted += 1;
                let kind = Kind::Write(version);
                let entry = Entry { block: index, kind, before: None, wants_checksum: false };
                let booked = self.ledger.book(ticket, entry);
                self.note(booked);
            }
            Err(refused) if matches!(refused.reason, SubmitErrorKind::SidecarGone) => {
                self.flow = Flow::Ending;
            }
            Err(refused) => self.tally.blame(format!("refused: {}", refused.reason)),
        }
    }

    fn note(&mut self, outcome: Result<(), String>) {
        if let Err(what) = outcome {
            self.tally.blame(what);
        }
    }
}

/// Content that an earlier process left: every sector of this volume is whole and at its place, of
/// any version; the rest is as `kvrail volume create` filled it. Returns the lowest and the highest
/// version.
pub(crate) fn inspect(
    pattern: &Pattern,
    tally: &mut Tally,
    bytes: &[u8],
    offset: u64,
) -> (u32, u32) {
    let mut sample = [0; SECTOR_BYTES];
    pattern.fill(&mut sample, 0, 0);
    let (mut lowest, mut highest) = (u32::MAX, 0);
    for (sector, at) in bytes.chunks(SECTOR_BYTES).zip((offset..).step_by(SECTOR_BYTES)) {
        if sector[..8] != sample[..8] {
            lowest = 0; // not marked as this volume's: never written by traffic
            continue;
        }
        let word = sector[16..24].try_into().expect("eight bytes");
        let version = u32::try_from(u64::from_le_bytes(word)).unwrap_or(u32::MAX);
        if let (_, Some(first)) = pattern.verify(sector, at, version) {
            tally.blame(format!("left by an earlier process: {first}"));
        }
        (lowest, highest) = (lowest.min(version), highest.max(version));
    }
    (lowest, highest)
}
