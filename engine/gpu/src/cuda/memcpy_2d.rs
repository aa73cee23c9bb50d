//! Commands for the copy engines: rows of a block that lie evenly spaced become one copy.
//!
//! Staging memory holds a range of a block without gaps; in GPU memory its runs lie apart. Runs of
//! one length at one distance, as those of all layers within one allocation, are a rectangle, and
//! a copy engine moves a rectangle at the speed of a plain copy. Pure numbers: no CUDA here.

use crate::contract::Move;
use kvrail_layout::{Run, Runs};

/// Most rectangles of a move that are given to the engines one by one: each is a call of 2 us.
const SINGLE_MAX: usize = 8;

/// Fewest bytes a copy of a list moves on average. An entry costs 0.45 us and more of this thread,
/// so below this engines would be slower than half of the bus.
const LISTED_BYTES_MIN: u64 = 16 << 10;

/// Widest distance of two rows; the driver's limit on every GPU so far is above it.
const PITCH_MAX: u64 = 1 << 30;

/// Evenly spaced rows of GPU memory, gapless in staging memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rectangle {
    /// Address of the first row in GPU memory.
    pub(super) address: u64,
    /// First byte in the staging memory.
    pub(super) staged: usize,
    /// Bytes of a row.
    pub(super) width: usize,
    /// Bytes from one row to the next in GPU memory.
    pub(super) pitch: usize,
    /// Rows.
    pub(super) rows: usize,
}

/// The rectangles of a move, in order.
#[derive(Clone, Debug)]
pub(super) struct Rectangles<'a> {
    it: Move<'a>,
    runs: Runs<'a>,
    next: Option<Run>,
}

impl<'a> Rectangles<'a> {
    pub(super) fn of(it: Move<'a>) -> Self {
        let mut runs = it.region.layout().runs(it.block, it.start, it.length);
        let next = runs.next();
        Self { it, runs, next }
    }

    fn address(&self, run: &Run) -> u64 {
        self.it.region.memories()[usize::from(run.memory)].address + run.offset
    }
}

impl Iterator for Rectangles<'_> {
    type Item = Rectangle;

    fn next(&mut self) -> Option<Rectangle> {
        let first = self.next.take()?;
        let (mut last, mut rows, mut pitch) = (first, 1, first.bytes);
        for run in self.runs.by_ref() {
            let even = run.memory == first.memory && run.bytes == first.bytes;
            let apart = run.offset.checked_sub(last.offset).filter(|apart| *apart <= PITCH_MAX);
            match apart.filter(|apart| even && (rows == 1 || *apart == pitch)) {
                Some(apart) if apart >= run.bytes => (last, rows, pitch) = (run, rows + 1, apart),
                _ => {
                    self.next = Some(run);
                    break;
                }
            }
        }
        let size = |bytes: u64| usize::try_from(bytes).expect("64-bit machine");
        Some(Rectangle {
            address: self.address(&first),
            staged: self.it.staged + size(first.at),
            width: size(first.bytes),
            pitch: size(pitch),
            rows,
        })
    }
}

/// How copy engines do a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyShape {
    /// A few rectangles, one call each.
    Rectangles,
    /// Many runs that are long enough for one call with a list.
    List,
    /// Many short runs: work for a kernel.
    Scattered,
}

impl CopyShape {
    pub(super) fn of(it: Move<'_>) -> Self {
        if Rectangles::of(it).nth(SINGLE_MAX).is_none() {
            return Self::Rectangles;
        }
        let runs = it.region.layout().runs(it.block, it.start, it.length).count() as u64;
        if u64::from(it.length) / runs >= LISTED_BYTES_MIN { Self::List } else { Self::Scattered }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{CopyShape, Rectangle, Rectangles};
    use crate::contract::{DirectPath, Gpu, Move};
    use crate::region::GpuRegion;
    use crate::standin::EmulatedGpu;
    use kvrail_layout::Fragment;

    /// A region of the stand-in with one memory of 64 MiB.
    fn region(fragments: Vec<Fragment>, blocks: u32) -> Arc<GpuRegion> {
        let gpu = EmulatedGpu::new(0, DirectPath::Compat);
        let memory = gpu.allocate(64 << 20).unwrap();
        gpu.import(vec![memory.export().unwrap()], fragments, blocks).unwrap()
    }

    fn spaced(count: u64, bytes: u64, apart: impl Fn(u64) -> u64) -> Vec<Fragment> {
        let base = |at| (0..at).map(&apart).sum();
        (0..count).map(|at| Fragment { memory: 0, base: base(at), stride: bytes, bytes }).collect()
    }

    fn number(value: u64) -> usize {
        usize::try_from(value).unwrap()
    }

    fn whole(region: &GpuRegion, block: u32) -> Move<'_> {
        let length = u32::try_from(region.layout().block_bytes()).unwrap();
        Move { region, block, start: 0, length, staged: 4096 }
    }

    #[test]
    fn layers_of_one_allocation_are_one_rectangle() {
        let region = region(spaced(64, 32 << 10, |_| 512 << 10), 16);
        let found: Vec<_> = Rectangles::of(whole(&region, 3)).collect();
        let address = region.memories()[0].address + 3 * (32 << 10);
        let (width, pitch) = (32 << 10, 512 << 10);
        assert_eq!(found, [Rectangle { address, staged: 4096, width, pitch, rows: 64 }]);
        assert_eq!(CopyShape::of(whole(&region, 3)), CopyShape::Rectangles);
    }

    #[test]
    fn a_range_that_begins_and_ends_within_rows_keeps_its_ends_apart() {
        let region = region(spaced(8, 4096, |_| 65536), 4);
        let it = Move { start: 1024, length: 4096 * 4, ..whole(&region, 0) };
        let found: Vec<_> =
            Rectangles::of(it).map(|one| (one.staged, one.width, one.rows)).collect();
        assert_eq!(found, [(4096, 3072, 1), (4096 + 3072, 4096, 3), (4096 + 15360, 1024, 1)]);
    }

    #[test]
    fn every_byte_is_in_one_row_of_one_rectangle() {
        let layouts = [
            spaced(24, 1024, |at| 65536 + at % 3 * 4096),
            spaced(5, 512, |_| 1 << 20),
            spaced(1, 1 << 20, |_| 0),
            spaced(16, 2048, |at| if at < 8 { 32768 } else { 65536 }),
        ];
        for fragments in layouts {
            let region = region(fragments, 8);
            let it = whole(&region, 7);
            let mut rows = Vec::new();
            for one in Rectangles::of(it) {
                for row in 0..one.rows {
                    let address = one.address + (row * one.pitch) as u64;
                    rows.push((address, one.staged + row * one.width, one.width));
                }
            }
            let runs = region.layout().runs(it.block, 0, it.length);
            let base = region.memories()[0].address;
            let expected: Vec<_> = runs
                .map(|run| (base + run.offset, 4096 + number(run.at), number(run.bytes)))
                .collect();
            assert_eq!(rows, expected);
        }
    }

    #[test]
    fn uneven_layers_go_as_a_list_and_short_ones_to_a_kernel() {
        let uneven = |bytes: u64| spaced(32, bytes, move |at| 16 * bytes + at * at % 7 * 4096);
        assert_eq!(CopyShape::of(whole(&region(uneven(32 << 10), 8), 1)), CopyShape::List);
        assert_eq!(CopyShape::of(whole(&region(uneven(1024), 8), 1)), CopyShape::Scattered);
    }
}
