//! The label: the first MiB of a member.
//!
//! Two copies of one 4 KiB image, at byte 0 and in the middle; everything else in the MiB is zero
//! and is checked to be, so that a tool that writes its own superblock anywhere in there shows.
//! Numbers are little-endian. The checksum stands at the end of the image in every format version,
//! so that a damaged version number is distinguishable from another version.

use kvrail_crc::crc64;
use kvrail_ring::Geometry;
use kvrail_store::{MEMBERS_MAX, Members};
use serde::Serialize;
use uuid::Uuid;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::name::VolumeName;
use crate::purpose::{Purpose, StoreShape};

/// Bytes in front of a member's data. 1 MiB keeps the data aligned for every device there is and
/// covers where file systems, RAID and partition tools put their superblocks.
pub const LABEL_BYTES: u64 = 1 << 20;

/// Bytes behind a file's data that no request reaches: a file that was truncated does not grow to
/// its full length again, whatever is written to it.
pub(crate) const GUARD_BYTES: u64 = 4096;

/// Version of the label format of raw volumes.
pub const LABEL_VERSION: u32 = 1;

/// Version of the label format of stores: the same with three fields more. A program that supports
/// only the first version refuses it, and does not take a store for a raw volume.
pub const STORE_LABEL_VERSION: u32 = 2;

/// Version of the label format of stores whose members changed: retired members leave gaps in the
/// list. A program that does not know it would look for keys where they no longer are.
pub const CHANGED_LABEL_VERSION: u32 = 3;

/// Stripes at most.
pub(crate) const STRIPE_BYTES_MAX: u64 = 1 << 30;

/// The label MiB as an index type.
pub(crate) const LABEL_LENGTH: usize = 1 << 20;

/// Where the copies begin. Half a MiB apart, so that one stray write does not hit both.
pub(crate) const COPIES_AT: [usize; 2] = [0, LABEL_LENGTH / 2];

/// Bytes of one copy: one physical block of any device, so that it is written whole or not at all
/// where the device promises that.
pub(crate) const COPY_BYTES: usize = 4096;

const MAGIC: [u8; 16] = *b"kvrail volume\r\n\x1a";
const NAME_FIELD: usize = 64;

/// One copy as it lies on the member.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct LabelImage {
    magic: [u8; 16],
    version: U32,
    /// 0 for the first copy, 1 for the second: a label seen at another place than it was written
    /// for (a partition border moved) is not taken.
    copy: U32,
    volume_uuid: [u8; 16],
    volume_name: [u8; NAME_FIELD],
    member_index: U16,
    member_count: U16,
    logical_block: U32,
    data_offset: U64,
    stripe_bytes: U64,
    member_bytes: U64,
    device_bytes: U64,
    created_unix_ns: U64,
    member_uuids: [[u8; 16]; MEMBERS_MAX as usize],
    /// 0 raw, 1 store. This and the next two are zero in version 1.
    purpose: U32,
    block_mean: U32,
    segment_bytes: U64,
    /// Zero in versions 1 and 2.
    changes: U64,
    reserved: [u8; RESERVED],
    /// CRC-64/NVME of all bytes before it.
    crc: U64,
}

const RESERVED: usize = COPY_BYTES - 152 - 16 * MEMBERS_MAX as usize - 24 - 8;

/// `LabelImage::purpose` of a store.
const PURPOSE_STORE: u32 = 1;
pub(crate) const CRC_AT: usize = COPY_BYTES - 8;

const _: () = assert!(size_of::<LabelImage>() == COPY_BYTES && align_of::<LabelImage>() == 1);
const _: () = assert!(std::mem::offset_of!(LabelImage, version) == 16);
const _: () = assert!(std::mem::offset_of!(LabelImage, volume_uuid) == 24);
const _: () = assert!(std::mem::offset_of!(LabelImage, member_index) == 104);
const _: () = assert!(std::mem::offset_of!(LabelImage, member_uuids) == 152);
const _: () = assert!(std::mem::offset_of!(LabelImage, purpose) == 1176);
const _: () = assert!(std::mem::offset_of!(LabelImage, segment_bytes) == 1184);
const _: () = assert!(std::mem::offset_of!(LabelImage, changes) == 1192);
const _: () = assert!(std::mem::offset_of!(LabelImage, crc) == CRC_AT);
const _: () = assert!(COPIES_AT[1] + COPY_BYTES <= LABEL_LENGTH && LABEL_LENGTH == 1 << 20);
const _: () = assert!(crate::name::NAME_BYTES_MAX < NAME_FIELD);

