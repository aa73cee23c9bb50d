//! Whether two devices are one: bytes written through the one are on both.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// A page-aligned buffer of 256 KiB, as O_DIRECT requires.
struct Aligned(Vec<u8>, usize);

const LENGTH: usize = 256 << 10;

/// Behind the label's place, so that the next plan finds the device blank.
const AT: u64 = 2 << 20;

impl Aligned {
    fn new() -> Self {
        let bytes = vec![0; LENGTH + 4096];
        let skip = bytes.as_ptr().align_offset(4096);
        Self(bytes, skip)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + LENGTH]
    }
}

/// Writes noise through one device and reads it back through both, past every cache; then the same
/// the other way round.
pub(crate) fn same_both_ways(one: &Path, other: &Path) {
    for through in [one, other] {
        let mut noise = Aligned::new();
        fastrand::fill(noise.bytes());
        direct(through).write_all_at(noise.bytes(), AT).expect("it takes a write");
        for path in [one, other] {
            let mut back = Aligned::new();
            direct(path).read_exact_at(back.bytes(), AT).expect("it can be read");
            let same = back.bytes() == noise.bytes();
            assert!(same, "through {}, other bytes in {}", through.display(), path.display());
        }
    }
}

fn direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    file.unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}
