//! Namespaces: names, uids and identity documents, and the numbers that entries know them by.

use crate::entry::NUMBERS;
use crate::format::{DOCUMENT_BYTES_MAX, NAME_BYTES_MAX, POOLS_MAX};
use crate::format::{SPACE_BYTES, SpaceImage, SpaceState};
use crate::request::{Fault, SpaceId};

/// Bytes of RAM of a namespace.
pub(crate) const SPACE_RAM_BYTES: u64 = DOCUMENT_BYTES_MAX as u64 + size_of::<SpaceSlot>() as u64;
/// Bytes of RAM of all numbers.
pub(crate) const NUMBERS_RAM_BYTES: u64 = NUMBERS as u64 * (size_of::<Number>() as u64 + 8);

/// A slot on the medium.
#[derive(Clone, Copy, Debug)]
struct SpaceSlot {
    state: Option<SpaceState>,
    name: [u8; NAME_BYTES_MAX],
    name_bytes: usize,
    document_bytes: usize,
    uid: u64,
    serial: u64,
    created: u64,
    number: u16,
    pool: u8,
    /// Valid copies that were read at the start; a slot with fewer than two is mended.
    copies: u8,
    /// The one of them that counts: the other one may be damaged.
    copy: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberState {
    Free,
    Open,
    /// Its uid is gone; entries that still have the number are removed by a sweep.
    Retired,
}

/// A namespace in entries: its number. A cleared namespace gets another one.
#[derive(Clone, Copy, Debug)]
struct Number {
    uid: u64,
    generation: u16,
    state: NumberState,
    pool: u8,
    blocks: u64,
    bytes: u64,
    gets: SpaceGets,
}

/// Gets of a namespace since it was opened here, or cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceGets {
    /// Those that found their block.
    pub hits: u64,
    /// Those that did not.
    pub misses: u64,
}

/// A change of a slot that is being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceChange {
    pub(crate) user: u64,
    pub(crate) owner: u16,
    kind: ChangeKind,
    slot: u32,
    uid: u64,
    created: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeKind {
    Create,
    Clear,
    Remove,
    /// One copy was damaged: both are written again.
    Mend,
}

/// A namespace as the caller sees it.
#[derive(Clone, Copy, Debug)]
pub struct SpaceView<'a> {
    /// Its id in requests.
    pub id: SpaceId,
    /// The uid in its checks.
    pub uid: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Its identity document, as it was given.
    pub document: &'a [u8],
    /// Blocks of it that are there.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Its gets.
    pub gets: SpaceGets,
    /// The pool that it is in.
    pub pool: u8,
}

/// All namespaces of a shard.
#[derive(Debug)]
pub(crate) struct Spaces {
    slots: Box<[SpaceSlot]>,
    documents: Box<[u8]>,
    numbers: Box<[Number]>,
    mark: u64,
    change: Option<SpaceChange>,
    retired: u32,
    /// Slots before this one need no mending: copies are counted at the start only.
    mended: usize,
    /// Result of the last lookup of a uid.
    recent: Option<(u64, Option<u16>)>,
    /// Of the blocks of each pool.
    bytes: [u64; POOLS_MAX],
    /// Gets of the namespaces of each pool.
    gets: [SpaceGets; POOLS_MAX],
    /// Namespaces that are open in each pool.
    open_in: [u32; POOLS_MAX],
}

impl Spaces {
    pub(crate) fn new(count: u32) -> Self {
        let slot = SpaceSlot {
            state: None,
            name: [0; NAME_BYTES_MAX],
            name_bytes: 0,
            document_bytes: 0,
            uid: 0,
            serial: 0,
            created: 0,
            number: 0,
            pool: 0,
            copies: 0,
            copy: 0,
        };
        let state = NumberState::Free;
        let gets = SpaceGets::default();
        let number = Number { uid: 0, generation: 0, state, pool: 0, blocks: 0, bytes: 0, gets };
        Self {
            slots: vec![slot; count as usize].into_boxed_slice(),
            documents: vec![0; count as usize * DOCUMENT_BYTES_MAX].into_boxed_slice(),
            numbers: vec![number; NUMBERS as usize].into_boxed_slice(),
            mark: 0,
            change: None,
            retired: 0,
            mended: 0,
            recent: None,
            bytes: [0; POOLS_MAX],
            gets: [SpaceGets::default(); POOLS_MAX],
            open_in: [0; POOLS_MAX],
        }
    }

    /// The number of a namespace that is open.
    #[inline(always)]
    pub(crate) fn resolve(&self, id: SpaceId) -> Result<u16, Fault> {
        let (number, generation) = id.split();
        let known = self.numbers.get(usize::from(number)).ok_or(Fault::Space)?;
        let open = known.state == NumberState::Open && known.generation == generation;
        open.then_some(number).ok_or(Fault::Space)
    }

