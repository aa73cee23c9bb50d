//! Gets: a probe of the index, one read into the client's memory, one answer.

use crate::config::Geometry;
use crate::core::{Core, Knowledge};
use crate::entry::Kind;
use crate::request::{Answer, Begun, Extent, Fault, Get, Reason, Status};
use crate::slab::Slab;
use crate::task::{Memory, Origin, Outcome, TaskId, Verb};

#[derive(Clone, Copy, Debug)]
struct Read {
    user: u64,
    owner: u16,
    segment: u32,
    length: u32,
    check: u64,
}

/// Whether a get makes its block worth keeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Hit,
    Nothing,
}

/// Gets in flight.
#[derive(Debug)]
pub(crate) struct Reads {
    slots: Slab<Read>,
}

/// Bytes of RAM of a get.
pub(crate) const READ_BYTES: u64 = size_of::<Option<Read>>() as u64 + 4;

impl Reads {
    pub(crate) fn new(count: u32) -> Self {
        Self { slots: Slab::with_slots(count) }
    }

    pub(crate) fn room(&self) -> usize {
        self.slots.room()
    }

    /// Answers owed.
    pub(crate) fn owed(&self) -> usize {
        self.slots.used()
    }

    pub(crate) fn get(&mut self, core: &mut Core, get: &Get, count: Count) -> Begun {
        match self.begin(core, get, count) {
            Ok(()) => Begun::Taken,
            Err(answer) => Begun::Done(answer),
        }
    }

    fn begin(&mut self, core: &mut Core, get: &Get, count: Count) -> Result<(), Answer> {
        let number = core.spaces.resolve(get.space).map_err(Status::Invalid)?;
        let (_, found) = core.find(number, get.key);
        let Some((position, entry)) = found.filter(|(_, entry)| core.counts(entry)) else {
            core.stats.misses += 1;
            let unknown = match found {
                None => core.recovery.knowledge == Knowledge::Partial,
                Some((_, entry)) => core.is_unsettled(&entry),
            };
            return Err(if unknown { Status::Warming } else { Status::Miss }.into());
        };
        let (length, check) = (entry.length(), entry.check());
        let (at, exact) = match get.extent {
            Extent::Whole { capacity } if capacity < length => {
                return Err(Answer { status: Status::TooSmall, length, check });
            }
            Extent::Whole { .. } => (0, length),
            Extent::Part { at, bytes } => (at, bytes),
        };
        let end = at.checked_add(exact);
        if exact == 0
            || !at.is_multiple_of(core.geometry().logical_block)
            || end.is_none_or(|end| end > length)
        {
            return Err(Status::Invalid(Fault::Part).into());
        }
        let segment = core.geometry().segment_of(entry.place());
        let read = Read { user: get.user, owner: get.owner, segment, length, check };
        let slot = self.slots.insert(read).ok_or(Status::Declined(Reason::Busy))?;
        if count == Count::Hit && entry.hits() < crate::entry::HITS_MAX {
            core.index.update(position, entry.with_hits(entry.hits() + 1));
        }
        core.stats.hits += 1;
        core.segments.read_begins(segment);
        let offset = Geometry::place_at(entry.place()) + u64::from(at);
        let memory = Memory::Client { user: get.user, exact };
        core.client_task(TaskId::new(Origin::Read, slot), Verb::Read, offset, memory);
        Ok(())
    }

    pub(crate) fn ended(&mut self, core: &mut Core, slot: u32, outcome: Outcome) {
        let read = self.slots.remove(slot);
        core.segments.read_ends(read.segment);
        let status = match outcome {
            Outcome::Done => Status::Ok,
            Outcome::Failed(code) => {
                core.stats.failures += 1;
                Status::Failed(code)
            }
        };
        let answer = Answer { status, length: read.length, check: read.check };
        core.reply(read.user, read.owner, answer);
    }

    /// A reader says that a block is not what it should be: marks it, until somebody has looked.
    /// `false`: there is no such block.
    pub(crate) fn suspect(core: &mut Core, number: u16, key: crate::Key, check: u64) -> bool {
        Self::mark(core, number, key, check, Kind::Suspect)
    }

    /// Sets the kind of a block that is there with that check.
    pub(crate) fn mark(
        core: &mut Core,
        number: u16,
        key: crate::Key,
        check: u64,
        kind: Kind,
    ) -> bool {
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
}
