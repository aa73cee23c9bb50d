//! A paged cache in the memory of a GPU or of its stand-in: three layers with a memory each for K
//! and V, and a state of another size, at an odd offset, in a memory of its own.

use std::ops::Range;

use kvrail_client::{GpuCache, GpuMemory};
use kvrail_gpu::cuda::Cuda;
use kvrail_gpu::{DirectPath, EmulatedGpu, Fragment, Gpu, GpuError, GpuHandle, GpuUuid, OwnMemory};
use serde::{Deserialize, Serialize};

/// Bytes of one block.
pub(crate) const BLOCK_BYTES: usize = 64 << 10;

/// Layers with K and V.
const LAYERS: u16 = 3;
/// Bytes of K or V of one layer and block.
const FRAGMENT: u64 = 8 << 10;
/// Bytes of the state, the offset of the first one, and the distance of two.
const STATE: u64 = BLOCK_BYTES as u64 - 2 * LAYERS as u64 * FRAGMENT;
const STATE_BASE: u64 = 528;
const STATE_STRIDE: u64 = STATE + 48;

/// GPU of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// The stand-in in host memory: number 0.
    EmulatedGpu,
    /// The CUDA GPU of this number.
    Cuda(u32),
}

/// How memory is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Export {
    /// By descriptor.
    Descriptor,
    /// By a handle that names it.
    Legacy,
}

/// The cache.
#[derive(Debug)]
pub struct PagedCache {
    uuid: GpuUuid,
    blocks: u32,
    memories: Vec<Box<dyn OwnMemory>>,
}

/// Memory, first byte there, and the range of the block's bytes.
type Place = (usize, u64, Range<usize>);

/// Fragments of every block, in their order.
fn fragments(blocks: u32) -> Vec<Fragment> {
    let values = FRAGMENT * u64::from(blocks);
    let both = |memory| {
        [0, values].map(|base| Fragment { memory, base, stride: FRAGMENT, bytes: FRAGMENT })
    };
    let state = Fragment { memory: LAYERS, base: STATE_BASE, stride: STATE_STRIDE, bytes: STATE };
    (0..LAYERS).flat_map(both).chain([state]).collect()
}

/// Allocates memory of this number of bytes at least.
type Allocate = Box<dyn Fn(u64) -> Result<Box<dyn OwnMemory>, GpuError>>;

impl Device {
    fn open(self, export: Export) -> Result<(GpuUuid, Allocate), GpuError> {
        Ok(match self {
            Self::EmulatedGpu => {
                let gpu = EmulatedGpu::new(0, DirectPath::Compat);
                let allocate = move |bytes| match export {
                    Export::Descriptor => gpu.allocate(bytes),
                    Export::Legacy => gpu.allocate_legacy(bytes),
                };
                (EmulatedGpu::uuid(0), Box::new(allocate))
            }
            Self::Cuda(number) => {
                let gpu = Cuda::open(number)?;
                let export = match export {
                    Export::Descriptor => kvrail_gpu::cuda::ExportMethod::Vmm,
                    Export::Legacy => kvrail_gpu::cuda::ExportMethod::Legacy,
                };
                let uuid = gpu.identity().uuid;
                (uuid, Box::new(move |bytes| gpu.allocate_for(export, bytes)))
            }
        })
    }
}

impl PagedCache {
    /// A cache of this number of blocks.
    ///
    /// # Errors
    /// When there is no such GPU, or not that much memory.
    pub fn new(device: Device, blocks: u32, export: Export) -> Result<Self, GpuError> {
        let (uuid, allocate) = device.open(export)?;
        let layer = 2 * FRAGMENT * u64::from(blocks);
        let states = STATE_BASE + STATE_STRIDE * u64::from(blocks);
        let sizes = (0..LAYERS).map(|_| layer).chain([states.next_multiple_of(4096)]);
        Ok(Self { uuid, blocks, memories: sizes.map(allocate).collect::<Result<_, _>>()? })
    }

    /// The description that a client attaches the cache with.
    ///
    /// # Errors
    /// When memory cannot be exported.
    pub fn described(&self) -> Result<GpuCache, GpuError> {
        let mut cache = GpuCache::new(self.uuid.to_string(), self.blocks);
        for memory in &self.memories {
            cache = cache.memory(match memory.export()? {
                GpuHandle::Vmm { fd, bytes } => GpuMemory::Descriptor { fd, bytes },
                GpuHandle::LegacyIpc { handle, offset, bytes } => {
                    GpuMemory::Legacy { handle, offset, bytes }
                }
            });
        }
        Ok(fragments(self.blocks).into_iter().fold(cache, GpuCache::fragment))
    }

    /// Where the fragments of a block are.
    fn places(&self, block: u32) -> impl Iterator<Item = Place> + use<> {
        let mut at = 0;
        fragments(self.blocks).into_iter().map(move |fragment| {
            let own = at..at + usize::try_from(fragment.bytes).expect("small");
            at = own.end;
            (usize::from(fragment.memory), fragment.base + u64::from(block) * fragment.stride, own)
        })
    }

    /// Fills a block.
    ///
    /// # Panics
    /// If these are not the bytes of one block.
    pub fn store(&mut self, block: u32, bytes: &[u8]) {
        assert_eq!(bytes.len(), BLOCK_BYTES);
        for (memory, at, own) in self.places(block) {
            self.memories[memory].write(at, &bytes[own]).expect("our own memory");
        }
    }

    /// The bytes of a block.
    ///
    /// # Panics
    /// If there is no such block.
    #[must_use]
    pub fn load(&self, block: u32) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        for (memory, at, own) in self.places(block) {
            self.memories[memory].read(at, &mut bytes[own]).expect("our own memory");
        }
        bytes
    }
}
