//! Decoders of what lies on a drive, for the targets in `fuzz`.
//!
//! Each function seals the bytes with a valid checksum and decodes them with the store and segment
//! that they name, so that fuzzing reaches the code behind those checks.

use super::seal::seal;
use super::superblock::sample;
use super::{
    Head, PAGE_BYTES, Page, PageHeader, Record, RecordKind, SPACE_BYTES, SpaceImage, SpaceState,
    Super,
};
use crate::key::Key;
use crate::ledger::Ledger;

/// Both copies of a superblock: what decodes encodes to the same bytes.
///
/// # Panics
/// If it does not.
pub fn superblock(bytes: &[u8]) {
    let page = sealed::<PAGE_BYTES>(bytes);
    let _ = Super::choose(&[page, page]);
    for copy in 0..2 {
        if let Ok(found) = Super::decode(&page, copy) {
            let mut again = [0; PAGE_BYTES];
            found.encode(copy, &mut again);
            assert_eq!(Super::decode(&again, copy), Ok(found));
        }
    }
}

/// A segment's head: what decodes encodes to the same bytes.
///
/// # Panics
/// If it does not.
pub fn head(bytes: &[u8]) {
    let page = sealed::<PAGE_BYTES>(bytes);
    let (instance, segment) = (instance(&page), number(&page, 48));
    if let Some(wanted) = Head::decode(&page, instance, segment) {
        let mut again = [0; PAGE_BYTES];
        wanted.encode(instance, segment, &mut again);
        assert_eq!(Head::decode(&again, instance, segment), Some(wanted));
    }
}

/// A page of the summary: its records end, and encode to the same bytes.
///
/// # Panics
/// If they do not.
pub fn page(bytes: &[u8]) {
    let image = sealed::<PAGE_BYTES>(bytes);
    let epoch = u64::from_le_bytes(image[24..32].try_into().expect("eight bytes"));
    let names = (instance(&image), epoch, number(&image, 56), number(&image, 60));
    let mut page = Page::new();
    page.bytes_mut().copy_from_slice(&image);
    let Some(header) = page.decode(names.0, names.1, names.2, names.3) else { return };
    let mut again = Page::new();
    for (record, metadata) in records(&page) {
        again.append(&record, &metadata);
    }
    let image = again.encode(&header, names.0).to_vec();
    let mut back = Page::new();
    back.bytes_mut().copy_from_slice(&image);
    assert_eq!(back.decode(names.0, names.1, names.2, names.3), Some(header));
    assert_eq!(records(&back), records(&page));
}

/// The slot of a namespace: what decodes encodes to the same bytes.
///
/// # Panics
/// If it does not.
pub fn space(bytes: &[u8]) {
    let image = sealed::<SPACE_BYTES>(bytes);
    let (instance, slot) = (instance(&image), number(&image, 40));
    if let Some(wanted) = SpaceImage::decode(&image, instance, slot) {
        let mut again = [0; SPACE_BYTES];
        wanted.encode(instance, slot, &mut again);
        let back = SpaceImage::decode(&again, instance, slot).expect("it was written a moment ago");
        assert_eq!(fields(&back), fields(&wanted));
    }
}

/// One of each: seeds.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut made = [[0; PAGE_BYTES]; 3];
    let mut wanted = sample();
    wanted.encode(0, &mut made[0]);
    wanted.pools[1][..4].copy_from_slice(b"team");
    wanted.encode(1, &mut made[1]);
    let ledgers = [Ledger::of([(5, 9)].into_iter()).expect("in order"), Ledger::EMPTY];
    let (floors, drops) = ([3; 16], [2; 16]);
    let head = Head { epoch: 9, pool: 1, floors, drops, time: 77, second: 2, ledgers };
    head.encode(5, 8, &mut made[2]);
    let mut page = Page::new();
    let key = Key::new(7 << 64 | 9);
    for kind in [RecordKind::Put, RecordKind::Drop, RecordKind::Gap] {
        page.append(&Record { length: 4096, ..Record::plain(kind, key, 5, 3) }, b"metadata");
    }
    let header = PageHeader { epoch: 9, segment: 8, index: 1, pool: 1, ..PageHeader::default() };
    let mut space = [0; SPACE_BYTES];
    SpaceImage {
        serial: 3,
        uid: 77,
        state: SpaceState::Open,
        pool: 1,
        created: 5,
        name: b"llama",
        document: br#"{"model":"llama"}"#,
    }
    .encode(9, 4, &mut space);
    vec![
        ("store_super", made[0].to_vec()),
        ("store_super", made[1].to_vec()),
        ("store_head", made[2].to_vec()),
        ("store_page", page.encode(&header, 5).to_vec()),
        ("store_space", space.to_vec()),
    ]
}

fn records(page: &Page) -> Vec<(Record, Vec<u8>)> {
    let (mut at, mut found) = (0, Vec::new());
    while let Some((record, metadata, next)) = page.record(at) {
        assert!(next > at, "a record has bytes");
        found.push((record, metadata.to_vec()));
        at = next;
    }
    found
}

fn fields<'a>(of: &SpaceImage<'a>) -> (u64, u64, SpaceState, u8, u64, &'a [u8], &'a [u8]) {
    (of.serial, of.uid, of.state, of.pool, of.created, of.name, of.document)
}

/// The bytes, padded with zeros, with a valid checksum.
fn sealed<const BYTES: usize>(bytes: &[u8]) -> [u8; BYTES] {
    let mut image = [0; BYTES];
    let length = bytes.len().min(BYTES);
    image[..length].copy_from_slice(&bytes[..length]);
    seal(&mut image);
    image
}

fn instance(image: &[u8]) -> u128 {
    u128::from_le_bytes(image[8..24].try_into().expect("sixteen bytes"))
}

fn number(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(image[at..at + 4].try_into().expect("four bytes"))
}
