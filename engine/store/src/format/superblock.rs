//! The super: which store a member belongs to, and its geometry. Two copies.

use std::mem::{offset_of, size_of};

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::PAGE_BYTES;
use super::seal::{is_whole, seal};
use crate::members::{MEMBERS_MAX, Members};
use crate::standing::OfEach;

/// The format on the medium. Versions 1 to 3 reclaimed segments in the order of their epochs.
pub const FORMAT_VERSION: u32 = 4;

/// Pools of a store at most. The first is the default pool, and has no name on the medium.
pub const POOLS_MAX: usize = 16;
/// Bytes of a pool's name at most.
pub const POOL_NAME_BYTES_MAX: usize = 32;

/// The names of a store's pools by their numbers; one of zeroes is none.
pub type PoolNames = [[u8; POOL_NAME_BYTES_MAX]; POOLS_MAX];

/// Where the two copies begin, in bytes of the area.
pub const SUPER_AT: [u64; 2] = [0, 32 << 10];

const MAGIC: [u8; 16] = *b"kvrail store\r\n\x1a\0";
const SERVED_AT: usize = 2048;
const MEMBERS: usize = MEMBERS_MAX as usize;
const POOLS_BYTES: usize = (POOLS_MAX - 1) * POOL_NAME_BYTES_MAX;
const BEFORE: usize = SERVED_AT - 152 - POOLS_BYTES - 16;
const BEHIND: usize = PAGE_BYTES - SERVED_AT - 8 - 2 * 8 * MEMBERS - 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SuperLayout {
    magic: [u8; 16],
    version: U32,
    copy: U32,
    volume: [u8; 16],
    instance: [u8; 16],
    member: U16,
    members: U16,
    logical_block: U32,
    area_bytes: U64,
    segment_bytes: U64,
    data_at: U64,
    segments: U32,
    spaces: U32,
    seed: [u8; 16],
    serial: U64,
    generation: U64,
    epoch: U64,
    uid_mark: U64,
    created: U64,
    /// Names of pools 1 to 15.
    pools: [[u8; POOL_NAME_BYTES_MAX]; POOLS_MAX - 1],
    begun: U64,
    all_begun: U64,
    before: [u8; BEFORE],
    served: U64,
    left: [U64; MEMBERS],
    outdated: [U64; MEMBERS],
    behind: [u8; BEHIND],
    crc: U64,
}

const _: () = assert!(size_of::<SuperLayout>() == PAGE_BYTES && align_of::<SuperLayout>() == 1);
const _: () = assert!(offset_of!(SuperLayout, served) == SERVED_AT);
const _: () =
    assert!(offset_of!(SuperLayout, area_bytes) == 64 && offset_of!(SuperLayout, serial) == 112);

/// Fields of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Super {
    /// Identity of the volume: the same on all members.
    pub volume: u128,
    /// Identity of this member's content: random, new at each creation.
    pub instance: u128,
    /// Which member this is.
    pub member: u16,
    /// How many there are, gaps in their numbers counted in.
    pub members: u16,
    /// Unit of transfers in bytes.
    pub logical_block: u32,
    /// Bytes of the area that the store may use.
    pub area_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Where segment 0 begins, in bytes of the area.
    pub data_at: u64,
    /// Segments.
    pub segments: u32,
    /// Slots for namespaces.
    pub spaces: u32,
    /// Secret of the index: clients do not learn it.
    pub seed: u128,
    /// Which of two copies is the newer one.
    pub serial: u64,
    /// Grows when the store starts without one of its members: that one is out of date from then.
    pub generation: u64,
    /// An epoch that was on the medium when the super was written; the highest of all heads is
    /// never below it.
    pub epoch: u64,
    /// Highest uid a namespace ever had here when the super was written.
    pub uid_mark: u64,
    /// Seconds since 1970 when the store was made.
    pub created: u64,
    /// Those that were served when this one was served last.
    pub served: Members,
    /// For each member that was there once and was missed at a later start: the highest epoch of
    /// this member then. Older records of keys that it had had do not count.
    pub left: OfEach,
    /// For each member that was not there: the generation that it must have to be up to date.
    pub outdated: OfEach,
    /// Names of its pools.
    pub pools: PoolNames,
    /// The last start of the store that this member is part of: all members of a start have its
    /// number on stable media before any of them is served. 0: not counted yet.
    pub begun: u64,
    /// The last start at which this one was served: all that are part of it have its number.
    pub all_begun: u64,
}

/// Why two copies of a super make no store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SuperError {
    /// Neither copy has the magic.
    #[error("no store: neither super has its magic")]
    Absent,
    /// Neither copy is whole.
    #[error("both supers are damaged")]
    Damaged,
    /// Whole, of another version.
    #[error("store format {0}; this release reads format {FORMAT_VERSION} only")]
    OtherVersion(u32),
    /// Whole, with values that no store has.
    #[error("a super whose values are impossible")]
    Impossible,
}

