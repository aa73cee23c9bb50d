//! Where formats keep copies of their first blocks: a table of known places.
//!
//! Tools that make a drive blank often zero its first MiB only. Places and values are those of each
//! format's own header files.

use crate::label::LABEL_BYTES;
use crate::signature::Signature;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// AG superblocks that are looked for at most: a file system has more on large drives only.
const GROUPS_MAX: u64 = 128;

/// Something known beyond the first MiB.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    name: &'static str,
    pub(crate) magic: &'static [u8],
    /// First bytes of the magic number on a member of the given size.
    places: fn(u64) -> Vec<u64>,
}

impl Mark {
    pub(crate) fn signature(&self) -> Signature {
        Signature::named(self.name)
    }
}

#[rustfmt::skip]
const MARKS: &[Mark] = &[
    Mark { name: "a copy of an ext2/3/4 superblock", magic: b"\x53\xef", places: ext },
    Mark { name: "a copy of an xfs superblock", magic: b"XFSB", places: xfs },
    Mark { name: "a copy of a btrfs superblock", magic: b"_BHRfS_M",
        places: |_| vec![64 * MIB + 0x40, 256 * GIB + 0x40] },
    Mark { name: "a label of a ZFS pool member", magic: b"\x0c\xb1\xba\x00\0\0\0\0", places: zfs },
    Mark { name: "a label of a ZFS pool member", magic: b"\0\0\0\0\x00\xba\xb1\x0c", places: zfs },
    Mark { name: "DRBD metadata", magic: b"\x83\x74\x02\x6b", places: drbd },
    Mark { name: "DRBD metadata", magic: b"\x83\x74\x02\x6c", places: drbd },
    Mark { name: "DRBD metadata", magic: b"\x83\x74\x02\x6d", places: drbd },
    Mark { name: "a second LUKS2 header", magic: b"SKUL\xba\xbe",
        places: |_| vec![2 * MIB, 4 * MIB] },
    Mark { name: "a label of a Ceph BlueStore device", magic: b"bluestore block device",
        places: |_| vec![GIB, 10 * GIB, 100 * GIB, 1000 * GIB] },
    Mark { name: "a copy of an OCFS2 superblock", magic: b"OCFSV2",
        places: |_| (0..6).map(|power| GIB << (2 * power)).collect() },
    Mark { name: "a copy of a NILFS2 superblock", magic: b"\x34\x34",
        places: |bytes| last(bytes, 4 * KIB).map(|at| at + 6).collect() },
    Mark { name: "a copy of an NTFS boot sector", magic: b"NTFS    ",
        places: |bytes| last(bytes, 512).map(|at| at + 3).collect() },
    Mark { name: "a copy of an HFS volume header", magic: b"H+\0",
        places: |bytes| bytes.checked_sub(KIB).into_iter().collect() },
];

/// Places of possible remains on a member of `bytes` bytes behind its first MiB.
pub(crate) fn places(bytes: u64) -> Vec<(u64, Mark)> {
    let of = |mark: &Mark| -> Vec<_> {
        let inside = |&at: &u64| at >= LABEL_BYTES && at + mark.magic.len() as u64 <= bytes;
        (mark.places)(bytes).into_iter().filter(inside).map(|at| (at, *mark)).collect()
    };
    let mut all: Vec<_> = MARKS.iter().flat_map(of).collect();
    all.sort_by_key(|(at, _)| *at);
    all
}

/// The last whole block.
fn last(bytes: u64, block: u64) -> impl Iterator<Item = u64> {
    (bytes / block * block).checked_sub(block).into_iter()
}

/// Copies lie at the beginning of groups 1 and powers of 3, 5 and 7; a group has as many blocks as
/// a block has bits.
fn ext(_: u64) -> Vec<u64> {
    let blocks = [KIB, 2 * KIB, 4 * KIB, 64 * KIB];
    let places = |block: u64| {
        let groups = [1, 3, 5, 7, 9, 25, 27, 49];
        // Of the smallest blocks the first holds the boot sector.
        let shift = if block == KIB { KIB } else { 0 };
        groups.map(|group| group * 8 * block * block + shift + 0x38)
    };
    blocks.into_iter().flat_map(places).collect()
}

/// Allocation groups: a power of two of them, or the largest there can be. Blocks of 4 KiB.
fn xfs(bytes: u64) -> Vec<u64> {
    let blocks = bytes / (4 * KIB);
    let mut sizes: Vec<u64> = (1..=5).map(|power| blocks.div_ceil(1 << power)).collect();
    sizes.push((1 << 28) - 1);
    sizes.retain(|&size| size > 0);
    let places = |size: u64| (1..GROUPS_MAX.min(blocks / size + 1)).map(move |at| at * size);
    let mut all: Vec<u64> = sizes.into_iter().flat_map(places).map(|at| at * 4 * KIB).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The rings of uberblocks of the two labels at the end.
fn zfs(bytes: u64) -> Vec<u64> {
    let end = bytes / (256 * KIB) * (256 * KIB);
    let labels = [512 * KIB, 256 * KIB].into_iter().filter_map(|back| end.checked_sub(back));
    labels.flat_map(|label| (0..128).map(move |slot| label + 128 * KIB + slot * KIB)).collect()
}

fn drbd(bytes: u64) -> Vec<u64> {
    last(bytes, 4 * KIB).map(|at| at + 60).collect()
}

#[cfg(test)]
mod tests {
    use super::{GIB, KIB, MIB, places};

    #[test]
    fn places_are_few_inside_and_where_the_formats_say() {
        for bytes in [0, 1, MIB, MIB + 1, 300 * MIB + 512, 8 * 1024 * GIB, u64::MAX >> 1] {
            let all = places(bytes);
            assert!(all.len() < 1500, "{} places in {bytes}", all.len());
            let inside = all.iter().all(|(at, mark)| at + mark.magic.len() as u64 <= bytes);
            assert!(inside, "{bytes}");
        }
        let at: Vec<u64> = places(1024 * GIB).into_iter().map(|(at, _)| at).collect();
        let known = [
            8193 * KIB + 0x38,         // ext4, blocks of 1 KiB
            32_768 * 4 * KIB + 0x38,   // ext4, blocks of 4 KiB
            1024 * GIB / 4,            // xfs, four groups
            64 * MIB + 0x40,           // btrfs
            256 * GIB + 0x40,          // btrfs
            1024 * GIB - 4 * KIB + 60, // DRBD
            1024 * GIB - 384 * KIB,    // ZFS
            1024 * GIB - 128 * KIB,    // ZFS
            4 * MIB,                   // LUKS2
        ];
        assert!(known.iter().all(|known| at.contains(known)), "{at:?}");
    }
}
