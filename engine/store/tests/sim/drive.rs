//! A drive with a volatile cache that tears, loses and misdirects, and forgets with the power.

use std::collections::BTreeMap;

use fastrand::Rng;

/// The unit of torn writes.
const SECTOR: usize = 512;

/// Sectors of a page.
const SECTORS: usize = 8;

/// How a power cut or a kill treats what is not on stable media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The process ends: what the drive has finished stays, in its cache too.
    Kill,
    /// The power fails: any subset of sectors that no flush covered is gone.
    Power,
}

/// Chances in 1,000 that an operation goes wrong silently.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lies {
    /// A write that is acknowledged and never happens.
    pub(crate) lost: u32,
    /// A write that lands somewhere else.
    pub(crate) misdirected: u32,
    /// A read that comes from somewhere else.
    pub(crate) misread: u32,
    /// A write or read that fails, with an error.
    pub(crate) failed: u32,
}

/// The purpose of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Flush,
    /// One copy of a segment's head.
    Head(u8),
    Page,
    Block,
    Move,
    Super,
    Space,
}

/// How long writes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// One of them.
    Once,
    /// A time in nanoseconds from the first one on.
    For(u64),
    Ever,
}

/// Writes of one kind that fail, with an error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusing {
    pub(crate) kind: Kind,
    /// Writes that succeed first.
    pub(crate) after: u32,
    pub(crate) span: Span,
    /// Whether writes of all kinds fail from the first one of this kind on.
    spreads: bool,
    /// When the first was refused.
    since: Option<u64>,
}

impl Refusing {
    pub(crate) fn new(kind: Kind, after: u32, span: Span) -> Self {
        Self { kind, after, span, spreads: false, since: None }
    }

    /// For ever, and all kinds of writes from the first one of this kind on.
    pub(crate) fn all_from(kind: Kind) -> Self {
        Self { spreads: true, ..Self::new(kind, 0, Span::Ever) }
    }

    fn refuses(&mut self, kind: Kind, now: u64) -> bool {
        let spread = self.spreads && self.since.is_some();
        if kind != self.kind && !spread {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        let first = self.since.is_none();
        let since = *self.since.get_or_insert(now);
        match self.span {
            Span::Once => first,
            Span::For(time) => now < since + time,
            Span::Ever => true,
        }
    }
}

/// One version of a sector, with the number of its write.
type Version = (u64, Box<[u8; SECTOR]>);

/// The medium, and what the cache has over it.
#[derive(Clone, Debug)]
pub(crate) struct Drive {
    stable: Vec<u8>,
    cached: BTreeMap<usize, Vec<Version>>,
    writes: u64,
    pub(crate) lies: Lies,
    pub(crate) refusing: Option<Refusing>,
    /// Writes that were refused.
    pub(crate) refused: u64,
    /// Writes that were finished, for cuts at a given one.
    pub(crate) finished: u64,
}

impl Drive {
    pub(crate) fn new(bytes: usize, rng: &mut Rng) -> Self {
        let mut stable = vec![0; bytes];
        // The earlier content is no store's.
        rng.fill(&mut stable);
        Self {
            stable,
            cached: BTreeMap::new(),
            writes: 0,
            lies: Lies::default(),
            refusing: None,
            refused: 0,
            finished: 0,
        }
    }

    fn lie(&self, rng: &mut Rng, chance: u32) -> bool {
        chance > 0 && rng.u32(..1000) < chance
    }

    fn elsewhere(&self, rng: &mut Rng, offset: usize, length: usize) -> usize {
        let sectors = (self.stable.len() - length) / 4096;
        let other = rng.usize(..=sectors) * 4096;
        if other == offset { (other + 4096) % (sectors * 4096) } else { other }
    }

    /// Whether an operation fails with an error.
    pub(crate) fn fails(&self, rng: &mut Rng) -> bool {
        self.lie(rng, self.lies.failed)
    }

    /// Whether the drive refuses a write.
    pub(crate) fn refuses(&mut self, kind: Kind, now: u64) -> bool {
        let refuses = self.refusing.as_mut().is_some_and(|refusing| refusing.refuses(kind, now));
        self.refused += u64::from(refuses);
        refuses
    }

    pub(crate) fn read(&self, rng: &mut Rng, offset: u64, bytes: &mut [u8]) {
        let mut at = usize::try_from(offset).unwrap();
        if self.lie(rng, self.lies.misread) {
            at = self.elsewhere(rng, at, bytes.len());
        }
        bytes.copy_from_slice(&self.stable[at..at + bytes.len()]);
        let sectors = at / SECTOR..(at + bytes.len()) / SECTOR;
        for (sector, versions) in self.cached.range(sectors) {
            let into = sector * SECTOR - at;
            bytes[into..into + SECTOR].copy_from_slice(&versions.last().unwrap().1[..]);
        }
    }