impl Super {
    /// Whether the store has pools with names: programs that know of none must refuse it.
    pub(crate) fn has_pools(&self) -> bool {
        self.pools != PoolNames::default()
    }

    /// One copy as it lies on the medium.
    pub fn encode(&self, copy: u32, page: &mut [u8; PAGE_BYTES]) {
        let mut image = SuperLayout {
            magic: MAGIC,
            version: FORMAT_VERSION.into(),
            copy: copy.into(),
            volume: self.volume.to_le_bytes(),
            instance: self.instance.to_le_bytes(),
            member: self.member.into(),
            members: self.members.into(),
            logical_block: self.logical_block.into(),
            area_bytes: self.area_bytes.into(),
            segment_bytes: self.segment_bytes.into(),
            data_at: self.data_at.into(),
            segments: self.segments.into(),
            spaces: self.spaces.into(),
            seed: self.seed.to_le_bytes(),
            serial: self.serial.into(),
            generation: self.generation.into(),
            epoch: self.epoch.into(),
            uid_mark: self.uid_mark.into(),
            created: self.created.into(),
            pools: std::array::from_fn(|at| self.pools[at + 1]),
            begun: self.begun.into(),
            all_begun: self.all_begun.into(),
            before: [0; BEFORE],
            served: self.served.bits().into(),
            left: self.left.map(U64::new),
            outdated: self.outdated.map(U64::new),
            behind: [0; BEHIND],
            crc: 0.into(),
        };
        seal(image.as_mut_bytes());
        page.copy_from_slice(image.as_bytes());
    }

    /// Decodes one copy.
    ///
    /// # Errors
    /// `SuperError` when this program cannot use the copy.
    pub fn decode(page: &[u8; PAGE_BYTES], copy: u32) -> Result<Self, SuperError> {
        let image = SuperLayout::ref_from_bytes(page).map_err(|_| SuperError::Damaged)?;
        if image.magic != MAGIC {
            return Err(SuperError::Absent);
        }
        if !is_whole(page) {
            return Err(SuperError::Damaged);
        }
        if image.version.get() != FORMAT_VERSION {
            return Err(SuperError::OtherVersion(image.version.get()));
        }
        if image.copy.get() != copy {
            return Err(SuperError::Impossible);
        }
        Ok(image.read())
    }

    /// The newer whole copy of the two, and which one it is: the other one may be damaged.
    ///
    /// # Errors
    /// `SuperError` when neither can be used; an unknown version is reported rather than damage.
    pub fn choose(copies: &[[u8; PAGE_BYTES]; 2]) -> Result<(Self, u32), SuperError> {
        let both = [Self::decode(&copies[0], 0), Self::decode(&copies[1], 1)];
        match both {
            [Ok(one), Ok(other)] if other.serial > one.serial => Ok((other, 1)),
            [_, Err(why @ SuperError::OtherVersion(_))]
            | [Err(why @ SuperError::OtherVersion(_)), _] => Err(why),
            [Ok(one), _] => Ok((one, 0)),
            [_, Ok(other)] => Ok((other, 1)),
            [Err(SuperError::Absent), Err(SuperError::Absent)] => Err(SuperError::Absent),
            [Err(SuperError::Impossible), _] | [_, Err(SuperError::Impossible)] => {
                Err(SuperError::Impossible)
            }
            _ => Err(SuperError::Damaged),
        }
    }
}

impl Super {
    /// The number of the next start of these members.
    #[must_use]
    pub fn next_start(all: &[Self]) -> u64 {
        all.iter().map(|member| member.begun).max().unwrap_or(0) + 1
    }

    /// Whether one of these members was put back to an older copy of itself: another one was
    /// served at a start that all of its members knew, and this one does not.
    #[must_use]
    pub fn is_put_back(&self, all: &[Self]) -> bool {
        self.begun > 0 && all.iter().any(|member| member.all_begun > self.begun)
    }

    /// The super of a start with these members, where `newest` is the highest epoch so far.
    pub(crate) fn met(mut self, members: Members, generation: u64, newest: u64) -> Self {
        for gone in self.served.without(members).iter() {
            self.left[usize::from(gone)] = newest;
        }
        if self.served != members || generation > self.generation {
            for away in Members::first(MEMBERS_MAX).without(members).iter() {
                self.outdated[usize::from(away)] = generation;
            }
        }
        self.served = members;
        self.members = members.slots().max(self.members);
        self
    }
}