    pub(crate) fn uid(&self, number: u16) -> u64 {
        self.numbers[usize::from(number)].uid
    }

    /// The pool that a number's blocks are in.
    #[inline(always)]
    pub(crate) fn pool(&self, number: u16) -> u8 {
        self.numbers[usize::from(number)].pool
    }

    /// Whether a namespace is open in a pool.
    pub(crate) fn uses_pool(&self, pool: u8) -> bool {
        self.open_in[usize::from(pool)] > 0
    }

    /// Pools with an open namespace, as bits.
    pub(crate) fn pools(&self) -> u16 {
        (0_u8..).zip(&self.open_in).fold(0, |all, (pool, open)| all | u16::from(*open > 0) << pool)
    }

    pub(crate) fn is_open(&self, number: u16) -> bool {
        self.numbers[usize::from(number)].state == NumberState::Open
    }

    /// Highest uid that was ever given out here.
    pub(crate) fn mark(&self) -> u64 {
        self.mark
    }

    pub(crate) fn raise_mark(&mut self, mark: u64) {
        self.mark = self.mark.max(mark);
    }

    /// The number of an open uid.
    pub(crate) fn number_of(&mut self, uid: u64) -> Option<u16> {
        if let Some((recent, number)) = self.recent
            && recent == uid
        {
            return number;
        }
        let number = self.look_up(uid);
        self.recent = Some((uid, number));
        number
    }

    /// The same, looked for among all namespaces.
    pub(crate) fn look_up(&self, uid: u64) -> Option<u16> {
        let open = |slot: &&SpaceSlot| slot.uid == uid && slot.state == Some(SpaceState::Open);
        self.slots.iter().find(open).map(|slot| slot.number)
    }

    /// A block of that many bytes is there.
    pub(crate) fn gain(&mut self, number: u16, bytes: u32) {
        let known = &mut self.numbers[usize::from(number)];
        (known.blocks, known.bytes) = (known.blocks + 1, known.bytes + u64::from(bytes));
        self.bytes[usize::from(known.pool)] += u64::from(bytes);
    }

    pub(crate) fn lose(&mut self, number: u16, bytes: u32) {
        let known = &mut self.numbers[usize::from(number)];
        known.blocks = known.blocks.checked_sub(1).expect("a block is counted once");
        known.bytes -= u64::from(bytes);
        debug_assert!(known.blocks > 0 || known.bytes == 0, "bytes of blocks that are gone");
        self.bytes[usize::from(known.pool)] -= u64::from(bytes);
    }

    /// A get of this namespace found its block, or did not.
    #[inline(always)]
    pub(crate) fn count_get(&mut self, number: u16, is_hit: bool) {
        let known = &mut self.numbers[usize::from(number)];
        let pool = &mut self.gets[usize::from(known.pool)];
        for gets in [&mut known.gets, pool] {
            gets.hits += u64::from(is_hit);
            gets.misses += u64::from(!is_hit);
        }
    }

    /// Gets of a pool's namespaces, those that are gone too.
    pub(crate) fn gets_of_pool(&self, pool: u8) -> SpaceGets {
        self.gets[usize::from(pool)]
    }

    fn position(&self, name: &[u8]) -> Option<u32> {
        let same = |slot: &SpaceSlot| {
            slot.state == Some(SpaceState::Open) && &slot.name[..slot.name_bytes] == name
        };
        self.slots.iter().position(same).and_then(|at| u32::try_from(at).ok())
    }

