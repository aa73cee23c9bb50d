//! Foreign formats on a device: a table of well-known magic numbers.
//!
//! Places and values are those of util-linux's libblkid probes and of each format's own header
//! files. The table names what it sees; bytes it does not know are refused all the same.

use std::fmt;

use serde::Serialize;

/// Bytes read from the beginning of a member: the label's MiB, and the block behind it, where VMFS
/// has its only mark.
pub(crate) const HEAD_BYTES: usize = (1 << 20) + 4096;

/// Bytes read from the end of a member: md 0.90 lies up to 128 KiB from the end, everything else
/// nearer.
pub(crate) const TAIL_BYTES: usize = 128 << 10;

/// Something known that is not ours, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Signature(&'static str);

impl Signature {
    pub(crate) const fn named(name: &'static str) -> Self {
        Self(name)
    }

    /// Its name, e.g. `an xfs file system`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Where a magic number may stand: `first`, and then every `step` bytes, `count` places in all.
struct MagicPlaces {
    name: &'static str,
    magic: &'static [u8],
    first: usize,
    step: usize,
    count: usize,
}

const fn once(name: &'static str, first: usize, magic: &'static [u8]) -> MagicPlaces {
    MagicPlaces { name, magic, first, step: 0, count: 1 }
}

const fn every(
    name: &'static str,
    places: (usize, usize, usize),
    magic: &'static [u8],
) -> MagicPlaces {
    MagicPlaces { name, magic, first: places.0, step: places.1, count: places.2 }
}

const EXT: &str = "an ext2/3/4 file system";
const SWAP: &str = "swap space";
const FAT: &str = "a FAT file system";
const MD: &str = "a member of an md RAID array";
const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
const MD_MAGIC_BE: [u8; 4] = 0xa92b_4efc_u32.to_be_bytes();
const GPT: &str = "a GPT partition table";
const ZFS: &str = "a ZFS pool member";
const BTRFS: &str = "a btrfs file system";
const REISER: &str = "a ReiserFS file system";
const DDF: &str = "a member of a DDF RAID array";
const IMSM: &str = "a member of an Intel RAID array";

/// Marks at the beginning, strong ones (long magic numbers) before weak ones.
#[rustfmt::skip]
const HEAD: &[MagicPlaces] = &[
    once("LUKS encryption", 0, b"LUKS\xba\xbe"),
    every("LUKS encryption", (0x4000, 0x4000, 64), b"SKUL\xba\xbe"),
    every("an LVM physical volume", (24, 512, 4), b"LVM2 001"),
    once("a Ceph BlueStore device", 0, b"bluestore block device"),
    once("an SPDK blobstore", 0, b"SPDKBLOB"),
    once("a VDO device", 0, b"dmvdo001"),
    once("a dm-integrity device", 0, b"integrt\0"),
    once("a dm-verity device", 0, b"verity\0\0"),
    every("a Stratis pool member", (516, 4096, 2), b"!Stra0tis\x86\xff\x02^\x41rh"),
    once("a bcache device", 4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    once("a bcachefs file system", 4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"),
    once(BTRFS, 0x1_0040, b"_BHRfS_M"),
    once("an xfs file system", 0, b"XFSB"),
    once("a squashfs file system", 0, b"hsqs"),
    once("a squashfs file system", 0, b"sqsh"),
    every(SWAP, (4086, 4096, 16), b"SWAPSPACE2"),
    every(SWAP, (4086, 4096, 16), b"SWAP-SPACE"),
    once("an NTFS file system", 3, b"NTFS    "),
    once("an exFAT file system", 3, b"EXFAT   "),
    once("BitLocker encryption", 3, b"-FVE-FS-"),
    once(FAT, 0x52, b"FAT32   "),
    once(FAT, 0x36, b"FAT16   "),
    once(FAT, 0x36, b"FAT12   "),
    once("an APFS container", 32, b"NXSB"),
    once("an ISO 9660 file system", 0x8001, b"CD001"),
    once("a UDF file system", 0x8001, b"BEA01"),
    once(REISER, 0x1_0034, b"ReIsEr"),
    once(REISER, 0x2034, b"ReIsEr"),
    once("a JFS file system", 0x8000, b"JFS1"),
    once("an f2fs file system", 0x400, b"\x10\x20\xf5\xf2"),
    once("an EROFS file system", 0x400, b"\xe2\xe1\xf5\xe0"),
    once("a cramfs file system", 0, b"\x45\x3d\xcd\x28"),
    once("a romfs file system", 0, b"-rom1fs-"),
    once("a GFS2 file system", 0x1_0000, b"\x01\x16\x19\x70"),
    every("an OCFS2 file system", (0x400, 0x400, 8), b"OCFSV2"),
    once("a zonefs file system", 0, b"SFOZ"),
    once("a VMFS volume", 1 << 20, b"\x0d\xd0\x01\xc0"),
    once(MD, 0, &MD_MAGIC),
    once(MD, 4096, &MD_MAGIC),
    every(ZFS, (128 << 10, 1024, 128), b"\x0c\xb1\xba\x00\0\0\0\0"),
    every(ZFS, (128 << 10, 1024, 128), b"\0\0\0\0\x00\xba\xb1\x0c"),
    once(GPT, 512, b"EFI PART"),
    once(GPT, 4096, b"EFI PART"),
    once("an Apple partition map", 512, b"PM\0\0"),
    once("a BSD disklabel", 512, b"\x57\x45\x56\x82"),
    once("a qcow2 disk image", 0, b"QFI\xfb"),
    once("a VMDK disk image", 0, b"KDMV"),
    once("a VHDX disk image", 0, b"vhdxfile"),
    once(EXT, 0x438, b"\x53\xef"),
    once("a NILFS2 file system", 0x406, b"\x34\x34"),
    once("an HFS file system", 0x400, b"H+\0"),
    once("an HFS file system", 0x400, b"HX\0"),
    once("a partition table (MBR) or boot sector", 510, b"\x55\xaa"),
];

/// The format of a member's beginning (`head`, up to `HEAD_BYTES`) and end (`tail`, the last bytes
/// of a device of `device_bytes` bytes).
pub(crate) fn identify(head: &[u8], tail: &[u8], device_bytes: u64) -> Option<Signature> {
    let at_head = HEAD.iter().find(|mark| mark.stands_in(head)).map(|mark| Signature(mark.name));
    at_head.or_else(|| identify_tail(tail, device_bytes))
}

impl MagicPlaces {
    fn stands_in(&self, bytes: &[u8]) -> bool {
        let mut places = (0..self.count).map(|place| self.first + place * self.step);
        places.any(|at| bytes.get(at..).is_some_and(|rest| rest.starts_with(self.magic)))
    }
}

fn identify_tail(tail: &[u8], device_bytes: u64) -> Option<Signature> {
    let length = tail.len() as u64;
    let stands = |at: Option<u64>, magic: &[u8]| {
        // Places are counted on the device; the tail ends where the device ends.
        let inside = at.and_then(|at| (at + length).checked_sub(device_bytes));
        let inside = inside.and_then(|inside| usize::try_from(inside).ok());
        inside.and_then(|inside| tail.get(inside..)).is_some_and(|rest| rest.starts_with(magic))
    };
    let from_end = |bytes: u64| device_bytes.checked_sub(bytes);
    // md 1.0: 8 to 12 KiB from the end, at a multiple of 4 KiB. md 0.90: the last 64 KiB-aligned
    // 64 KiB that are followed by nothing else, in the byte order of its machine.
    let md_10 = from_end(8 << 10).map(|at| at & !4095);
    let md_090 = from_end(64 << 10).map(|at| at & !0xffff);
    let found = [
        (md_10, &MD_MAGIC[..], MD),
        (md_090, &MD_MAGIC[..], MD),
        (md_090, &MD_MAGIC_BE[..], MD),
        (from_end(512), b"EFI PART", GPT),
        (from_end(4096), b"EFI PART", GPT),
        (from_end(512), b"\xde\x11\xde\x11", DDF),
        (from_end(1024), b"Intel Raid ISM Cfg Sig. ", IMSM),
    ];
    let hit = found.into_iter().find(|(at, magic, _)| stands(*at, magic));
    hit.map(|(_, _, name)| Signature(name))
}

#[cfg(test)]
mod tests {
    use super::{HEAD, HEAD_BYTES, TAIL_BYTES, identify};

    /// Every mark at every one of its places is seen, and what it is called is at least as strong
    /// as the mark that was put there (an earlier one may share the place by design: none does).
    #[test]
    fn every_mark_is_seen_at_each_of_its_places() {
        let tail = vec![0; TAIL_BYTES];
        for mark in HEAD {
            for place in 0..mark.count {
                let mut head = vec![0; HEAD_BYTES];
                let at = mark.first + place * mark.step;
                head[at..at + mark.magic.len()].copy_from_slice(mark.magic);
                let seen = identify(&head, &tail, 1 << 30).map(super::Signature::name);
                assert_eq!(seen, Some(mark.name), "at {at:#x}");
            }
        }
    }

    #[test]
    fn marks_at_the_end_are_seen_on_devices_of_any_size() {
        let md = &super::MD_MAGIC[..];
        for device_bytes in [1_u64 << 30, (1 << 30) + 512, (1 << 30) + 3 * 4096] {
            let marks = [
                ((device_bytes - (8 << 10)) & !4095, md, "md RAID"),
                ((device_bytes & !0xffff) - (64 << 10), md, "md RAID"),
                (device_bytes - 512, b"EFI PART", "GPT"),
                (device_bytes - 512, b"\xde\x11\xde\x11", "DDF"),
                (device_bytes - 1024, b"Intel Raid ISM Cfg Sig. ", "Intel"),
            ];
            for (at, magic, name) in marks {
                let mut tail = vec![0; TAIL_BYTES];
                let inside = usize::try_from(at + TAIL_BYTES as u64 - device_bytes).unwrap();
                tail[inside..inside + magic.len()].copy_from_slice(magic);
                let seen = identify(&[], &tail, device_bytes).map(super::Signature::name);
                let expected = seen.is_some_and(|seen| seen.contains(name));
                assert!(expected, "{name} at {at} of {device_bytes}: {seen:?}");
            }
        }
    }

    #[test]
    fn zeros_and_short_files_are_nothing() {
        assert_eq!(identify(&vec![0; HEAD_BYTES], &vec![0; TAIL_BYTES], 1 << 30), None);
        for short in [0, 1, 511, 4095] {
            assert_eq!(identify(&vec![0; short], &vec![0; short], short as u64), None);
        }
    }

    /// At least the 25 kinds of content that the fault list requires.
    #[test]
    fn the_table_knows_many_kinds() {
        let names: std::collections::BTreeSet<_> = HEAD.iter().map(|mark| mark.name).collect();
        assert!(names.len() >= 25, "{}", names.len());
    }
}