/// Fields of a label. Everything but `member_index` and `device_bytes` is the same on all members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Label {
    /// Identity of the volume.
    pub volume_uuid: Uuid,
    /// Name of the volume.
    pub volume_name: VolumeName,
    /// Which member this is, 0 upwards.
    pub member_index: u16,
    /// Identities of all members, in order; nil where one was retired.
    pub member_uuids: Vec<Uuid>,
    /// Number of times that members were added or retired. The label with the highest number
    /// counts.
    pub changes: u64,
    /// Unit of offsets and lengths in bytes: the largest logical block when the volume was made.
    pub logical_block: u32,
    /// Where the data begins, in bytes.
    pub data_offset: u64,
    /// Bytes of one stripe.
    pub stripe_bytes: u64,
    /// Usable bytes of each member.
    pub member_bytes: u64,
    /// Bytes of this device or file when the volume was made.
    pub device_bytes: u64,
    /// When the volume was made, nanoseconds since 1970.
    pub created_unix_ns: u64,
    /// The volume's purpose.
    pub purpose: Purpose,
}

/// The content at the place of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LabelCopy {
    /// No magic: never written, or overwritten from its first byte.
    Absent,
    /// The magic, and a checksum that is wrong: torn or overwritten.
    Torn,
    /// Whole, of another format version.
    OtherVersion(u32),
    /// Whole, and its values make no volume, or it belongs at another place.
    Impossible,
    /// A label.
    Whole(Box<Label>),
}

impl Label {
    /// How many members the volume has.
    #[must_use]
    pub fn member_count(&self) -> u16 {
        self.members().count()
    }

    /// The members that the volume has.
    #[must_use]
    pub fn members(&self) -> Members {
        let there = (0..).zip(&self.member_uuids).filter(|(_, uuid)| !uuid.is_nil());
        there.fold(Members::NONE, |all, (member, _)| all.with(member))
    }

    /// How many members the list has, gaps counted in.
    fn slots(&self) -> u16 {
        u16::try_from(self.member_uuids.len()).expect("at most MEMBERS_MAX")
    }

    /// This label with another one's list of members.
    pub(crate) fn with_members_of(&self, other: &Self) -> Self {
        let (member_uuids, changes) = (other.member_uuids.clone(), other.changes);
        Self { member_uuids, changes, ..self.clone() }
    }

    /// This member's own identity.
    #[must_use]
    pub fn member_uuid(&self) -> Uuid {
        self.member_uuids[usize::from(self.member_index)]
    }

    /// Where this member's data ends.
    pub(crate) fn data_end(&self) -> u64 {
        self.data_offset + self.member_bytes
    }

    /// The volume's shape for buffers aligned to `memory_alignment` bytes.
    #[must_use]
    pub fn geometry(&self, memory_alignment: u32) -> Geometry {
        Geometry {
            members: self.member_count(),
            stripe_bytes: self.stripe_bytes,
            member_bytes: self.member_bytes,
            data_offset: self.data_offset,
            logical_block: self.logical_block,
            memory_alignment,
        }
    }

    /// The whole first MiB of the member.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut area = vec![0; LABEL_LENGTH];
        for (copy, at) in (0_u32..).zip(COPIES_AT) {
            area[at..at + COPY_BYTES].copy_from_slice(self.image(copy).as_bytes());
        }
        area
    }

    fn image(&self, copy: u32) -> LabelImage {
        let mut volume_name = [0; NAME_FIELD];
        let name = self.volume_name.as_str().as_bytes();
        volume_name[..name.len()].copy_from_slice(name);
        let mut member_uuids = [[0; 16]; MEMBERS_MAX as usize];
        for (slot, uuid) in member_uuids.iter_mut().zip(&self.member_uuids) {
            *slot = *uuid.as_bytes();
        }
        let (version, purpose, shape) = match self.purpose {
            Purpose::Raw => (LABEL_VERSION, 0, None),
            Purpose::Store(shape) if self.changes > 0 => {
                (CHANGED_LABEL_VERSION, PURPOSE_STORE, Some(shape))
            }
            Purpose::Store(shape) => (STORE_LABEL_VERSION, PURPOSE_STORE, Some(shape)),
        };
        let mut image = LabelImage {
            magic: MAGIC,
            version: version.into(),
            copy: copy.into(),
            volume_uuid: *self.volume_uuid.as_bytes(),
            volume_name,
            member_index: self.member_index.into(),
            member_count: self.slots().into(),
            logical_block: self.logical_block.into(),
            data_offset: self.data_offset.into(),
            stripe_bytes: self.stripe_bytes.into(),
            member_bytes: self.member_bytes.into(),
            device_bytes: self.device_bytes.into(),
            created_unix_ns: self.created_unix_ns.into(),
            member_uuids,
            purpose: purpose.into(),
            block_mean: shape.map_or(0, |shape| shape.block_mean).into(),
            segment_bytes: shape.map_or(0, |shape| shape.segment_bytes).into(),
            changes: self.changes.into(),
            reserved: [0; RESERVED],
            crc: 0.into(),
        };
        image.crc = crc64(&image.as_bytes()[..CRC_AT]).into();
        image
    }

    /// The rules of a volume, whatever made the label.
    fn is_possible(&self) -> bool {
        let block = u64::from(self.logical_block);
        let end = self.member_bytes.checked_add(self.data_offset);
        self.member_index < self.slots()
            && !self.member_uuid().is_nil()
            && self.logical_block.is_power_of_two()
            && (512..=1 << 16).contains(&self.logical_block)
            && self.data_offset >= LABEL_BYTES
            && self.data_offset.is_multiple_of(block)
            && (1..=STRIPE_BYTES_MAX).contains(&self.stripe_bytes)
            && self.stripe_bytes.is_multiple_of(block)
            && self.member_bytes > 0
            && self.member_bytes.is_multiple_of(self.stripe_bytes)
            && self.member_bytes.checked_mul(u64::from(self.member_count())).is_some()
            && end.is_some_and(|end| end <= self.device_bytes)
            && !self.volume_uuid.is_nil()
            && self.purpose.store().is_none_or(StoreShape::is_possible)
    }
}

