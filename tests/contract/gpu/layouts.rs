//! Layouts of real models, small enough for a test.

use kvrail_gpu::Fragment;

/// A layout: fragments, blocks, and the bytes of each memory.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) fragments: Vec<Fragment>,
    pub(crate) blocks: u32,
    pub(crate) memories: Vec<u64>,
}

/// K and V of each layer one after the other in a tensor of the layer.
fn split(name: &'static str, layers: u16, bytes: u64, blocks: u32) -> Plan {
    let half = bytes * u64::from(blocks);
    let both = |memory| [0, half].map(|base| Fragment { memory, base, stride: bytes, bytes });
    let fragments = (0..layers).flat_map(both).collect();
    Plan { name, fragments, blocks, memories: vec![2 * half; usize::from(layers)] }
}

/// Fragments of many sizes, block after block in one memory.
fn packed(name: &'static str, sizes: &[u64], blocks: u32) -> Plan {
    let stride: u64 = sizes.iter().sum();
    let mut base = 0;
    let mut fragments = Vec::new();
    for bytes in sizes {
        fragments.push(Fragment { memory: 0, base, stride, bytes: *bytes });
        base += bytes;
    }
    Plan { name, fragments, blocks, memories: vec![stride * u64::from(blocks)] }
}

/// All layouts.
pub(crate) fn plans() -> Vec<Plan> {
    let mut hybrid = split("attention with a state of another size", 3, 12_288, 9);
    let state = Fragment { memory: 3, base: 4096, stride: 6144, bytes: 5120 };
    hybrid.fragments.insert(2, state);
    hybrid.memories.push(4096 + 9 * 6144);
    vec![
        split("32 layers, K and V of 8 KiB", 32, 8 << 10, 6),
        split("4 layers, K and V of 128 KiB", 4, 128 << 10, 4),
        packed("MLA, 61 layers of 1,152 x 8 bytes", &[9216; 61], 5),
        packed("smallest fragments, odd sizes", &[512, 528, 1008, 1024, 512, 512], 33),
        packed("one fragment", &[1 << 20], 5),
        hybrid,
    ]
}
