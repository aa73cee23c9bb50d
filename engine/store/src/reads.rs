//! Gets: a probe of the index, and a hold on the segment until the caller has read the block.

use crate::config::StoreGeometry;
use crate::core::{Core, Knowledge};
use crate::entry::{Entry, Kind};
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
}

/// Finds the block of a get, and holds its segment.
#[inline(always)]
pub(crate) fn find(core: &mut Core, get: &Get, count: Count) -> Result<Reading, Answer> {
    let number = core.spaces.resolve(get.space).map_err(Status::Invalid)?;
    let hash = core.index.hash(number, get.key.lo());
    let found = core.index.find(hash, get.key, number);
    let Some((position, entry)) = found else { return Err(absent(core, None, count).into()) };
    let Some(segment) = core.readable(entry) else {
        let entry = *entry;
        return Err(absent(core, Some(entry), count).into());
    };
    let entry = *entry;
    let (length, check, place) = (entry.length(), entry.check(), entry.place());
    let (at, exact) = match get.extent {
        Extent::Whole { capacity } if capacity < length => {
            core.stats.misses += count.one();
            core.stats.misses_other_length += count.one();
            return Err(Answer { status: Status::TooSmall, length, check });
        }
        Extent::Whole { .. } => (0, length),
        Extent::Part { at, bytes } => (at, part(core, (at, bytes), length)?),
    };
    if count == Count::Hit && at == 0 {
        core.use_block(position, &entry, segment);
    }
    core.stats.hits += count.one();
    core.segments.read_begins(segment);
    let offset = StoreGeometry::place_at(place) + u64::from(at);
    let answer = Answer { status: Status::Ok, length, check };
    Ok(Reading { id: ReadId::new(segment), offset, exact, answer })
}

/// Nothing that counts was found.
#[cold]
fn absent(core: &mut Core, found: Option<Entry>, count: Count) -> Status {
    core.stats.misses += count.one();
    let unknown = match found {
        None => core.recovery.knowledge == Knowledge::Partial,
        Some(entry) => core.is_unsettled(&entry),
    };
    let (reason, status) = match (unknown, found) {
        (true, _) => (&mut core.stats.misses_recovering, Status::Warming),
        (false, Some(_)) => (&mut core.stats.misses_pending, Status::Miss),
        (false, None) => (&mut core.stats.misses_absent, Status::Miss),
    };
    *reason += count.one();
    status
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
