//! Regions of hugepages, on a few 2 MiB pages reserved for the length of a test.
#![cfg(not(miri))] // system calls

use std::fs::{self, File};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kvrail_memory::{MemoryError, PageSize, Pinned, Region, Topology, load, store};
use rustix::fs::{FlockOperation, flock};

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const MIB_2: usize = 2 << 20;

/// Tests of this file take turns, and other runs of it on this machine wait for its end.
static TURN: Mutex<()> = Mutex::new(());

/// Some free 2 MiB pages; the pool has its old size again when dropped.
struct Reserved {
    before: u64,
    _turn: (MutexGuard<'static, ()>, File),
}

fn turn() -> (MutexGuard<'static, ()>, File) {
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let lock = File::create(std::env::temp_dir().join("kvrail-hugepages.lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    (guard, lock)
}

impl Reserved {
    /// Enlarges the pool until `pages` are free, or prints why the test cannot run.
    fn pages(pages: u64) -> Option<Self> {
        let turn = turn();
        let Ok(text) = fs::read_to_string(POOL) else {
            println!("skipped: this kernel has no hugepages ({POOL} is missing)");
            return None;
        };
        let before: u64 = text.trim().parse().unwrap();
        let missing = pages.saturating_sub(PageSize::Huge2MiB.free_pages());
        if let Err(why) = fs::write(POOL, (before + missing).to_string()) {
            println!("skipped: hugepages cannot be reserved ({POOL}: {why}); run it as root");
            return None;
        }
        let reserved = Self { before, _turn: turn };
        let free = PageSize::Huge2MiB.free_pages();
        if free < pages {
            println!("skipped: memory has {free} of {pages} free 2 MiB pages to reserve");
            return None;
        }
        Some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        fs::write(POOL, self.before.to_string()).expect("the pool took a size before");
    }
}

#[test]
fn a_2mib_region_is_made_sealed_shared_and_given_back() {
    let Some(_pool) = Reserved::pages(3) else { return };
    let free = PageSize::Huge2MiB.free_pages();
    let made = Region::create("huge", MIB_2 + 1, PageSize::Huge2MiB).unwrap();
    assert_eq!((made.bytes(), made.page()), (2 * MIB_2, PageSize::Huge2MiB));
    assert!(made.address().is_multiple_of(MIB_2), "one DMA segment per page");
    assert_eq!(PageSize::Huge2MiB.free_pages(), free - 2, "taken at once, not at the first touch");
    let fd = made.fd().try_clone_to_owned().unwrap();
    let imported = Region::import(fd, made.bytes() as u64).unwrap();
    assert_eq!(imported.page(), PageSize::Huge2MiB);
    store(&made, MIB_2 - 3, b"across");
    let mut seen = [0; 6];
    load(&imported, MIB_2 - 3, &mut seen);
    assert_eq!(&seen, b"across");
    drop((made, imported));
    assert_eq!(PageSize::Huge2MiB.free_pages(), free);
}

#[test]
fn create_best_takes_hugepages_when_there_are_some() {
    let Some(_pool) = Reserved::pages(1) else { return };
    let (region, reason) = Region::create_best("best", 4096).unwrap();
    assert_eq!((region.page(), region.bytes(), reason), (PageSize::Huge2MiB, MIB_2, None));
}

#[test]
fn a_pool_too_small_is_an_error_with_the_remedy_and_create_best_reports_it() {
    let _turn = turn();
    let wanted = (usize::try_from(PageSize::Huge2MiB.free_pages()).unwrap() + 1) * MIB_2;
    let refused = Region::create("too large", wanted, PageSize::Huge2MiB).unwrap_err();
    assert!(matches!(refused, MemoryError::NoPages { wanted_bytes, .. } if wanted_bytes == wanted));
    let text = refused.to_string();
    assert!(text.contains(&format!("vm.nr_hugepages={}", wanted / MIB_2)), "{text}");
    let (region, reason) = Region::create_best("fallback", wanted).unwrap();
    assert!(matches!(region.page(), PageSize::Transparent2MiB | PageSize::Base));
    assert_eq!(region.bytes(), wanted);
    assert_eq!(reason.expect("the fallback is reported").to_string(), text);
}

#[test]
fn a_1gib_page_that_is_not_there_is_an_error_with_the_remedy() {
    let _turn = turn();
    let free = PageSize::Huge1GiB.free_pages();
    let bytes = (usize::try_from(free).unwrap() + 1) << 30;
    let refused = Region::create("gigantic", bytes, PageSize::Huge1GiB).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, MemoryError::NoPages { .. }), "{text}");
    assert!(text.contains(&format!("hugepagesz=1G hugepages={}", free + 1)), "{text}");
    let rounded = Region::create("rounded", usize::MAX - 5, PageSize::Huge1GiB).unwrap_err();
    assert!(matches!(rounded, MemoryError::TooLarge { .. }), "{rounded}");
}

#[test]
fn a_1gib_region_is_made_where_a_page_was_reserved_at_boot() {
    let _turn = turn();
    if PageSize::Huge1GiB.free_pages() == 0 {
        println!("skipped: no 1 GiB page is free (hugepagesz=1G hugepages=1 at boot)");
        return;
    }
    let region = Region::create("gigantic", 1, PageSize::Huge1GiB).unwrap();
    assert_eq!((region.bytes(), region.page()), (1 << 30, PageSize::Huge1GiB));
    store(&region, (1 << 30) - 4, b"last");
    let fd = region.fd().try_clone_to_owned().unwrap();
    let imported = Region::import(fd, 1 << 30).unwrap();
    let mut seen = [0; 4];
    load(&imported, (1 << 30) - 4, &mut seen);
    assert_eq!((&seen, imported.page()), (b"last", PageSize::Huge1GiB));
}

#[test]
fn a_sparse_huge_memfd_is_refused_instead_of_raising_sigbus_later() {
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(fd) = memfd_create("peer", flags) else {
        println!("skipped: this kernel has no 2 MiB pages");
        return;
    };
    ftruncate(&fd, MIB_2 as u64).unwrap();
    fcntl_add_seals(&fd, kvrail_memory::REQUIRED_SEALS).unwrap();
    let refused = Region::import(fd, MIB_2 as u64).unwrap_err();
    assert_eq!(refused, MemoryError::Sparse { announced: MIB_2 as u64, present: 0 });
}

#[test]
fn a_punched_hugepage_reads_as_zeroes_and_takes_none_from_the_pool() {
    use rustix::fs::{FallocateFlags, fallocate};
    let Some(_pool) = Reserved::pages(1) else { return };
    let region = Region::create("punched", MIB_2, PageSize::Huge2MiB).unwrap();
    let free = PageSize::Huge2MiB.free_pages();
    store(&region, 5000, b"there");
    let mut seen = [0; 5];
    region.read_at(5000, &mut seen).unwrap();
    assert_eq!(&seen, b"there");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(region.fd(), punch, 0, MIB_2 as u64).unwrap();
    region.read_at(5000, &mut seen).unwrap();
    assert_eq!(seen, [0; 5]);
    assert_eq!(PageSize::Huge2MiB.free_pages(), free + 1, "the punched page is not taken again");
}

#[test]
fn the_topology_counts_the_pool() {
    let Some(_pool) = Reserved::pages(2) else { return };
    let topology = Topology::host().unwrap();
    let pools = topology.hugepages().iter().filter(|pool| pool.page_bytes == MIB_2 as u64);
    let (total, free) = pools.fold((0, 0), |sum, pool| (sum.0 + pool.total, sum.1 + pool.free));
    assert!(free >= 2 && total >= free, "{:?}", topology.hugepages());
    assert_eq!(free, PageSize::Huge2MiB.free_pages());
}

#[test]
fn a_lease_pool_works_over_hugepages() {
    let Some(_pool) = Reserved::pages(1) else { return };
    let region = Region::create("arena", MIB_2, PageSize::Huge2MiB).unwrap();
    let region: std::sync::Arc<dyn Pinned> = std::sync::Arc::new(region);
    let leases = kvrail_memory::LeasePool::new(region, 4096);
    let mut lease = leases.lease(MIB_2).unwrap();
    lease.fill(9);
    assert!(lease.iter().all(|byte| *byte == 9));
}
