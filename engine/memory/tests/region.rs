//! Regions of ordinary pages: what is made, and what is refused from a peer.
#![cfg(not(miri))] // system calls

use std::fs::File;
use std::os::fd::OwnedFd;

use kvrail_memory::{MemoryError, PageSize, Pinned, REQUIRED_SEALS, Region, Sealing, load, store};
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fcntl_get_seals, ftruncate, memfd_create, open,
};
use rustix::io::Errno;

/// A memfd as a well-behaved peer makes it, up to the seals.
fn memfd(bytes: u64) -> OwnedFd {
    let fd = memfd_create("peer", MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes).unwrap();
    if bytes > 0 {
        fallocate(&fd, FallocateFlags::empty(), 0, bytes).unwrap();
    }
    fd
}

fn refusal(fd: OwnedFd, bytes: u64) -> MemoryError {
    Region::import(fd, bytes).expect_err("a hostile descriptor must be refused")
}

#[test]
fn a_region_is_whole_pages_zeroed_sealed_and_aligned() {
    let region = Region::create("made", 5000, PageSize::Base).unwrap();
    assert_eq!((region.bytes(), region.page()), (8192, PageSize::Base));
    assert!(region.address().is_multiple_of(4096));
    assert_eq!(fcntl_get_seals(region.fd()).unwrap(), REQUIRED_SEALS);
    assert_eq!(ftruncate(region.fd(), 4096), Err(Errno::PERM), "sealed against shrinking");
    assert_eq!(ftruncate(region.fd(), 16384), Err(Errno::PERM), "sealed against growing");
    let mut bytes = vec![1; 8192];
    load(&region, 0, &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn files_in_memory_without_seals_are_taken_where_they_may_be() {
    let unsealed = memfd(8192);
    let copy = || unsealed.try_clone().unwrap();
    assert!(matches!(refusal(copy(), 8192), MemoryError::Unsealed { .. }));
    let region = Region::import_with(copy(), 8192, Sealing::Optional).unwrap();
    ftruncate(&unsealed, 0).unwrap();
    let gone = region.read_at(0, &mut [0; 16]);
    assert_eq!(gone, Err(Errno::IO), "an error where a load would fault");
    assert!(matches!(
        Region::import_with(copy(), 8192, Sealing::Optional),
        Err(MemoryError::WrongSize { actual: 0, .. })
    ));
    let disk = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    disk.set_len(4096).unwrap();
    let refused = Region::import_with(disk.into(), 4096, Sealing::Optional).unwrap_err();
    assert!(matches!(refused, MemoryError::NotMemfd), "{refused}");
}

#[test]
fn two_mappings_show_the_same_bytes() {
    let made = Region::create("shared", 4096, PageSize::Base).unwrap();
    let fd = made.fd().try_clone_to_owned().unwrap();
    let imported = Region::import(fd, 4096).unwrap();
    assert_ne!(made.address(), imported.address());
    store(&made, 100, b"kvrail");
    drop(made);
    let mut seen = [0; 6];
    load(&imported, 100, &mut seen);
    assert_eq!(&seen, b"kvrail");
    assert_eq!(Pinned::bytes(&imported), 4096);
}

#[test]
fn zero_bytes_and_impossible_sizes_are_refused() {
    assert_eq!(Region::create("none", 0, PageSize::Base).unwrap_err(), MemoryError::Empty);
    for bytes in [usize::MAX, usize::MAX - 4095, isize::MAX.unsigned_abs()] {
        let refused = Region::create("huge", bytes, PageSize::Base).unwrap_err();
        assert_eq!(refused, MemoryError::TooLarge { bytes: bytes as u64 });
    }
}

#[test]
fn more_ordinary_memory_than_there_is_is_refused_before_it_is_touched() {
    let refused = Region::create("all of it", 1 << 50, PageSize::Base).unwrap_err();
    let MemoryError::NoPages { page, wanted_bytes, free_pages, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!((page, wanted_bytes), (PageSize::Base, 1 << 50));
    assert!(free_pages > 0, "what there is is named");
    let text = refused.to_string();
    assert!(text.contains("4KiB") && text.contains("memory.max"), "{text}");
}

#[test]
fn a_name_the_kernel_refuses_is_named() {
    let refused = Region::create(&"n".repeat(300), 4096, PageSize::Base).unwrap_err();
    assert!(matches!(refused, MemoryError::File { errno: Errno::INVAL, .. }), "{refused}");
    assert!(refused.to_string().contains("249 bytes"), "{refused}");
}

#[test]
fn files_pipes_and_devices_are_not_memfds() {
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let disk = tempfile::tempfile().unwrap();
    disk.set_len(4096).unwrap();
    let path_only = open("/dev/null", OFlags::PATH, Mode::empty()).unwrap();
    let null = File::open("/dev/null").unwrap();
    for fd in [pipe, path_only, null.into()] {
        assert_eq!(refusal(fd, 4096), MemoryError::NotMemfd);
    }
    // A file on tmpfs can have seals, an unsealed one must not pass either.
    let refused = refusal(disk.into(), 4096);
    let ours = matches!(refused, MemoryError::NotMemfd | MemoryError::Unsealed { .. });
    assert!(ours, "{refused}");
}

#[test]
fn a_memfd_that_cannot_be_sealed_or_is_not_sealed_enough_is_refused() {
    let unsealable = memfd_create("peer", MemfdFlags::empty()).unwrap();
    ftruncate(&unsealable, 4096).unwrap();
    let present = SealFlags::SEAL.bits();
    assert_eq!(refusal(unsealable, 4096), MemoryError::Unsealed { present });
    let weak = [SealFlags::empty(), SealFlags::SHRINK, SealFlags::SHRINK | SealFlags::GROW];
    for seals in weak {
        let fd = memfd(4096);
        fcntl_add_seals(&fd, seals).unwrap();
        let refused = refusal(fd, 4096);
        assert_eq!(refused, MemoryError::Unsealed { present: seals.bits() });
        assert!(refused.to_string().contains("set F_SEAL_SHRINK"), "{refused}");
    }
}

#[test]
fn a_size_other_than_announced_is_refused() {
    for (actual, announced) in [(4096, 8192), (8192, 4096), (0, 0), (0, 4096), (4096, u64::MAX)] {
        let fd = memfd(actual);
        fcntl_add_seals(&fd, REQUIRED_SEALS).unwrap();
        assert_eq!(refusal(fd, announced), MemoryError::WrongSize { announced, actual });
    }
}

#[test]
fn a_sparse_memfd_is_refused_however_large() {
    for bytes in [8192, 1 << 40, 1 << 62] {
        let fd = memfd_create("peer", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, bytes).unwrap();
        fallocate(&fd, FallocateFlags::empty(), 0, 4096).unwrap();
        fcntl_add_seals(&fd, REQUIRED_SEALS).unwrap();
        let refused = refusal(fd, bytes);
        assert_eq!(refused, MemoryError::Sparse { announced: bytes, present: 4096 });
        assert!(refused.to_string().contains("fallocate"), "{refused}");
    }
}

#[test]
fn a_memfd_that_cannot_be_written_is_refused_with_the_remedy() {
    let sealed = memfd(4096);
    fcntl_add_seals(&sealed, REQUIRED_SEALS | SealFlags::WRITE).unwrap();
    let made = Region::create("read only", 4096, PageSize::Base).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made.fd()));
    let read_only = open(path, OFlags::RDONLY, Mode::empty()).unwrap();
    for fd in [sealed, read_only] {
        let refused = refusal(fd, 4096);
        assert!(matches!(refused, MemoryError::Map { .. }), "{refused}");
        assert!(refused.to_string().contains("for reading and writing"), "{refused}");
    }
}

#[test]
fn a_size_off_the_page_is_mapped_as_it_is() {
    let fd = memfd(5000);
    fcntl_add_seals(&fd, REQUIRED_SEALS).unwrap();
    let region = Region::import(fd, 5000).unwrap();
    store(&region, 4999, &[1]);
    assert_eq!(region.bytes(), 5000);
}

#[test]
fn a_peer_that_punches_holes_leaves_zeroes_and_no_signal() {
    let region = Region::create("holes", 16384, PageSize::Base).unwrap();
    store(&region, 0, &[7; 16384]);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(region.fd(), punch, 4096, 8192).unwrap();
    let mut seen = [1; 16384];
    load(&region, 0, &mut seen);
    assert!(seen[4096..12288].iter().all(|byte| *byte == 0));
    assert!(seen[..4096].iter().chain(&seen[12288..]).all(|byte| *byte == 7));
    let mut read = [1; 16384];
    region.read_at(0, &mut read).unwrap();
    assert_eq!(read, seen);
}

#[test]
fn a_copy_out_of_a_peers_memory_survives_what_the_peer_does() {
    let own = Region::create("own", 16384, PageSize::Base).unwrap();
    let region = Region::create("peer", 16384, PageSize::Base).unwrap();
    store(&region, 0, &[7; 16384]);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(region.fd(), punch, 4096, 4096).unwrap();
    store(&own, 0, &[9; 16384]);
    region.copy_to(100, &own, 5000, 9000).unwrap();
    let mut seen = [0; 16384];
    load(&own, 0, &mut seen);
    let expected = |at: usize| match at {
        5000..14000 if (4096..8192).contains(&(at - 4900)) => 0,
        5000..14000 => 7,
        _ => 9,
    };
    assert!((0..16384).all(|at| seen[at] == expected(at)));
    let unsealed = memfd(8192);
    let copy = unsealed.try_clone().unwrap();
    let region = Region::import_with(copy, 8192, Sealing::Optional).unwrap();
    ftruncate(&unsealed, 4096).unwrap();
    let gone = region.copy_to(0, &own, 0, 8192);
    assert_eq!(gone, Err(Errno::IO), "an error where a load would fault");
}

#[test]
#[should_panic(expected = "a copy of 2 bytes at offset 4095 leaves the memory of 4096 bytes")]
fn a_copy_over_the_end_of_its_target_is_refused() {
    let [from, to] = [8192, 4096].map(|bytes| Region::create("a", bytes, PageSize::Base).unwrap());
    let _never = from.copy_to(0, &to, 4095, 2);
}

#[test]
#[should_panic(expected = "a read of 2 bytes at offset 4095 leaves the memory of 4096 bytes")]
fn a_read_over_the_end_is_refused() {
    let region = Region::create("short", 4096, PageSize::Base).unwrap();
    let _never = region.read_at(4095, &mut [0; 2]);
}