    pub(crate) fn by_name(&self, name: &[u8]) -> Option<SpaceView<'_>> {
        self.position(name).and_then(|slot| self.view(slot))
    }

    /// The open namespace of a slot.
    pub(crate) fn view(&self, slot: u32) -> Option<SpaceView<'_>> {
        let row = self.slots.get(slot as usize)?;
        let number = &self.numbers[usize::from(row.number)];
        (row.state == Some(SpaceState::Open)).then(|| SpaceView {
            id: SpaceId::new(row.number, number.generation),
            uid: row.uid,
            name: &row.name[..row.name_bytes],
            document: self.document(slot),
            blocks: number.blocks,
            bytes: number.bytes,
            gets: number.gets,
            pool: row.pool,
        })
    }

    fn document(&self, slot: u32) -> &[u8] {
        let at = slot as usize * DOCUMENT_BYTES_MAX;
        &self.documents[at..at + self.slots[slot as usize].document_bytes]
    }

    /// Namespaces that there are, and that there may be.
    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.open_in.iter().sum(), u32::try_from(self.slots.len()).unwrap_or(u32::MAX))
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.change.is_some()
    }

    fn free_number(&self) -> Option<u16> {
        let free = self.numbers.iter().position(|number| number.state == NumberState::Free);
        free.and_then(|at| u16::try_from(at).ok())
    }

    /// Begins to make a namespace; its slot is what to write.
    pub(crate) fn create(
        &mut self,
        (asker, pool): ((u64, u16), u8),
        name: &[u8],
        document: &[u8],
        uid: u64,
        unix: u64,
    ) -> Result<u32, Fault> {
        let wrong = name.is_empty()
            || name.len() > NAME_BYTES_MAX
            || document.len() > DOCUMENT_BYTES_MAX
            || uid <= self.mark
            || self.position(name).is_some();
        if wrong {
            return Err(Fault::Identity);
        }
        let vacant = self.slots.iter().position(|slot| slot.state != Some(SpaceState::Open));
        let slot = vacant.and_then(|at| u32::try_from(at).ok()).ok_or(Fault::Limit)?;
        let row = &mut self.slots[slot as usize];
        row.name[..name.len()].copy_from_slice(name);
        (row.name_bytes, row.document_bytes) = (name.len(), document.len());
        row.pool = pool;
        let at = slot as usize * DOCUMENT_BYTES_MAX;
        self.documents[at..at + document.len()].copy_from_slice(document);
        self.begin(asker, ChangeKind::Create, slot, uid, unix);
        Ok(slot)
    }

    /// Begins to give a namespace another uid: its blocks become unreachable.
    pub(crate) fn clear(&mut self, asker: (u64, u16), id: SpaceId, uid: u64) -> Result<u32, Fault> {
        let slot = self.slot_of(id)?;
        if uid <= self.mark {
            return Err(Fault::Identity);
        }
        self.free_number().ok_or(Fault::Limit)?;
        self.begin(asker, ChangeKind::Clear, slot, uid, self.slots[slot as usize].created);
        Ok(slot)
    }

    /// Begins to forget a namespace.
    pub(crate) fn remove(&mut self, asker: (u64, u16), id: SpaceId) -> Result<u32, Fault> {
        let slot = self.slot_of(id)?;
        let row = &self.slots[slot as usize];
        self.begin(asker, ChangeKind::Remove, slot, row.uid, row.created);
        Ok(slot)
    }

    /// A slot with a copy that must be written again, if there is one; begins that.
    pub(crate) fn mend(&mut self) -> Option<u32> {
        let uneven = |slot: &SpaceSlot| slot.state.is_some() && slot.copies < 2;
        let rest = &self.slots[self.mended..];
        self.mended = rest.iter().position(uneven).map_or(self.slots.len(), |at| self.mended + at);
        let row = self.slots.get_mut(self.mended)?;
        row.copies = 2;
        let slot = u32::try_from(self.mended).expect("made of a u32");
        let (uid, created) = (row.uid, row.created);
        self.begin((0, 0), ChangeKind::Mend, slot, uid, created);
        Some(slot)
    }

    fn slot_of(&self, id: SpaceId) -> Result<u32, Fault> {
        let number = self.resolve(id)?;
        let here = |slot: &SpaceSlot| slot.state == Some(SpaceState::Open) && slot.number == number;
        let slot = self.slots.iter().position(here).ok_or(Fault::Space)?;
        u32::try_from(slot).map_err(|_| Fault::Space)
    }

    fn begin(&mut self, asker: (u64, u16), kind: ChangeKind, slot: u32, uid: u64, created: u64) {
        assert!(self.change.is_none(), "one change at a time");
        let (user, owner) = asker;
        self.change = Some(SpaceChange { user, owner, kind, slot, uid, created });
    }

    /// Encodes the image of the slot after the change.
    pub(crate) fn image(&self, instance: u128, bytes: &mut [u8]) {
        let change = self.change.expect("a change is being written");
        let slot = &self.slots[change.slot as usize];
        let removed = change.kind == ChangeKind::Remove
            || change.kind == ChangeKind::Mend && slot.state == Some(SpaceState::Removed);
        SpaceImage {
            serial: slot.serial + 1,
            uid: change.uid,
            state: if removed { SpaceState::Removed } else { SpaceState::Open },
            pool: slot.pool,
            created: change.created,
            name: &slot.name[..slot.name_bytes],
            document: self.document(change.slot),
        }
        .encode(instance, change.slot, &mut bytes[..SPACE_BYTES]);
    }

    /// The uid whose blocks are removed by the change in flight.
    pub(crate) fn ending(&self) -> Option<u64> {
        let change = self.change.as_ref()?;
        let ends = matches!(change.kind, ChangeKind::Clear | ChangeKind::Remove);
        ends.then(|| self.slots[change.slot as usize].uid)
    }

    /// Both copies are written: the change counts. The change, and number and uid of a namespace
    /// that is open by it.
    pub(crate) fn commit(&mut self) -> (SpaceChange, Option<(u16, u64)>) {
        let change = self.change.take().expect("a change was being written");
        let old = self.slots[change.slot as usize];
        let slot = &mut self.slots[change.slot as usize];
        slot.serial += 1;
        slot.copies = 2;
        (slot.uid, slot.created) = (change.uid, change.created);
        self.recent = None;
        self.mark = self.mark.max(change.uid);
        let opened = match change.kind {
            ChangeKind::Mend => None,
            ChangeKind::Create => Some(self.open(change.slot)),
            ChangeKind::Clear => {
                self.retire(old.number);
                Some(self.open(change.slot))
            }
            ChangeKind::Remove => {
                slot.state = Some(SpaceState::Removed);
                self.retire(old.number);
                None
            }
        };
        (change, opened)
    }

    /// The change could not be written; what was, still counts here.
    pub(crate) fn abandon(&mut self) -> SpaceChange {
        let change = self.change.take().expect("a change was being written");
        // One copy may have it: the next change must count before that.
        self.slots[change.slot as usize].serial += 1;
        change
    }

    /// Whether a request waits for the change.
    pub(crate) fn is_asked(change: &SpaceChange) -> bool {
        change.kind != ChangeKind::Mend
    }

    fn open(&mut self, slot: u32) -> (u16, u64) {
        let number = self.free_number().expect("checked before, or there are 4 x the slots");
        let row = &mut self.slots[slot as usize];
        (row.state, row.number) = (Some(SpaceState::Open), number);
        let named = &mut self.numbers[usize::from(number)];
        (named.uid, named.state, named.pool) = (row.uid, NumberState::Open, row.pool);
        named.gets = SpaceGets::default();
        self.open_in[usize::from(row.pool)] += 1;
        (number, row.uid)
    }

    fn retire(&mut self, number: u16) {
        let known = &mut self.numbers[usize::from(number)];
        known.state = NumberState::Retired;
        self.open_in[usize::from(known.pool)] -= 1;
        known.generation = known.generation.wrapping_add(1);
        self.retired += 1;
    }

    /// Whether entries of retired numbers may be left.
    pub(crate) fn has_retired(&self) -> bool {
        self.retired > 0
    }

    /// A whole sweep has removed every entry of numbers that were retired before it began: those
    /// that no put still uses can be given out again.
    pub(crate) fn swept(&mut self, in_use: impl Fn(u16) -> bool) {
        for (at, number) in (0..).zip(&mut self.numbers) {
            if number.state == NumberState::Retired && number.blocks == 0 && !in_use(at) {
                number.state = NumberState::Free;
                self.retired -= 1;
            }
        }
    }

    /// The copy of a slot that is written first: power may fail, and the other one is whole.
    pub(crate) fn first_copy(&self, slot: u32) -> u32 {
        1 - self.slots[slot as usize].copy
    }

    /// One copy of a slot, read at the start.
    pub(crate) fn read(&mut self, (slot, copy): (u32, u32), image: &SpaceImage<'_>) {
        let row = &mut self.slots[slot as usize];
        self.mark = self.mark.max(image.uid);
        if row.state.is_some() && row.serial >= image.serial {
            row.copies = if row.serial == image.serial { row.copies + 1 } else { 1 };
            return;
        }
        row.copies = if row.state.is_some() { 0 } else { 1 };
        (row.state, row.copy) = (Some(image.state), copy);
        (row.uid, row.serial, row.created) = (image.uid, image.serial, image.created);
        row.pool = image.pool;
        (row.name_bytes, row.document_bytes) = (image.name.len(), image.document.len());
        row.name[..image.name.len()].copy_from_slice(image.name);
        let at = slot as usize * DOCUMENT_BYTES_MAX;
        self.documents[at..at + image.document.len()].copy_from_slice(image.document);
    }

    /// All slots are read: gives numbers to the open ones, one at a time.
    pub(crate) fn number_slot(&mut self, slot: u32) -> Option<(u16, u64)> {
        (self.slots[slot as usize].state == Some(SpaceState::Open)).then(|| self.open(slot))
    }

    /// Bytes of the blocks of all namespaces, cleared ones too.
    pub(crate) fn bytes_in_all(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Those of the namespaces in one pool.
    pub(crate) fn bytes_of_pool(&self, pool: u8) -> u64 {
        self.bytes[usize::from(pool)]
    }

    /// Blocks of all namespaces, cleared ones too.
    pub(crate) fn blocks_in_all(&self) -> u64 {
        self.numbers.iter().map(|number| number.blocks).sum()
    }

    /// Blocks of the namespaces in one pool, cleared ones too.
    pub(crate) fn blocks_of_pool(&self, pool: u8) -> u64 {
        let own = self.numbers.iter().filter(|number| number.pool == pool);
        own.map(|number| number.blocks).sum()
    }

    /// Slots.
    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.slots.len()).expect("made of a u32")
    }
}
