//! The decoder of labels, for the target in `fuzz`.

use kvrail_crc::crc64;
use uuid::Uuid;

use crate::label::{COPIES_AT, COPY_BYTES, CRC_AT, LABEL_LENGTH, Label, LabelCopy, read_copy};
use crate::purpose::{Purpose, StoreShape};

/// Both copies of a label, with valid checksums: an image that decodes encodes to the same bytes.
///
/// # Panics
/// If it does not.
pub fn label(bytes: &[u8]) {
    let mut copy = [0; COPY_BYTES];
    let length = bytes.len().min(COPY_BYTES);
    copy[..length].copy_from_slice(&bytes[..length]);
    let crc = crc64(&copy[..CRC_AT]);
    copy[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    let mut area = area(&[]);
    for at in COPIES_AT {
        area[at..at + COPY_BYTES].copy_from_slice(&copy);
    }
    for number in 0..2 {
        if let LabelCopy::Whole(told) = read_copy(&area, number) {
            let again = self::area(&told.encode());
            assert_eq!(read_copy(&again, number), LabelCopy::Whole(told));
        }
    }
}

/// A label of each kind: seeds.
///
/// # Panics
/// Never: the name is one.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let raw = Label {
        volume_uuid: Uuid::from_u128(7),
        volume_name: "kv0".parse().expect("a name"),
        member_index: 1,
        member_uuids: vec![Uuid::from_u128(1), Uuid::from_u128(2)],
        changes: 0,
        logical_block: 512,
        data_offset: 1 << 20,
        stripe_bytes: 1 << 20,
        member_bytes: 10 << 20,
        device_bytes: 11 << 20,
        created_unix_ns: 1_750_000_000_000_000_000,
        purpose: Purpose::Raw,
    };
    let shape = StoreShape { segment_bytes: 256 << 20, block_mean: 1 << 20 };
    let store = Label { purpose: Purpose::Store(shape), ..raw.clone() };
    let changed = Label { changes: 2, ..store.clone() };
    [raw, store, changed].map(|label| ("label", label.encode()[..COPY_BYTES].to_vec())).into()
}

fn area(bytes: &[u8]) -> Box<[u8; LABEL_LENGTH]> {
    let mut area = vec![0; LABEL_LENGTH];
    area[..bytes.len()].copy_from_slice(bytes);
    area.into_boxed_slice().try_into().expect("LABEL_LENGTH bytes")
}
