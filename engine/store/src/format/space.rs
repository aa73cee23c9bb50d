//! The slot of a namespace: name, uid, identity document. Two copies.

use std::mem::{offset_of, size_of};

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::seal::{is_whole, seal};
use super::superblock::POOLS_MAX;

/// Most bytes of a namespace's name.
pub const NAME_BYTES_MAX: usize = 64;
/// Most bytes of a namespace's identity document.
pub const DOCUMENT_BYTES_MAX: usize = 4096;

/// Bytes of one copy of a slot.
pub(crate) const SPACE_BYTES: usize = SPACE as usize;

/// The same, as transfers count.
pub(crate) const SPACE: u32 = 8192;

const MAGIC: [u8; 8] = *b"kvrspace";
const RESERVED: usize = SPACE_BYTES - 128 - DOCUMENT_BYTES_MAX - 8;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct SpaceLayout {
    magic: [u8; 8],
    instance: [u8; 16],
    serial: U64,
    uid: U64,
    slot: U32,
    state: U16,
    name_bytes: U16,
    document_bytes: U16,
    pool: U16,
    spare: [u8; 4],
    created: U64,
    name: [u8; NAME_BYTES_MAX],
    document: [u8; DOCUMENT_BYTES_MAX],
    reserved: [u8; RESERVED],
    crc: U64,
}

const _: () =
    assert!(size_of::<SpaceLayout>() == SPACE_BYTES && offset_of!(SpaceLayout, document) == 128);

/// Whether a slot holds a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpaceState {
    /// It does.
    Open,
    /// It did: its uid must not be used again.
    Removed,
}

/// Fields of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceImage<'a> {
    /// The copy with the higher one counts.
    pub(crate) serial: u64,
    /// The namespace's uid.
    pub(crate) uid: u64,
    pub(crate) state: SpaceState,
    /// The pool that its blocks are in.
    pub(crate) pool: u8,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) name: &'a [u8],
    pub(crate) document: &'a [u8],
}

impl<'a> SpaceImage<'a> {
    pub(crate) fn encode(&self, instance: u128, slot: u32, bytes: &mut [u8]) {
        bytes.fill(0);
        let image = SpaceLayout::mut_from_bytes(bytes).expect("SPACE_BYTES, and of alignment 1");
        image.magic = MAGIC;
        image.instance = instance.to_le_bytes();
        image.serial = self.serial.into();
        image.uid = self.uid.into();
        image.slot = slot.into();
        image.state = match self.state {
            SpaceState::Open => 1.into(),
            SpaceState::Removed => 2.into(),
        };
        image.name_bytes = short(self.name.len());
        image.document_bytes = short(self.document.len());
        image.pool = u16::from(self.pool).into();
        image.created = self.created.into();
        image.name[..self.name.len()].copy_from_slice(self.name);
        image.document[..self.document.len()].copy_from_slice(self.document);
        seal(bytes);
    }

    /// The image in the bytes, if they are this slot of this store.
    pub(crate) fn decode(bytes: &'a [u8], instance: u128, slot: u32) -> Option<Self> {
        let image = SpaceLayout::ref_from_bytes(bytes).ok()?;
        let ours = image.magic == MAGIC
            && image.instance == instance.to_le_bytes()
            && image.slot.get() == slot
            && is_whole(bytes);
        let state = match image.state.get() {
            1 => SpaceState::Open,
            2 => SpaceState::Removed,
            _ => return None,
        };
        let name = image.name.get(..usize::from(image.name_bytes.get()))?;
        let document = image.document.get(..usize::from(image.document_bytes.get()))?;
        let pool = u8::try_from(image.pool.get()).ok();
        let pool = pool.filter(|pool| usize::from(*pool) < POOLS_MAX)?;
        ours.then(|| Self {
            serial: image.serial.get(),
            uid: image.uid.get(),
            state,
            pool,
            created: image.created.get(),
            name,
            document,
        })
    }
}

fn short(length: usize) -> U16 {
    U16::new(u16::try_from(length).expect("bounded by the field"))
}

#[cfg(test)]
mod tests {
    use super::{SPACE_BYTES, SpaceImage, SpaceState};

    #[test]
    fn a_slot_says_what_was_written() {
        let image = SpaceImage {
            serial: 3,
            uid: 77,
            state: SpaceState::Open,
            pool: 9,
            created: 5,
            name: b"llama",
            document: &[b'x'; 4096],
        };
        let mut bytes = [0xee; SPACE_BYTES];
        image.encode(9, 4, &mut bytes);
        let back = SpaceImage::decode(&bytes, 9, 4).unwrap();
        assert_eq!((back.uid, back.name, back.document.len()), (77, &b"llama"[..], 4096));
        assert_eq!(back.pool, 9);
        assert!(SpaceImage::decode(&bytes, 9, 5).is_none());
        assert!(SpaceImage::decode(&bytes, 8, 4).is_none());
        bytes[4000] ^= 4;
        assert!(SpaceImage::decode(&bytes, 9, 4).is_none());
    }
}
