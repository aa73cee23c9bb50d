//! Layouts of real models pass; each mistake has its own error; the walk visits every byte once.

use proptest::prelude::*;

use crate::{Fragment, Layout, LayoutError};

/// K and V of each layer in one tensor each, as flash-attention caches are.
fn paged(layers: u16, bytes: u64, blocks: u32) -> (Vec<Fragment>, Vec<u64>) {
    let memories = vec![2 * bytes * u64::from(blocks); usize::from(layers)];
    let both = |memory| {
        [0, bytes * u64::from(blocks)].map(|base| Fragment { memory, base, stride: bytes, bytes })
    };
    ((0..layers).flat_map(both).collect(), memories)
}

#[test]
fn layouts_of_real_models_pass() {
    let (fragments, memories) = paged(32, 32 << 10, 1000);
    let layout = Layout::new(fragments, 1000, &memories).unwrap();
    assert_eq!(layout.block_bytes(), 2 << 20);
    // MLA: 61 layers of 64 tokens x 576 values x 2 bytes, one fragment each.
    let (fragment, blocks) = (73_728, 100);
    let fragments = (0..61)
        .map(|layer| Fragment {
            memory: 0,
            base: layer * fragment,
            stride: 61 * fragment,
            bytes: fragment,
        })
        .collect();
    let layout = Layout::new(fragments, blocks, &[61 * fragment * u64::from(blocks)]).unwrap();
    assert_eq!(layout.block_bytes(), 61 * fragment);
    // A hybrid group: attention fragments and one state of another size, in memories of their own.
    let mut hybrid = paged(4, 16 << 10, 10);
    hybrid.0.push(Fragment { memory: 4, base: 528, stride: 4 << 10, bytes: 1 << 10 });
    hybrid.1.push(64 << 10);
    assert!(Layout::new(hybrid.0, 10, &hybrid.1).is_ok());
    assert_eq!(Layout::contiguous(4096, 1 << 30).unwrap().block_bytes(), 1 << 30);
}

#[test]
fn each_mistake_has_its_error() {
    let good = Fragment { memory: 0, base: 0, stride: 2048, bytes: 1024 };
    let error = |fragments: Vec<Fragment>, blocks| {
        Layout::new(fragments, blocks, &[1 << 20]).unwrap_err().to_string()
    };
    assert!(error(vec![], 1).contains("1 to 1024 fragments, not 0"));
    assert!(error(vec![good], 0).contains("blocks, not 0"));
    assert!(error(vec![Fragment { base: 8, ..good }], 1).contains("base = 8"));
    assert!(error(vec![Fragment { bytes: 256, ..good }], 1).contains("at least 512"));
    assert!(error(vec![Fragment { bytes: 1032, ..good }], 1).contains("multiple of 16"));
    assert!(error(vec![Fragment { bytes: 528, ..good }], 1).contains("multiple of 512"));
    assert!(error(vec![Fragment { memory: 1, ..good }], 1).contains("memory 1, which has 0"));
    assert!(error(vec![good], 513).contains("ends at byte 1049600"));
    assert!(error(vec![Fragment { stride: u64::MAX - 15, ..good }], 3).contains("ends at byte"));
    assert!(error(vec![Fragment { stride: 512, ..good }], 2).contains("0 and 0 overlap"));
    assert!(error(vec![good, Fragment { base: 512, ..good }], 1).contains("0 and 1 overlap"));
    // The second reaches into the next block of the first.
    assert!(error(vec![good, Fragment { base: 1536, ..good }], 2).contains("0 and 1 overlap"));
    assert!(Layout::new(vec![good, Fragment { base: 1536, ..good }], 1, &[1 << 20]).is_ok());
    let other = Fragment { base: 1024, stride: 4096, ..good };
    assert!(error(vec![good, other], 8).contains("different strides"));
}

#[test]
fn block_index_and_range_are_checked() {
    let (fragments, memories) = paged(2, 1024, 8);
    let layout = Layout::new(fragments, 8, &memories).unwrap();
    assert!(layout.holds(7, 0, 4096) && layout.holds(7, 4080, 16));
    assert!(!layout.holds(8, 0, 16), "index out of range");
    assert!(!layout.holds(0, 4080, 32) && !layout.holds(0, u64::MAX - 15, 32));
    assert!(!layout.holds(0, 8, 16) && !layout.holds(0, 0, 24), "units of 16");
}

proptest! {
    /// Overlap, found by the rule and by counting bytes.
    #[test]
    fn overlap_agrees_with_counting(
        bases in prop::collection::vec(0_u64..24, 1..5),
        sizes in prop::collection::vec(1_u64..4, 5),
        strides in 1_u64..12,
        blocks in 1_u32..5,
    ) {
        let fragments: Vec<Fragment> = bases.iter().zip(sizes).map(|(base, size)| Fragment {
            memory: 0, base: base * 512, stride: strides * 512, bytes: size * 512,
        }).collect();
        let mut seen = [0_u8; 128];
        for fragment in &fragments {
            for block in 0..u64::from(blocks) {
                let first = (fragment.base + block * fragment.stride) / 512;
                for unit in first..first + fragment.bytes / 512 {
                    seen[usize::try_from(unit).unwrap()] += 1;
                }
            }
        }
        let clash = seen.iter().any(|count| *count > 1);
        let checked = Layout::new(fragments, blocks, &[128 * 512]);
        let overlap = matches!(checked, Err(LayoutError::Overlap { .. }));
        prop_assert_eq!(overlap, clash, "{:?}", checked);
    }

    /// The runs of adjacent ranges are the runs of the whole, and stay inside of the block.
    #[test]
    fn runs_visit_every_byte_in_order(
        cut in 0_u64..512,
        end in 0_u64..512,
        block in 0_u32..7,
    ) {
        let (fragments, memories) = paged(4, 1024, 7);
        let layout = Layout::new(fragments, 7, &memories).unwrap();
        let (start, end) = (cut.min(end) * 16, cut.max(end) * 16);
        let length = u32::try_from(end - start).unwrap();
        let mut at = 0;
        for run in layout.runs(block, start, length) {
            prop_assert_eq!(run.at, at);
            prop_assert!(run.bytes > 0);
            let part = usize::try_from((start + at) / 1024).unwrap();
            let fragment = layout.fragments()[part];
            prop_assert_eq!(run.memory, fragment.memory);
            let inside = (start + at) % 1024;
            prop_assert_eq!(run.offset, fragment.base + u64::from(block) * 1024 + inside);
            prop_assert!(inside + run.bytes <= 1024);
            at += run.bytes;
        }
        prop_assert_eq!(at, u64::from(length));
    }
}