/// Reads one copy out of the first MiB.
pub(crate) fn read_copy(area: &[u8; LABEL_LENGTH], copy: usize) -> LabelCopy {
    let bytes = &area[COPIES_AT[copy]..COPIES_AT[copy] + COPY_BYTES];
    let image =
        LabelImage::ref_from_bytes(bytes).expect("COPY_BYTES is its size, and it has no padding");
    if image.magic != MAGIC {
        return LabelCopy::Absent;
    }
    if crc64(&bytes[..CRC_AT]) != image.crc.get() {
        return LabelCopy::Torn;
    }
    let known = [LABEL_VERSION, STORE_LABEL_VERSION, CHANGED_LABEL_VERSION];
    if !known.contains(&image.version.get()) {
        return LabelCopy::OtherVersion(image.version.get());
    }
    match decode(image) {
        Some(label) if image.copy.get() as usize == copy && label.is_possible() => {
            LabelCopy::Whole(Box::new(label))
        }
        _ => LabelCopy::Impossible,
    }
}

fn decode(image: &LabelImage) -> Option<Label> {
    let count = usize::from(image.member_count.get());
    if !(1..=usize::from(MEMBERS_MAX)).contains(&count) {
        return None;
    }
    let end = image.volume_name.iter().position(|&byte| byte == 0)?;
    let name = std::str::from_utf8(&image.volume_name[..end]).ok()?;
    Some(Label {
        volume_uuid: Uuid::from_bytes(image.volume_uuid),
        volume_name: name.parse().ok()?,
        member_index: image.member_index.get(),
        member_uuids: image.member_uuids[..count].iter().map(|u| Uuid::from_bytes(*u)).collect(),
        logical_block: image.logical_block.get(),
        data_offset: image.data_offset.get(),
        stripe_bytes: image.stripe_bytes.get(),
        member_bytes: image.member_bytes.get(),
        changes: match image.version.get() {
            CHANGED_LABEL_VERSION => image.changes.get(),
            _ => 0,
        },
        device_bytes: image.device_bytes.get(),
        created_unix_ns: image.created_unix_ns.get(),
        purpose: purpose(image)?,
    })
}

/// Its purpose, if its format can express it.
fn purpose(image: &LabelImage) -> Option<Purpose> {
    let (version, purpose) = (image.version.get(), image.purpose.get());
    match (version, purpose) {
        (LABEL_VERSION, _) => Some(Purpose::Raw),
        (STORE_LABEL_VERSION | CHANGED_LABEL_VERSION, PURPOSE_STORE) => {
            Some(Purpose::Store(StoreShape {
                segment_bytes: image.segment_bytes.get(),
                block_mean: image.block_mean.get(),
            }))
        }
        _ => None,
    }
}

