//! The start: supers, namespaces, heads, and both supers written again. Then requests are served.

use thiserror::Error;

use crate::core::{Core, Image};
use crate::drops::Drops;
use crate::format::{
    Head, PAGE_BYTES, POOLS_MAX, PoolNames, SPACE, SPACE_BYTES, SUPER_AT, SpaceImage, Super,
    SuperError,
};
use crate::members::Members;
use crate::pools::pools_max;
use crate::standing::KeyOwners;
use crate::task::{Outcome, Pool, Verb};

/// Namespace slots looked at in one step.
const SLOTS: u32 = 64;

/// Identity of a new store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreIdentity {
    /// Identity of the volume.
    pub volume: u128,
    /// Random: identity of this content.
    pub instance: u128,
    /// Random: secret of the index.
    pub seed: u128,
    /// Which member of the volume this is.
    pub member: u16,
    /// All that are served, this one too.
    pub members: Members,
    /// Generation of the other members, or 1.
    pub generation: u64,
}

/// Expected identity of an existing store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Identity of the volume.
    pub volume: u128,
    /// Which member of it.
    pub member: u16,
    /// Highest generation in the superblocks of all members. A member with a lower one was absent
    /// while the others were served: its blocks are misses.
    pub generation: u64,
    /// The generation to write: one more when a member is missing now that was there before.
    pub next_generation: u64,
    /// All that are served, this one too.
    pub members: Members,
}

/// Whether to make a store or to open one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Makes an empty one over whatever is there.
    Create(StoreIdentity),
    /// Opens what is there.
    Open(Expect),
}

impl Start {
    /// Which member of its store it is.
    #[must_use]
    pub fn member(&self) -> u16 {
        match self {
            Self::Create(identity) => identity.member,
            Self::Open(expect) => expect.member,
        }
    }

    /// All members that are served.
    #[must_use]
    pub fn members(&self) -> Members {
        match self {
            Self::Create(identity) => identity.members,
            Self::Open(expect) => expect.members,
        }
    }
}

