//! Gets: a probe of the index, and a hold on the segment until the caller has read the block.

use crate::config::StoreGeometry;
use crate::core::{Core, Knowledge};
use crate::entry::{Entry, Kind};
use crate::index::Hash;
use crate::key::Key;
use crate::request::{Answer, Extent, Fault, Get, ReadId, Reading, Status};

/// Whether a get counts, and makes its block worth keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Hit,
    Nothing,
}

impl Count {
    /// By how much counters of gets rise.
    fn one(self) -> u64 {
        u64::from(self == Self::Hit)
    }

    /// Counts a get of a namespace, if it counts.
    #[inline(always)]
    fn get(self, core: &mut Core, number: u16, is_hit: bool) {
        if self == Self::Hit {
            core.spaces.count_get(number, is_hit);
            core.stats.hits += u64::from(is_hit);
            core.stats.misses += u64::from(!is_hit);
        }
    }
}

/// Finds the block of a get, and holds its segment.
#[inline(always)]
pub(crate) fn find(core: &mut Core, get: &Get, count: Count) -> Result<Reading, Answer> {
    let number = core.spaces.resolve(get.space).map_err(Status::Invalid)?;
    let hash = core.index.hash(number, get.key.lo());
    let found = core.index.find(hash, get.key, number);
    let Some((position, entry)) = found else {
        return Err(absent(core, (number, hash), None, count).into());
    };
    let Some(segment) = core.readable(entry) else {
        let entry = *entry;
        return Err(absent(core, (number, hash), Some(entry), count).into());
    };
    let entry = *entry;
    let (length, check, place) = (entry.length(), entry.check(), entry.place());
    let (at, exact) = match get.extent {
        Extent::Whole { capacity } if capacity < length => {
            count.get(core, number, false);
            core.stats.misses_other_length += count.one();
            return Err(Answer { status: Status::TooSmall, length, check });
        }
        Extent::Whole { .. } => (0, length),
        Extent::Part { at, bytes } => (at, part(core, (at, bytes), length)?),
    };
    if count == Count::Hit && at == 0 {
        core.use_block(position, &entry, segment);
    }
    count.get(core, number, true);
    core.segments.read_begins(segment);
    let offset = StoreGeometry::place_at(place) + u64::from(at);
    let answer = Answer { status: Status::Ok, length, check };
    Ok(Reading { id: ReadId::new(segment), offset, exact, answer })
}

/// The length and check of the block whose key has this lower half, if it can be read.
pub(crate) fn peek(core: &Core, (number, lo): (u16, u64)) -> Option<Answer> {
    let entry = low(core, number, lo)?;
    Some(Answer { status: Status::Ok, length: entry.length(), check: entry.check() })
}

/// Finds that block as `find` does, and holds its segment; nothing counts.
pub(crate) fn find_low(core: &mut Core, (number, lo): (u16, u64)) -> Option<Reading> {
    let entry = low(core, number, lo)?;
    let segment = core.readable(&entry)?;
    core.segments.read_begins(segment);
    let (exact, check) = (entry.length(), entry.check());
    let answer = Answer { status: Status::Ok, length: exact, check };
    let offset = StoreGeometry::place_at(entry.place());
    Some(Reading { id: ReadId::new(segment), offset, exact, answer })
}

fn low(core: &Core, number: u16, lo: u64) -> Option<Entry> {
    let hash = core.index.hash(number, lo);
    let is_it = |entry: &Entry| entry.is_low(lo, number) && core.readable(entry).is_some();
    core.index.place_of(hash, is_it).map(|place| core.index.get(place))
}

/// Why a key was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lack {
    /// Recovery has not read all that may be about it.
    Recovering,
    /// It is being put, or was dropped while recovery went on.
    Pending,
    /// Its segment is not trusted.
    Distrusted,
    /// It has no entry.
    Absent,
}

