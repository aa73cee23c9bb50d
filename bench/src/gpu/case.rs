//! Cases: what is moved, and how it lies in GPU memory.

use kvrail_gpu::Fragment;
use kvrail_units::Size;

use crate::plan::Op;

/// KV blocks in GPU memory.
pub(super) const KV_BLOCKS: u32 = 64;

/// Bytes of a stripe of the volume: the largest block.
pub(super) const STRIPE_BYTES: u64 = 2 << 20;

/// Fragments of a paged block: K and V of 32 layers.
const FRAGMENTS: u16 = 64;

/// Which way blocks go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// File to GPU.
    Read,
    /// GPU to file.
    Write,
}

/// How a block lies in GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// In one piece.
    Contiguous,
    /// In 64 fragments of one tensor, at one distance.
    Paged,
    /// In 64 fragments of 32 tensors, K and V of a layer in each.
    Layers,
}

impl Shape {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Paged => "paged",
            Self::Layers => "layers",
        }
    }

    pub(super) const fn fragments(self) -> u16 {
        match self {
            Self::Contiguous => 1,
            Self::Paged | Self::Layers => FRAGMENTS,
        }
    }
}

/// What takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Everything between a file and the GPU, and the same without a device.
    Volume,
    /// One copy after the other, without pollers.
    Copies,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) way: Way,
    pub(super) block_bytes: u32,
    pub(super) shape: Shape,
    pub(super) depth: u32,
    pub(super) field: Field,
}

/// All cases.
pub(super) const CASES: [Case; 9] = [
    Case { depth: 1, ..volume(Way::Read, 4 << 10, Shape::Contiguous) },
    volume(Way::Read, 1 << 20, Shape::Contiguous),
    volume(Way::Read, 2 << 20, Shape::Contiguous),
    volume(Way::Read, 2 << 20, Shape::Paged),
    volume(Way::Read, 2 << 20, Shape::Layers),
    volume(Way::Write, 1 << 20, Shape::Contiguous),
    volume(Way::Write, 2 << 20, Shape::Layers),
    Case { depth: 1, field: Field::Copies, ..volume(Way::Write, 2 << 20, Shape::Paged) },
    Case { depth: 1, field: Field::Copies, ..volume(Way::Write, 2 << 20, Shape::Layers) },
];

const fn volume(way: Way, block_bytes: u32, shape: Shape) -> Case {
    Case { way, block_bytes, shape, depth: 16, field: Field::Volume }
}

impl Case {
    pub(super) const fn op(&self) -> Op {
        match self.way {
            Way::Read => Op::Read,
            Way::Write => Op::Write,
        }
    }

    /// In words.
    pub(super) fn name(&self) -> String {
        let (size, shape) = (Size::new(self.block_bytes.into()), self.shape.name());
        let what = match self.field {
            Field::Volume => self.op().name(),
            Field::Copies => "copy out",
        };
        format!("{what} {size} {shape} d{}", self.depth)
    }

    /// Bytes of each memory that the cache lies in.
    pub(super) fn memories(&self) -> Vec<u64> {
        let whole = u64::from(self.block_bytes) * u64::from(KV_BLOCKS);
        match self.shape {
            Shape::Contiguous | Shape::Paged => vec![whole],
            Shape::Layers => vec![whole / u64::from(FRAGMENTS / 2); usize::from(FRAGMENTS / 2)],
        }
    }

    /// The layout: fragment after fragment, each with all blocks one behind the other.
    pub(super) fn layout(&self) -> Vec<Fragment> {
        let bytes = u64::from(self.block_bytes) / u64::from(self.shape.fragments());
        let whole = bytes * u64::from(KV_BLOCKS);
        let fragment = |index: u16| {
            let (memory, at) = match self.shape {
                Shape::Contiguous | Shape::Paged => (0, index),
                Shape::Layers => (index / 2, index % 2),
            };
            Fragment { memory, base: u64::from(at) * whole, stride: bytes, bytes }
        };
        (0..self.shape.fragments()).map(fragment).collect()
    }

    /// The volume block that is moved as the `number`th: one in each stripe, then the next one in
    /// each, so that all members of the volume have work at any depth.
    pub(super) fn volume_block(&self, number: u64, volume_bytes: u64) -> u64 {
        let stripe_bytes = STRIPE_BYTES.min(volume_bytes);
        let (stripes, blocks) =
            (volume_bytes / stripe_bytes, stripe_bytes / u64::from(self.block_bytes));
        number % stripes * blocks + number / stripes % blocks
    }
}

#[cfg(test)]
mod tests {
    use kvrail_gpu::Layout;

    use super::{CASES, KV_BLOCKS, STRIPE_BYTES};

    #[test]
    fn every_volume_block_has_its_turn_and_neighbours_are_on_different_stripes() {
        for case in CASES {
            let (volume, block) = (5 * STRIPE_BYTES, u64::from(case.block_bytes));
            let mut order: Vec<_> =
                (0..volume / block).map(|number| case.volume_block(number, volume)).collect();
            assert!(order[..5].is_sorted_by_key(|at| at * block / STRIPE_BYTES));
            assert_eq!(order[1] * block / STRIPE_BYTES, 1);
            order.sort_unstable();
            assert!(order.into_iter().eq(0..volume / block), "{}", case.name());
        }
    }

    #[test]
    fn every_layout_is_one_and_holds_whole_blocks() {
        for case in CASES {
            let layout = Layout::new(case.layout(), KV_BLOCKS, &case.memories());
            let layout = layout.unwrap_or_else(|error| panic!("{}: {error}", case.name()));
            assert_eq!(layout.block_bytes(), u64::from(case.block_bytes), "{}", case.name());
        }
    }
}
