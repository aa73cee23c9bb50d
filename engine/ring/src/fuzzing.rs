//! Decoders of what clients write into shared memory, for the targets in `fuzz`.

use std::sync::Arc;

use kvrail_memory::{HeapBlock, Pinned};

use crate::keyed::Side;
use crate::side::{SIDE_BYTES, SIDE_WORDS, SideAreas, SideCopy, SideSlot, write};
use crate::slot::{Completion, Packed, Request};
use crate::snapshot::RequestSnapshot;

/// A request slot: every content is one, and is the same words again.
///
/// # Panics
/// If it is not.
pub fn request_slot(bytes: &[u8]) {
    let words = words(bytes);
    let request = Request::unpack(words);
    assert_eq!(request.pack(), words);
    let snapshot = RequestSnapshot(words);
    assert_eq!(snapshot.fields(), request);
    let _ = (snapshot.opcode(), snapshot.transfer(), snapshot.class());
    let _ = (snapshot.key(), snapshot.lows(), snapshot.is_whole_get());
}

/// A completion slot: the same.
///
/// # Panics
/// If it is not the same words again.
pub fn completion_slot(bytes: &[u8]) {
    let words = words(bytes);
    assert_eq!(Completion::unpack(words).pack(), words);
}

/// A side area: what decodes encodes to the same content.
///
/// # Panics
/// If it does not.
pub fn side_area(bytes: &[u8]) {
    let areas = areas();
    for (at, word) in words::<SIDE_WORDS>(bytes).into_iter().enumerate() {
        areas.set_word(0, at, word);
    }
    let (mut first, mut second) = (SideCopy::new(), SideCopy::new());
    if SideSlot::new(&areas, 0).copy_into(&mut first) {
        write(&areas, 1, &first.side());
        assert!(SideSlot::new(&areas, 1).copy_into(&mut second));
        assert_eq!(first.side(), second.side());
    }
}

/// A slot of each kind, and side areas: seeds.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let request = Request { opcode: 1, length: 4096, region: 1, ..Request::default() };
    let completion = Completion { user_data: 7, bytes: 4096, ..Completion::default() };
    let areas = areas();
    write(
        &areas,
        0,
        &Side { block_bytes: 1 << 20, at: 4096, metadata: b"of a block", ..Side::default() },
    );
    let side: Vec<u64> = (0..SIDE_WORDS).map(|at| areas.word(0, at)).collect();
    vec![
        ("request_slot", bytes(&request.pack())),
        ("completion_slot", bytes(&completion.pack())),
        ("side_area", bytes(&side)[..32].to_vec()),
    ]
}

fn areas() -> SideAreas {
    let memory: Arc<dyn Pinned> = Arc::new(HeapBlock::new(2 * SIDE_BYTES));
    SideAreas::at(&memory, 0, 2)
}

/// The first words; what is missing is zero.
fn words<const WORDS: usize>(bytes: &[u8]) -> [u64; WORDS] {
    let mut pieces = bytes.chunks(8);
    std::array::from_fn(|_| {
        let mut word = [0; 8];
        let piece = pieces.next().unwrap_or_default();
        word[..piece.len()].copy_from_slice(piece);
        u64::from_le_bytes(word)
    })
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
