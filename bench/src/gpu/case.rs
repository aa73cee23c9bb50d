//! Cases: what is moved, and how it lies in GPU memory.

use kvrail_gpu::Fragment;
use kvrail_units::Size;

use crate::harness::STRIPE_BYTES;
use crate::plan::{CaseInfo, Op, Pace};
use crate::port::Direction;

/// KV blocks in GPU memory.
pub(super) const KV_BLOCKS: u32 = 64;

/// Fragments of a paged block: K and V of 32 layers.
const FRAGMENTS: u16 = 64;

/// How a block lies in GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockShape {
    /// In one piece.
    Contiguous,
    /// In 64 fragments of one tensor, at one distance.
    Paged,
    /// In 64 fragments of 32 tensors, K and V of a layer in each.
    Layers,
}

impl BlockShape {
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

/// The arms of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// Everything between a file and the GPU, and the same without a device.
    Volume,
    /// One copy after the other, without pollers.
    Copies,
}

/// One case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuCase {
    pub(super) direction: Direction,
    pub(super) block_bytes: u32,
    pub(super) shape: BlockShape,
    pub(super) depth: u32,
    pub(super) field: Field,
}

/// All cases.
pub(super) const CASES: [GpuCase; 9] = [
    SMALL,
    ONE,
    TWO,
    PAGED,
    LAYERS,
    volume(Direction::Write, 1 << 20, BlockShape::Contiguous),
    volume(Direction::Write, 2 << 20, BlockShape::Layers),
    COPIED,
    GpuCase { shape: BlockShape::Layers, ..COPIED },
];

/// The cases of the aims.
pub(super) const SMALL: GpuCase =
    GpuCase { depth: 1, ..volume(Direction::Read, 4 << 10, BlockShape::Contiguous) };
pub(super) const ONE: GpuCase = volume(Direction::Read, 1 << 20, BlockShape::Contiguous);
pub(super) const TWO: GpuCase = volume(Direction::Read, 2 << 20, BlockShape::Contiguous);
pub(super) const PAGED: GpuCase = volume(Direction::Read, 2 << 20, BlockShape::Paged);
pub(super) const LAYERS: GpuCase = volume(Direction::Read, 2 << 20, BlockShape::Layers);
pub(super) const COPIED: GpuCase = GpuCase {
    depth: 1,
    field: Field::Copies,
    ..volume(Direction::Write, 2 << 20, BlockShape::Paged)
};

const fn volume(direction: Direction, block_bytes: u32, shape: BlockShape) -> GpuCase {
    GpuCase { direction, block_bytes, shape, depth: 16, field: Field::Volume }
}

impl GpuCase {
    pub(super) const fn op(&self) -> Op {
        match self.direction {
            Direction::Read => Op::Read,
            Direction::Write => Op::Write,
        }
    }

    /// As a report names it.
    pub(super) fn info(&self) -> CaseInfo {
        let (size, layout) = (Size::new(self.block_bytes.into()), self.shape.name());
        let op = match self.field {
            Field::Volume => self.op().name(),
            Field::Copies => "copy out",
        };
        CaseInfo {
            name: format!("{op} {size} {layout} d{}", self.depth),
            op: op.to_owned(),
            block_bytes: self.block_bytes,
            depth: self.depth,
            clients: 1,
            pace: Pace::Closed.name().to_owned(),
            layout: Some(layout.to_owned()),
            fragments: Some(self.shape.fragments()),
            keys: None,
        }
    }

    /// Bytes of each memory that the cache lies in.
    pub(super) fn memories(&self) -> Vec<u64> {
        let whole = u64::from(self.block_bytes) * u64::from(KV_BLOCKS);
        match self.shape {
            BlockShape::Contiguous | BlockShape::Paged => vec![whole],
            BlockShape::Layers => {
                vec![whole / u64::from(FRAGMENTS / 2); usize::from(FRAGMENTS / 2)]
            }
        }
    }

    /// The layout: fragment after fragment, each with all blocks one behind the other.
    pub(super) fn layout(&self) -> Vec<Fragment> {
        let bytes = u64::from(self.block_bytes) / u64::from(self.shape.fragments());
        let whole = bytes * u64::from(KV_BLOCKS);
        let fragment = |index: u16| {
            let (memory, at) = match self.shape {
                BlockShape::Contiguous | BlockShape::Paged => (0, index),
                BlockShape::Layers => (index / 2, index % 2),
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

    use super::{CASES, KV_BLOCKS};
    use crate::harness::STRIPE_BYTES;

    #[test]
    fn every_volume_block_has_its_turn_and_neighbours_are_on_different_stripes() {
        for case in CASES {
            let (volume, block) = (5 * STRIPE_BYTES, u64::from(case.block_bytes));
            let mut order: Vec<_> =
                (0..volume / block).map(|number| case.volume_block(number, volume)).collect();
            assert!(order[..5].is_sorted_by_key(|at| at * block / STRIPE_BYTES));
            assert_eq!(order[1] * block / STRIPE_BYTES, 1);
            order.sort_unstable();
            assert!(order.into_iter().eq(0..volume / block), "{}", case.info().name);
        }
    }

    #[test]
    fn every_layout_is_one_and_holds_whole_blocks() {
        for case in CASES {
            let layout = Layout::new(case.layout(), KV_BLOCKS, &case.memories());
            let layout = layout.unwrap_or_else(|error| panic!("{}: {error}", case.info().name));
            assert_eq!(layout.block_bytes(), u64::from(case.block_bytes), "{}", case.info().name);
        }
    }
}