impl Lack {
    /// Of a key with this entry, which cannot be read.
    fn of(core: &Core, found: Option<&Entry>) -> Self {
        match found {
            None if core.recovery.knowledge == Knowledge::Partial => Self::Recovering,
            None => Self::Absent,
            Some(entry) if core.is_unsettled(entry) => Self::Recovering,
            Some(entry) if entry.is_there() => Self::Distrusted,
            Some(_) => Self::Pending,
        }
    }
}

/// Nothing that counts was found.
#[cold]
fn absent(
    core: &mut Core,
    (number, hash): (u16, Hash),
    found: Option<Entry>,
    count: Count,
) -> Status {
    let lack = Lack::of(core, found.as_ref());
    count.get(core, number, false);
    if count == Count::Hit {
        match lack {
            Lack::Recovering => core.stats.misses_recovering += 1,
            Lack::Pending => core.stats.misses_pending += 1,
            Lack::Distrusted => core.stats.misses_distrusted += 1,
            Lack::Absent => {
                core.stats.misses_absent += 1;
                if core.is_sampled(hash) {
                    core.count_absent(hash);
                }
            }
        }
    }
    if lack == Lack::Recovering { Status::Warming } else { Status::Miss }
}

/// Counts the keys of a lookup, of which these were found, as bits.
pub(crate) fn count_lookup(
    core: &mut Core,
    number: u16,
    (hashes, keys): (&[Hash], &[u64]),
    found: u64,
) {
    let hits = u64::from(found.count_ones());
    core.stats.lookup_hits += hits;
    let missed = keys.len() as u64 - hits;
    if missed == 0 {
        return;
    }
    core.stats.lookup_misses += missed;
    // By bits: which keys are missed is as good as random, for a branch.
    let mut left = !found & (u64::MAX >> (64 - keys.len()));
    while left != 0 {
        let at = left.trailing_zeros() as usize;
        left &= left - 1;
        let (hash, lo) = (hashes[at], keys[at]);
        if core.index.place_of(hash, |entry| entry.is_low(lo, number)).is_some() {
            count_unreadable(core, hash, (number, lo));
        } else if core.recovery.knowledge == Knowledge::Partial {
            core.stats.lookup_misses_recovering += 1;
        } else {
            core.stats.lookup_misses_absent += 1;
            if core.is_sampled(hash) {
                core.count_absent(hash);
            }
        }
    }
}

/// Counts a key of a lookup whose entry cannot be read.
#[cold]
fn count_unreadable(core: &mut Core, hash: Hash, (number, lo): (u16, u64)) {
    let place = core.index.place_of(hash, |entry| entry.is_low(lo, number));
    match Lack::of(core, place.map(|place| core.index.get(place)).as_ref()) {
        Lack::Recovering => core.stats.lookup_misses_recovering += 1,
        Lack::Pending => core.stats.lookup_misses_pending += 1,
        Lack::Distrusted => core.stats.lookup_misses_distrusted += 1,
        Lack::Absent => core.stats.lookup_misses_absent += 1,
    }
}

/// The offset of a part of a block, if the range is valid.
fn part(core: &Core, (at, bytes): (u32, u32), length: u32) -> Result<u32, Status> {
    let end = at.checked_add(bytes).filter(|end| *end <= length);
    let sound = bytes > 0 && at.is_multiple_of(core.geometry().logical_block) && end.is_some();
    if sound { Ok(bytes) } else { Err(Status::Invalid(Fault::Part)) }
}

/// Sets the kind of the block with this check. `false`: there is no such block.
///
/// A reader's report makes a block suspect until the block is verified.
pub(crate) fn mark(core: &mut Core, (number, key): (u16, Key), check: u64, kind: Kind) -> bool {
    let (_, found) = core.find(number, key);
    let Some((position, entry)) =
        found.filter(|(_, entry)| entry.is_there() && entry.check() == check)
    else {
        return false;
    };
    core.stats.suspects += u64::from(kind == Kind::Suspect && entry.kind() == Kind::Live);
    core.index.update(position, entry.with_kind(kind));
    true
}