impl SuperLayout {
    fn read(&self) -> Super {
        let mut pools = PoolNames::default();
        pools[1..].copy_from_slice(&self.pools);
        Super {
            volume: u128::from_le_bytes(self.volume),
            instance: u128::from_le_bytes(self.instance),
            member: self.member.get(),
            members: self.members.get(),
            logical_block: self.logical_block.get(),
            area_bytes: self.area_bytes.get(),
            segment_bytes: self.segment_bytes.get(),
            data_at: self.data_at.get(),
            segments: self.segments.get(),
            spaces: self.spaces.get(),
            seed: u128::from_le_bytes(self.seed),
            serial: self.serial.get(),
            generation: self.generation.get(),
            epoch: self.epoch.get(),
            uid_mark: self.uid_mark.get(),
            created: self.created.get(),
            served: Members::of_bits(self.served.get()),
            left: self.left.map(U64::get),
            outdated: self.outdated.map(U64::get),
            pools,
            begun: self.begun.get(),
            all_begun: self.all_begun.get(),
        }
    }
}

/// A superblock for tests and for the corpus of the fuzzer.
#[cfg(any(test, fuzzing))]
pub(super) fn sample() -> Super {
    Super {
        volume: 1,
        instance: 2,
        member: 3,
        members: 4,
        logical_block: 512,
        area_bytes: 1 << 30,
        segment_bytes: 1 << 24,
        data_at: 1 << 20,
        segments: 63,
        spaces: 16,
        seed: 5,
        serial: 6,
        generation: 7,
        epoch: 8,
        uid_mark: 9,
        created: 10,
        served: Members::first(4),
        left: [0; 64],
        outdated: [0; 64],
        pools: PoolNames::default(),
        begun: 0,
        all_begun: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{PAGE_BYTES, Super, SuperError, sample, seal};

    fn copies() -> [[u8; PAGE_BYTES]; 2] {
        let mut copies = [[0; PAGE_BYTES]; 2];
        sample().encode(0, &mut copies[0]);
        Super { serial: 7, ..sample() }.encode(1, &mut copies[1]);
        copies
    }

    #[test]
    fn the_newer_whole_copy_counts() {
        let mut copies = copies();
        assert_eq!(Super::choose(&copies).map(|(chosen, copy)| (chosen.serial, copy)), Ok((7, 1)));
        copies[1][70] ^= 1;
        assert_eq!(Super::choose(&copies), Ok((sample(), 0)));
        copies[0][70] ^= 1;
        assert_eq!(Super::choose(&copies), Err(SuperError::Damaged));
        assert_eq!(Super::choose(&[[0; PAGE_BYTES]; 2]), Err(SuperError::Absent));
    }

    #[test]
    fn names_of_pools_come_back() {
        let mut page = [0; PAGE_BYTES];
        let mut named = sample();
        named.pools[15][..4].copy_from_slice(b"deep");
        named.encode(0, &mut page);
        assert_eq!((page[16], &page[152 + 14 * 32..][..5]), (4, &b"deep\0"[..]));
        assert_eq!(Super::decode(&page, 0), Ok(named));
    }

    #[test]
    fn an_older_copy_is_known_by_the_others() {
        let of = |begun, all_begun| Super { begun, all_begun, ..sample() };
        let put_back = |all: &[Super]| -> Vec<bool> {
            all.iter().map(|member| member.is_put_back(all)).collect()
        };
        assert_eq!(put_back(&[of(4, 4), of(5, 5), of(5, 5)]), [true, false, false]);
        assert_eq!(put_back(&[of(1, 1), of(1, 1), of(5, 5)]), [true, true, false]);
        // A start that a kill ended before all had its number, and before it was served everywhere.
        assert_eq!(put_back(&[of(4, 4), of(5, 4), of(7, 4)]), [false; 3]);
        assert_eq!(put_back(&[of(7, 4), of(7, 7), of(7, 4)]), [false; 3]);
        // One that was made since, or served by an earlier release.
        assert_eq!(put_back(&[of(0, 0), of(5, 5)]), [false; 2]);
        assert_eq!(Super::next_start(&[of(4, 4), of(7, 4)]), 8);
        let mut page = [0; PAGE_BYTES];
        of(3, 2).encode(0, &mut page);
        assert_eq!(Super::decode(&page, 0), Ok(of(3, 2)));
    }

    #[test]
    fn another_version_is_named_and_a_moved_copy_is_none() {
        let mut copies = copies();
        copies.swap(0, 1);
        assert_eq!(Super::choose(&copies), Err(SuperError::Impossible));
        copies.swap(0, 1);
        for version in [1, 2, 3, 9] {
            copies[0][16] = version;
            seal(&mut copies[0]);
            assert_eq!(Super::choose(&copies), Err(SuperError::OtherVersion(version.into())));
        }
    }
}
