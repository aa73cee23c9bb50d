//! Faults of a layout, by fragment and limit.

use thiserror::Error;

/// The fault of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// None, or too many of something.
    #[error("a layout has {least} to {most} {what}, not {found}")]
    Count {
        /// Of what.
        what: &'static str,
        /// Fewest.
        least: u64,
        /// Most.
        most: u64,
        /// How many there were.
        found: u64,
    },
    /// A number that is not a multiple of what it must be, or too small.
    #[error(
        "fragment {index}: {what} = {value} bytes must be a multiple of 16{}",
        if *.least == 0 { String::new() } else { format!(" and at least {least}") }
    )]
    Misaligned {
        /// Which fragment.
        index: usize,
        /// `base`, `stride` or `bytes`.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The least it may be; 0 where any will do.
        least: u64,
    },
    /// The block is no multiple of 512 bytes.
    #[error(
        "the fragments of a block add up to {bytes} bytes, not to a multiple of 512, so no volume \
         could hold it without a rest; pad one of them"
    )]
    Ragged {
        /// Their sum.
        bytes: u64,
    },
    /// A fragment reaches beyond its memory.
    #[error(
        "fragment {index}: its last block ends at byte {end} of memory {memory}, which has {bytes} \
         bytes"
    )]
    Outside {
        /// Which fragment.
        index: usize,
        /// Where it would end; `u64::MAX` beyond all numbers.
        end: u64,
        /// The memory.
        memory: u16,
        /// Its size, 0 where there is no such memory.
        bytes: u64,
    },
    /// Two fragments share bytes.
    #[error("fragments {first} and {second} overlap in memory {memory}")]
    Overlap {
        /// The one.
        first: usize,
        /// The other; the same when a fragment overlaps its own next block.
        second: usize,
        /// Where.
        memory: u16,
    },
    /// Two fragments interleave with different strides.
    #[error(
        "fragments {first} and {second} lie between each other in memory {memory} with different \
         strides; use one stride, or let them lie apart"
    )]
    Interleaved {
        /// The one.
        first: usize,
        /// The other.
        second: usize,
        /// Where.
        memory: u16,
    },
}
