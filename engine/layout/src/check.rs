//! The rules of a layout, checked before any address is made of it.

use crate::{
    BLOCK_UNIT_BYTES, FRAGMENT_BYTES_MIN, FRAGMENTS_MAX, Fragment, LayoutError, MEMORIES_MAX,
    UNIT_BYTES,
};

/// All rules.
pub(crate) fn check(
    fragments: &[Fragment],
    blocks: u32,
    memories: &[u64],
) -> Result<(), LayoutError> {
    count("fragments", fragments.len() as u64, FRAGMENTS_MAX as u64)?;
    count("blocks", u64::from(blocks), u64::from(u32::MAX))?;
    count("memories", memories.len() as u64, MEMORIES_MAX as u64)?;
    let mut ends = Vec::with_capacity(fragments.len());
    let mut sum: u64 = 0;
    for (index, fragment) in fragments.iter().enumerate() {
        aligned(index, "base", fragment.base, 0)?;
        aligned(index, "stride", fragment.stride, 0)?;
        aligned(index, "bytes", fragment.bytes, FRAGMENT_BYTES_MIN)?;
        ends.push(end_of(index, fragment, blocks, memories)?);
        sum = sum.saturating_add(fragment.bytes);
    }
    if !sum.is_multiple_of(BLOCK_UNIT_BYTES) || sum > i64::MAX as u64 {
        return Err(LayoutError::Ragged { bytes: sum });
    }
    apart(fragments, blocks, &ends)
}

fn count(what: &'static str, found: u64, most: u64) -> Result<(), LayoutError> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(LayoutError::Count { what, least: 1, most, found })
}

fn aligned(index: usize, what: &'static str, value: u64, least: u64) -> Result<(), LayoutError> {
    if value.is_multiple_of(UNIT_BYTES) && value >= least {
        return Ok(());
    }
    Err(LayoutError::Misaligned { index, what, value, least })
}

/// Where the last block's fragment ends, if that is inside of its memory.
fn end_of(
    index: usize,
    fragment: &Fragment,
    blocks: u32,
    memories: &[u64],
) -> Result<u64, LayoutError> {
    let Fragment { memory, base, stride, bytes } = *fragment;
    let has = memories.get(usize::from(memory)).copied().unwrap_or(0);
    let end = stride
        .checked_mul(u64::from(blocks) - 1)
        .and_then(|last| last.checked_add(base))
        .and_then(|last| last.checked_add(bytes));
    match end {
        Some(end) if end <= has => Ok(end),
        _ => Err(LayoutError::Outside { index, end: end.unwrap_or(u64::MAX), memory, bytes: has }),
    }
}

/// No two fragments of any two blocks share a byte.
fn apart(fragments: &[Fragment], blocks: u32, ends: &[u64]) -> Result<(), LayoutError> {
    for (second, b) in fragments.iter().enumerate() {
        let memory = b.memory;
        if blocks > 1 && b.stride < b.bytes {
            return Err(LayoutError::Overlap { first: second, second, memory });
        }
        for (first, a) in fragments[..second].iter().enumerate() {
            let beside = a.base >= ends[second] || b.base >= ends[first];
            if a.memory != b.memory || beside {
                continue;
            }
            if blocks > 1 && a.stride != b.stride {
                return Err(LayoutError::Interleaved { first, second, memory });
            }
            let (low, high) = if a.base <= b.base { (a, b) } else { (b, a) };
            if meet(low, high, blocks) {
                return Err(LayoutError::Overlap { first, second, memory });
            }
        }
    }
    Ok(())
}

/// Whether any block of `low` meets any block of `high`: same stride, `low` begins first.
fn meet(low: &Fragment, high: &Fragment, blocks: u32) -> bool {
    let gap = high.base - low.base;
    if blocks == 1 {
        return gap < low.bytes;
    }
    // `high` of block 0 lies behind the `low` of this block, and before the next one's.
    let behind = gap / low.stride;
    let rest = gap % low.stride;
    let last = u64::from(blocks) - 1;
    (behind <= last && rest < low.bytes) || (behind < last && low.stride - rest < high.bytes)
}
