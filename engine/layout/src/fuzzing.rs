//! Layouts as clients send them, for the target in `fuzz`.

use crate::{Fragment, Layout};

/// A layout of numbers: what is accepted leaves no memory, and its runs make up the block.
///
/// # Panics
/// If it does, or they do not.
pub fn layout(bytes: &[u8]) {
    let mut numbers =
        bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap()));
    let mut next = || numbers.next().unwrap_or(0);
    let blocks = u32::try_from(next() & 0xffff_ffff).expect("32 bits");
    let memories: Vec<u64> = (0..=next() % 4).map(|_| next()).collect();
    let fragments = (0..=next() % 8).map(|_| Fragment {
        memory: u16::try_from(next() % 5).expect("below 5"),
        base: next(),
        stride: next(),
        bytes: next(),
    });
    let Ok(layout) = Layout::new(fragments.collect(), blocks, &memories) else { return };
    let length = u32::try_from(layout.block_bytes().min(1 << 30)).expect("30 bits");
    for block in [0, layout.blocks() - 1] {
        if !layout.holds(block, 0, length) {
            continue;
        }
        let mut at = 0;
        for run in layout.runs(block, 0, length) {
            assert_eq!(run.at, at);
            assert!(run.offset + run.bytes <= memories[usize::from(run.memory)], "{run:?}");
            at += run.bytes;
        }
        assert_eq!(at, u64::from(length));
    }
}

/// A layout of two fragments in one memory: a seed.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let two = [8, 0, 1 << 20, 1, 0, 0, 4096, 2048, 0, 2048, 4096, 2048];
    vec![("layout", two.iter().flat_map(|number: &u64| number.to_le_bytes()).collect())]
}