/// Seals every checksum in an area for its bytes: tests make labels that are whole and wrong.
#[cfg(test)]
pub(crate) fn reseal(area: &mut [u8]) {
    for at in COPIES_AT {
        let crc = crc64(&area[at..at + CRC_AT]);
        area[at + CRC_AT..at + COPY_BYTES].copy_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
pub(crate) fn sample() -> Label {
    Label {
        volume_uuid: Uuid::from_u128(7),
        volume_name: "kv0".parse().unwrap(),
        member_index: 1,
        member_uuids: vec![Uuid::from_u128(1), Uuid::from_u128(2)],
        changes: 0,
        logical_block: 512,
        data_offset: LABEL_BYTES,
        stripe_bytes: 1_124_352,
        member_bytes: 10 * 1_124_352,
        device_bytes: LABEL_BYTES + 10 * 1_124_352,
        created_unix_ns: 1_750_000_000_000_000_000,
        purpose: Purpose::Raw,
    }
}

#[cfg(test)]
mod tests {
    use super::{COPIES_AT, LABEL_LENGTH, Label, LabelCopy, read_copy, reseal, sample};
    use crate::purpose::{Purpose, StoreShape};

    fn area(label: &Label) -> Box<[u8; LABEL_LENGTH]> {
        label.encode().into_boxed_slice().try_into().unwrap()
    }

    #[test]
    fn both_copies_say_what_was_written() {
        let label = sample();
        let area = area(&label);
        for copy in 0..2 {
            assert_eq!(read_copy(&area, copy), LabelCopy::Whole(Box::new(label.clone())));
        }
        assert_eq!(label.geometry(4).capacity(), 20 * 1_124_352);
    }

    /// The format on disk is a promise: this number changes only together with LABEL_VERSION.
    #[test]
    fn the_format_is_the_one_of_version_1() {
        let area = area(&sample());
        let crc = u64::from_le_bytes(area[4088..4096].try_into().unwrap());
        assert_eq!(&area[..20], b"kvrail volume\r\n\x1a\x01\0\0\0");
        assert_eq!(crc, FORMAT_1_CRC, "{crc:#x}");
    }

    #[test]
    fn a_store_says_so_and_is_no_label_of_version_1() {
        let shape = StoreShape { segment_bytes: 256 << 20, block_mean: 1 << 20 };
        let label = Label { purpose: Purpose::Store(shape), ..sample() };
        let mut stored = area(&label);
        assert_eq!(read_copy(&stored, 1), LabelCopy::Whole(Box::new(label)));
        assert_eq!(stored[16], 2);
        // A raw label has zeros there, and whatever a later program of version 1 writes is passed
        // over.
        assert_eq!(area(&sample())[1176..1192], [0; 16]);
        stored[1176] = 2;
        reseal(&mut stored[..]);
        assert_eq!(read_copy(&stored, 0), LabelCopy::Impossible, "an unknown purpose");
        for (segment_bytes, block_mean) in [(3 << 20, 1 << 20), (256 << 20, 0), (64 << 10, 1 << 20)]
        {
            let purpose = Purpose::Store(StoreShape { segment_bytes, block_mean });
            let impossible = area(&Label { purpose, ..sample() });
            assert_eq!(read_copy(&impossible, 0), LabelCopy::Impossible, "{purpose:?}");
        }
    }

    #[test]
    fn a_store_whose_members_changed_has_a_format_of_its_own() {
        let shape = StoreShape { segment_bytes: 256 << 20, block_mean: 1 << 20 };
        let mut label = Label { purpose: Purpose::Store(shape), changes: 4, ..sample() };
        label.member_uuids.insert(0, uuid::Uuid::nil());
        label.member_index = 2;
        assert_eq!((label.member_count(), label.members().bits()), (2, 0b110));
        let stored = area(&label);
        assert_eq!((stored[16], stored[1192]), (3, 4));
        assert_eq!(read_copy(&stored, 1), LabelCopy::Whole(Box::new(label.clone())));
        label.member_index = 0;
        assert_eq!(read_copy(&area(&label), 0), LabelCopy::Impossible, "a member that was retired");
    }

    const FORMAT_1_CRC: u64 = 0xdccd_1a5f_d67a_5218;

    #[test]
    fn another_version_is_told_from_a_torn_one() {
        let mut area = area(&sample());
        area[16] = 9;
        assert_eq!(read_copy(&area, 0), LabelCopy::Torn);
        reseal(&mut area[..]);
        assert_eq!(read_copy(&area, 0), LabelCopy::OtherVersion(9));
    }

    #[test]
    fn a_copy_at_the_wrong_place_is_not_taken() {
        let mut area = area(&sample());
        area.copy_within(COPIES_AT[1]..COPIES_AT[1] + 4096, 0);
        assert_eq!(read_copy(&area, 0), LabelCopy::Impossible);
    }

    #[test]
    fn impossible_values_are_not_taken_whatever_the_checksum_says() {
        type Spoil = fn(&mut Label);
        let cases: [(&str, Spoil); 9] = [
            ("index", |l| l.member_index = 2),
            ("block", |l| l.logical_block = 513),
            ("tiny block", |l| l.logical_block = 256),
            ("offset inside the label", |l| l.data_offset = 4096),
            ("no stripe", |l| l.stripe_bytes = 0),
            ("odd stripe", |l| l.stripe_bytes = 1000),
            ("no bytes", |l| l.member_bytes = 0),
            ("half a stripe", |l| l.member_bytes += 512),
            ("larger than the device", |l| l.device_bytes -= 1),
        ];
        for (name, spoil) in cases {
            let mut label = sample();
            spoil(&mut label);
            assert_eq!(read_copy(&area(&label), 0), LabelCopy::Impossible, "{name}");
        }
    }
}