/// Why a store does not start. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum StartError {
    /// No super can be used.
    #[error(transparent)]
    Super(#[from] SuperError),
    /// The store of another volume, or another member.
    #[error("member {member} of another volume or place ({volume:032x})")]
    Foreign {
        /// Identity of the volume in the superblock.
        volume: u128,
        /// Which member of that.
        member: u16,
    },
    /// The store's sizes are not those it is opened with.
    #[error("the store was made with other sizes, or its member has shrunk")]
    Geometry,
    /// The drive refuses the supers: the caller's code.
    #[error("the drive refuses the supers")]
    Refused(u16),
    /// More pools are configured, or have namespaces, than the store can have.
    #[error("pools: it can have {most} with `default` and those that namespaces are in")]
    Pools {
        /// Most pools of the store.
        most: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartStage {
    Idle,
    Supers,
    Spaces { copy: u32, slot: u32, at: u32 },
    Heads { next: u32 },
    Mark,
    Done,
    Failed(StartError),
}

/// A slot or segment, and which copy.
type What = (u32, u32);

/// The read into a cell of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellRead {
    None,
    Reading,
    There,
    Unreadable,
}

/// How the start goes on.
#[derive(Debug)]
pub(crate) struct Starting {
    stage: StartStage,
    start: Option<Start>,
    cells: Box<[(CellRead, What)]>,
    superblock: Option<Super>,
    /// The copy that it was found in: the other one may be damaged.
    found_copy: u32,
    floors: [u64; POOLS_MAX],
    highest: u64,
    page: Box<[u8]>,
}

impl Starting {
    pub(crate) fn new(cells: u32) -> Self {
        Self {
            stage: StartStage::Idle,
            start: None,
            cells: vec![(CellRead::None, (0, 0)); cells as usize].into_boxed_slice(),
            superblock: None,
            found_copy: 0,
            floors: [0; POOLS_MAX],
            highest: 0,
            page: vec![0; SPACE_BYTES].into_boxed_slice(),
        }
    }

    pub(crate) fn begin(&mut self, core: &mut Core, start: Start) {
        assert!(self.stage == StartStage::Idle, "a store starts once");
        self.start = Some(start);
        match start {
            Start::Open(_) => {
                for copy in [0, 1] {
                    self.read(core, copy, (0, copy), SUPER_AT[copy as usize], PAGE_BYTES as u64);
                }
                self.stage = StartStage::Supers;
            }
            Start::Create(identity) => {
                let superblock = Self::create(core, &identity);
                self.adopt(core, superblock);
                for segment in 0..core.geometry().segments {
                    core.segments.found_free(segment);
                }
                self.mark(core, identity.generation);
            }
        }
    }

    fn create(core: &Core, identity: &StoreIdentity) -> Super {
        let geometry = core.geometry();
        Super {
            volume: identity.volume,
            instance: identity.instance,
            member: identity.member,
            members: identity.members.slots(),
            logical_block: geometry.logical_block,
            area_bytes: geometry.area_bytes,
            segment_bytes: geometry.segment_bytes,
            data_at: geometry.data_at,
            segments: geometry.segments,
            spaces: geometry.spaces,
            seed: identity.seed,
            serial: 0,
            generation: identity.generation,
            epoch: 0,
            uid_mark: 0,
            created: core.now().unix.into(),
            served: identity.members,
            left: [0; 64],
            outdated: [0; 64],
            pools: PoolNames::default(),
            begun: 0,
            all_begun: 0,
        }
    }

    fn adopt(&mut self, core: &mut Core, superblock: Super) {
        core.set_instance(superblock.instance);
        core.index.reseed(superblock.seed);
        core.spaces.raise_mark(superblock.uid_mark);
        self.superblock = Some(superblock);
    }

    fn read(&mut self, core: &mut Core, cell: u32, what: What, offset: u64, length: u64) {
        self.cells[cell as usize] = (CellRead::Reading, what);
        core.cell_task(cell, offset, length);
    }

    pub(crate) fn ended(&mut self, cell: u32, end: Outcome) {
        let well = end == Outcome::Done;
        self.cells[cell as usize].0 = if well { CellRead::There } else { CellRead::Unreadable };
    }

    pub(crate) fn is_done(&self) -> bool {
        self.stage == StartStage::Done
    }

    pub(crate) fn error(&self) -> Option<StartError> {
        match self.stage {
            StartStage::Failed(why) => Some(why),
            _ => None,
        }
    }

    pub(crate) fn step(
        &mut self,
        core: &mut Core,
        drops: &mut [Drops; POOLS_MAX],
        pool: &impl Pool,
    ) {
        match self.stage {
            StartStage::Supers => {
                let both = [self.cells[0].0, self.cells[1].0];
                if !both.contains(&CellRead::Reading) {
                    self.supers(core, pool);
                }
            }
            StartStage::Spaces { copy, slot, at } => self.spaces(core, pool, copy, slot, at),
            StartStage::Heads { next } => self.heads(core, drops, pool, next),
            StartStage::Idle | StartStage::Mark | StartStage::Done | StartStage::Failed(_) => {}
        }
    }

    fn supers(&mut self, core: &mut Core, pool: &impl Pool) {
        let mut copies = [[0; PAGE_BYTES]; 2];
        for (cell, copy) in (0_u32..).zip(&mut copies) {
            let transfer = std::mem::replace(&mut self.cells[cell as usize].0, CellRead::None);
            if transfer == CellRead::There {
                let (buffer, at) = core.cell(cell);
                pool.load(buffer, at, copy);
            }
        }
        let Some(Start::Open(expect)) = self.start else { unreachable!("only an open reads") };
        let found = Super::choose(&copies).map_err(StartError::from);
        match found.and_then(|(found, copy)| {
            Self::fits(core, &expect, found).map(|superblock| (superblock, copy))
        }) {
            Ok((superblock, copy)) => {
                self.found_copy = copy;
                self.adopt(core, superblock);
                self.stage = StartStage::Spaces { copy: 0, slot: 0, at: 0 };
            }
            Err(why) => self.stage = StartStage::Failed(why),
        }
    }

    fn fits(core: &Core, expect: &Expect, found: Super) -> Result<Super, StartError> {
        if (found.volume, found.member) != (expect.volume, expect.member) {
            return Err(StartError::Foreign { volume: found.volume, member: found.member });
        }
        let geometry = core.geometry();
        let same = (found.logical_block, found.segment_bytes, found.data_at)
            == (geometry.logical_block, geometry.segment_bytes, geometry.data_at)
            && (found.segments, found.spaces) == (geometry.segments, geometry.spaces)
            && found.area_bytes == geometry.area_bytes;
        same.then_some(found).ok_or(StartError::Geometry)
    }

    /// Reads the two tables of namespaces; `at` slots of what was read are looked at.
    fn spaces(&mut self, core: &mut Core, pool: &impl Pool, copy: u32, slot: u32, at: u32) {
        let most = core.config().buffer_bytes / SPACE;
        let count = most.min(core.geometry().spaces - slot);
        match self.cells[0].0 {
            CellRead::Reading => return,
            CellRead::None => {
                let length = u64::from(count) * SPACE_BYTES as u64;
                let offset = core.geometry().space_at(slot, copy);
                return self.read(core, 0, (slot, copy), offset, length);
            }
            CellRead::Unreadable => {}
            CellRead::There => {
                let end = count.min(at + SLOTS);
                for it in at..end {
                    pool.load(0, it * SPACE, &mut self.page);
                    let image = SpaceImage::decode(&self.page, core.instance(), slot + it);
                    if let Some(image) = image {
                        core.spaces.read((slot + it, copy), &image);
                    }
                }
                if end < count {
                    self.stage = StartStage::Spaces { copy, slot, at: end };
                    return;
                }
            }
        }
        self.cells[0].0 = CellRead::None;
        self.stage = if slot + count < core.geometry().spaces {
            StartStage::Spaces { copy, slot: slot + count, at: 0 }
        } else if copy == 0 {
            StartStage::Spaces { copy: 1, slot: 0, at: 0 }
        } else {
            for slot in 0..core.spaces.count() {
                if let Some((number, uid)) = core.spaces.number_slot(slot) {
                    core.open_uid(number, uid);
                }
            }
            StartStage::Heads { next: 0 }
        };
    }

    fn heads(
        &mut self,
        core: &mut Core,
        drops: &mut [Drops; POOLS_MAX],
        pool: &impl Pool,
        next: u32,
    ) {
        let mut next = next;
        let mut busy = false;
        for cell in 0..u32::try_from(self.cells.len()).expect("made of a u32") {
            let (transfer, (segment, copy)) = self.cells[cell as usize];
            if transfer == CellRead::Reading {
                busy = true;
                continue;
            }
            let mut wanted = None;
            if transfer != CellRead::None {
                self.cells[cell as usize].0 = CellRead::None;
                let page = &mut self.page[..PAGE_BYTES];
                let (buffer, at) = core.cell(cell);
                pool.load(buffer, at, page);
                let head = Head::decode(page, core.instance(), segment);
                let head = head.filter(|_| transfer == CellRead::There);
                if head.is_none() && copy == 0 {
                    wanted = Some((segment, 1));
                } else {
                    self.head(core, drops, (segment, copy), head);
                }
            }
            if wanted.is_none() && next < core.geometry().segments {
                wanted = Some((next, 0));
                next += 1;
            }
            if let Some(what) = wanted {
                let at = core.geometry().head_copy_at(what.0, what.1);
                self.read(core, cell, what, at, PAGE_BYTES as u64);
                busy = true;
            }
        }
        self.stage = StartStage::Heads { next };
        if !busy {
            self.heads_end(core, drops);
        }
    }

    fn head(
        &mut self,
        core: &mut Core,
        drops: &mut [Drops; POOLS_MAX],
        (segment, copy): (u32, u32),
        head: Option<Head>,
    ) {
        let Some(head) = head else { return core.segments.found_free(segment) };
        for (pool, drops) in drops.iter_mut().enumerate() {
            self.floors[pool] = self.floors[pool].max(head.floors[pool]);
            drops.durable(head.drops[pool]);
        }
        for (pool, ledger) in [head.pool, head.second].into_iter().zip(head.ledgers) {
            core.found_ledger(pool, ledger, (segment, head.epoch));
        }
        self.highest = self.highest.max(head.epoch);
        core.segments.found(segment, copy, (head.pool, head.epoch, head.time));
    }

    /// Puts the ring in order, and leaves out what does not belong to it.
    fn heads_end(&mut self, core: &mut Core, drops: &mut [Drops; POOLS_MAX]) {
        let Some(Start::Open(expect)) = self.start else { unreachable!("only an open reads") };
        let superblock = self.superblock.expect("read before");
        core.segments.sort();
        let stale = superblock.generation < expect.generation;
        let behind = self.highest < superblock.epoch;
        for (pool, floor) in (0_u8..).zip(self.floors) {
            let floor = if stale || behind { u64::MAX } else { floor };
            while let Some(oldest) = core.segments.oldest(pool)
                && core.segments.epoch(oldest) < floor
            {
                core.segments.release_oldest(pool);
            }
            core.recovery.unread_of[usize::from(pool)] = core.segments.held(pool);
            drops[usize::from(pool)].heads_end();
        }
        core.segments.raise_epoch(self.highest.max(superblock.epoch));
        core.recovery.unread = core.segments.with_content();
        let generation = expect.next_generation.max(superblock.generation);
        let newest = self.highest.max(superblock.epoch);
        let superblock = superblock.met(expect.members, generation, newest);
        let it = &superblock;
        core.set_standing(KeyOwners::new(it.member, it.served, &it.left));
        self.superblock = Some(superblock);
        self.mark(core, generation);
    }

    /// Writes the supers, one after the other: the one that was found last, as power may fail.
    fn mark(&mut self, core: &mut Core, generation: u64) {
        let superblock = self.superblock.as_mut().expect("read or made before");
        let most = pools_max(core.segments.count());
        let Some(names) = core.number_pools(&superblock.pools, most) else {
            self.stage = StartStage::Failed(StartError::Pools { most });
            return;
        };
        superblock.pools = names;
        if superblock.has_pools() {
            core.set_pooled();
        }
        core.limit_pools();
        superblock.generation = generation;
        superblock.epoch = superblock.epoch.max(core.segments.lasting_epoch());
        superblock.uid_mark = core.spaces.mark();
        superblock.serial += 1;
        superblock.all_begun = superblock.begun;
        self.stage = StartStage::Mark;
        self.write_super(core, 1 - self.found_copy);
    }

    fn write_super(&self, core: &mut Core, copy: u32) {
        let superblock = self.superblock.expect("read or made before");
        let (image, at) = (Image::Super { copy }, SUPER_AT[copy as usize]);
        core.write_image(image, Verb::WriteDurable, at, PAGE_BYTES, |_, bytes| {
            superblock.encode(copy, bytes.try_into().expect("a page"));
        });
    }

    pub(crate) fn super_written(&mut self, core: &mut Core, copy: u32, outcome: Outcome) {
        if let Outcome::Failed(code) = outcome {
            self.stage = StartStage::Failed(StartError::Refused(code));
        } else if copy != self.found_copy {
            self.write_super(core, self.found_copy);
        } else {
            self.stage = StartStage::Done;
        }
    }
}