    /// A write is finished: in the cache, or on stable media.
    pub(crate) fn write(&mut self, rng: &mut Rng, offset: u64, bytes: &[u8], durable: bool) {
        self.finished += 1;
        let mut at = usize::try_from(offset).unwrap();
        if self.lie(rng, self.lies.lost) {
            return;
        }
        if self.lie(rng, self.lies.misdirected) {
            at = self.elsewhere(rng, at, bytes.len());
        }
        self.writes += 1;
        for (nth, sector) in bytes.chunks(SECTOR).enumerate() {
            let number = at / SECTOR + nth;
            if durable {
                self.cached.remove(&number);
                self.stable[number * SECTOR..][..SECTOR].copy_from_slice(sector);
            } else {
                let version = (self.writes, Box::new(sector.try_into().unwrap()));
                self.cached.entry(number).or_default().push(version);
            }
        }
    }

    /// The number of the last write: what a flush that begins now covers.
    pub(crate) fn flush_begins(&self) -> u64 {
        self.writes
    }

    pub(crate) fn flush_ends(&mut self, covers: u64) {
        let mut kept = BTreeMap::new();
        for (sector, versions) in std::mem::take(&mut self.cached) {
            let (done, rest): (Vec<_>, Vec<_>) =
                versions.into_iter().partition(|(number, _)| *number <= covers);
            if let Some((_, bytes)) = done.last() {
                self.stable[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes[..]);
            }
            if !rest.is_empty() {
                kept.insert(sector, rest);
            }
        }
        self.cached = kept;
    }

    /// The range is not needed: zeroes, old bytes, or a mixture.
    pub(crate) fn discard(&mut self, rng: &mut Rng, offset: u64, length: u64) {
        let at = usize::try_from(offset).unwrap();
        let end = at + usize::try_from(length).unwrap();
        for sector in (at / SECTOR..end / SECTOR).filter(|_| rng.bool()).collect::<Vec<_>>() {
            self.write(rng, (sector * SECTOR) as u64, &[0; SECTOR], rng_bool(sector));
            self.finished -= 1;
        }
    }

    /// A write that was not finished when the process ended: any subset of its sectors.
    pub(crate) fn tear(&mut self, rng: &mut Rng, offset: u64, bytes: &[u8]) {
        let mode = rng.u8(..3);
        for (nth, sector) in bytes.chunks(SECTOR).enumerate() {
            if mode == 0 || mode == 1 && rng.bool() {
                self.write(rng, offset + (nth * SECTOR) as u64, sector, false);
                self.finished -= 1;
            }
        }
    }

    /// The power fails, or nothing happens to the drive.
    pub(crate) fn cut(&mut self, rng: &mut Rng, cut: Cut) {
        let worst = rng.u8(..5);
        if cut == Cut::Kill {
            return;
        }
        let (mut page, mut whole) = (0, false);
        for (sector, versions) in std::mem::take(&mut self.cached) {
            if sector / SECTORS != page {
                (page, whole) = (sector / SECTORS, rng.bool());
            }
            let kept = match worst {
                0 => versions.len(),
                1 => 0,
                // Pages as a whole, or every sector for itself.
                2 | 3 => {
                    if whole {
                        versions.len()
                    } else {
                        0
                    }
                }
                _ => rng.usize(..=versions.len()),
            };
            if let Some((_, bytes)) = kept.checked_sub(1).map(|at| &versions[at]) {
                self.stable[sector * SECTOR..][..SECTOR].copy_from_slice(&bytes[..]);
            }
        }
    }

    /// Power is about to fail, and takes what no flush covered of these bytes.
    pub(crate) fn lose(&mut self, bytes: std::ops::Range<u64>) {
        let sector = SECTOR as u64;
        let numbers = bytes.start / sector..bytes.end.div_ceil(sector);
        self.cached.retain(|number, _| !numbers.contains(&(*number as u64)));
    }

    /// Flips a bit of these bytes, which are on stable media.
    pub(crate) fn spoil(&mut self, bytes: &[u8]) {
        let at = self.stable.windows(bytes.len()).position(|window| window == bytes);
        self.stable[at.expect("the bytes are on stable media")] ^= 0x10;
    }

    /// The medium itself, for flips of bits, with all that is in the cache.
    pub(crate) fn medium(&mut self) -> &mut [u8] {
        self.flush_ends(u64::MAX);
        &mut self.stable
    }
}

fn rng_bool(sector: usize) -> bool {
    sector.is_multiple_of(2)
}
