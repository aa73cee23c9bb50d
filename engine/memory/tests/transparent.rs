//! Regions whose ordinary pages the kernel gathers into pages of 2 MiB.
#![cfg(not(miri))] // system calls

use std::fs;

use kvrail_memory::{MemoryError, PageSize, REQUIRED_SEALS, Region, load, store};
use rustix::fs::fcntl_get_seals;
use rustix::io::Errno;

const MIB_2: usize = 2 << 20;

/// Bytes of this process's mappings of the file that one entry for each 2 MiB maps.
fn mapped_whole(name: &str) -> usize {
    let all = fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = all.split_inclusive("VmFlags").filter(|one| one.contains(&format!("/memfd:{name}")));
    let lines = ours.flat_map(str::lines).filter_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let kib = lines.map(|line| line.trim().trim_end_matches(" kB").parse::<usize>().unwrap());
    kib.sum::<usize>() << 10
}

/// Such a region, or why there is none here.
fn region(name: &str, bytes: usize) -> Option<Region> {
    match Region::create(name, bytes, PageSize::Transparent2MiB) {
        Ok(region) => Some(region),
        Err(why @ MemoryError::NoPages { errno: Errno::INVAL, .. }) => {
            println!("skipped: this kernel gathers no pages ({why})");
            None
        }
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn every_page_is_one_piece_zeroed_sealed_and_the_same_for_a_peer() {
    let Some(made) = region("whole", 5 * MIB_2 + 1) else { return };
    assert_eq!((made.bytes(), made.page()), (6 * MIB_2, PageSize::Transparent2MiB));
    assert!(made.address().is_multiple_of(MIB_2));
    assert_eq!(fcntl_get_seals(made.fd()).unwrap(), REQUIRED_SEALS);
    assert_eq!(mapped_whole("whole"), 6 * MIB_2);
    let fd = made.fd().try_clone_to_owned().unwrap();
    let imported = Region::import(fd, made.bytes() as u64).unwrap();
    assert_eq!(mapped_whole("whole"), 12 * MIB_2, "both mappings");
    let mut seen = vec![1; made.bytes()];
    load(&imported, 0, &mut seen);
    assert!(seen.iter().all(|byte| *byte == 0));
    store(&made, MIB_2 - 3, b"across");
    let mut seen = [0; 6];
    load(&imported, MIB_2 - 3, &mut seen);
    assert_eq!(&seen, b"across");
}

#[test]
fn more_than_one_call_gathers_is_gathered_too() {
    let Some(made) = region("long", 65 * MIB_2) else { return };
    assert_eq!(mapped_whole("long"), made.bytes());
}

#[test]
fn more_than_there_is_names_the_remedy() {
    let free = usize::try_from(PageSize::Transparent2MiB.free_pages()).unwrap();
    let refused = Region::create("all", (free + 1) * MIB_2, PageSize::Transparent2MiB);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("transparent 2MiB pages") && text.contains("ask for less"), "{text}");
}
