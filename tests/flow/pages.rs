//! Arenas with and without hugepages.

use std::fs;

use kvrail_client::{Pages, Request, Status};
use kvrail_memory::{PageSize, Region};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::rig::{LONG, Place, Sidecar, eventually, is_root, run, under};

/// The pool of 2 MiB pages, which all processes of the machine share.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// More than this test uses, because other tests may take some meanwhile.
const PAGES: u64 = 16;

fn number(path: &str) -> u64 {
    fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Pages reserved for one test, freed at its end.
struct Reserved {
    before: u64,
}

impl Reserved {
    fn more(pages: u64) -> Option<Self> {
        let before = number(POOL);
        fs::write(POOL, (before + pages).to_string()).ok()?;
        let reserved = Self { before };
        (number(FREE) >= pages).then_some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _given_back = fs::write(POOL, self.before.to_string());
    }
}

/// Whether the kernel collapses ordinary pages to pages of 2 MiB.
fn can_gather() -> bool {
    let made = Region::create("can gather", 2 << 20, PageSize::Transparent2MiB);
    made.inspect_err(|why| println!("{why}")).is_ok()
}

/// A sidecar without hugepages: its arenas get smaller pages, and the log names this and the remedy
/// once.
fn misses_aloud_once(sidecar: Sidecar, page_bytes: u64, what: &str) {
    let client = sidecar.attach();
    let arenas = [0; 3].map(|_| client.create_arena(1 << 20, Pages::Auto).unwrap());
    for arena in &arenas {
        let note = arena.note().expect("why there are none");
        assert!(note.contains("vm.nr_hugepages"), "{note}");
        assert_eq!(arena.page_bytes(), page_bytes);
        let mut lease = arena.lease(1 << 20).unwrap();
        assert!(lease.iter().all(|byte| *byte == 0));
        lease.fill(0xa5);
    }
    let notes = sidecar.status().notes;
    let about = |note: &&String| note.contains("vm.nr_hugepages");
    assert_eq!(notes.iter().filter(about).count(), 1, "{notes:?}");
    let refused = client.create_arena(1 << 20, Pages::Huge2MiB).unwrap_err();
    assert!(refused.to_string().contains("vm.nr_hugepages"), "{refused}");
    drop((arenas, client));
    let log = sidecar.stop();
    assert_eq!(log.matches(what).count(), 1, "{log}");
}

/// A missing page size that the configuration requires is refused at the start, not at the first
/// client.
fn required_pages_are_missed_at_the_start() {
    let mut place = Place::with_volume(1, 8 << 20);
    let missing = ["memory.pages = \"2MiB\"", "0 are free", "vm.nr_hugepages", "other pages"];
    run(place.serve().args(["--set", "memory.pages=\"2MiB\""])).expect(3, &missing);
    let sidecar = Sidecar::start(&place);
    place.configure("memory.pages = \"2MiB\"");
    place.configuration();
    sidecar.signal(Signal::HUP);
    eventually("a refusal", || sidecar.stderr().contains("the configuration in force stays"));
    assert!(sidecar.stderr().contains(missing[2]), "{}", sidecar.stderr());
    sidecar.attach().create_arena(1 << 20, Pages::Auto).unwrap();
    sidecar.stop();
}

/// One test, because all tests share the pool.
#[test]
fn hugepages_are_used_where_there_are_some_and_missed_aloud_once() {
    let place = Place::with_volume(1, 8 << 20);
    if number(FREE) == 0 {
        if can_gather() {
            let gathered = Sidecar::start(&place);
            misses_aloud_once(gathered, 2 << 20, "arenas get transparent 2 MiB pages");
        } else {
            println!("skipped in part: this kernel gathers no pages (before 6.1, or without them)");
        }
        let einval = format!("no-collapse={}", Errno::INVAL.raw_os_error());
        let old_kernel = Sidecar::start_as(&place, under(&place, &[&einval]));
        misses_aloud_once(old_kernel, 4096, "arenas get base pages");
        required_pages_are_missed_at_the_start();
    } else {
        println!("skipped: hugepages are reserved here, so none can be missed");
    }
    let reserved = if is_root() { Reserved::more(PAGES) } else { None };
    if reserved.is_none() && number(FREE) < PAGES {
        println!("skipped: no hugepages to be had here");
        return;
    }
    let mut place = place;
    place.configure("memory.pages = \"2MiB\"");
    let sidecar = Sidecar::start(&place);
    let client = sidecar.attach();
    let arena = client.create_arena(4 << 20, Pages::Auto).unwrap();
    assert_eq!((arena.page_bytes(), arena.note()), (2 << 20, None));
    let volume = client.volume("kv").unwrap();
    let mut queue = client.open_queue(8).unwrap();
    let mut lease = arena.lease(2 << 20).unwrap();
    lease.fill(0x77);
    queue.submit(Request::write(&volume, 512, lease)).unwrap();
    let done = queue.wait(LONG).unwrap().unwrap();
    assert_eq!(done.status, Status::Ok);
    queue.submit(Request::read(&volume, 512, done.lease.unwrap())).unwrap();
    let done = queue.wait(LONG).unwrap().unwrap();
    assert!(done.lease.unwrap().iter().all(|byte| *byte == 0x77));
    arena.detach().unwrap();
    drop((queue, client));
    sidecar.stop();
}

/// The NUMA nodes of this machine; none where its kernel has no NUMA.
fn nodes() -> Vec<u32> {
    let entries = fs::read_dir("/sys/devices/system/node").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).collect()
}

#[test]
fn a_node_that_is_not_there_is_refused() {
    let mut place = Place::with_volume(1, 4 << 20);
    place.configure("memory.node = 900");
    let words = ["memory.node = 900", "no such NUMA node", "memory.node = \"auto\""];
    run(&mut place.serve()).expect(2, &words);
}

/// Pages of a process's arenas on a node, from its `numa_maps`.
fn arena_pages(pid: u32, node: u32) -> usize {
    let maps = fs::read_to_string(format!("/proc/{pid}/numa_maps")).unwrap();
    let arenas = maps.lines().filter(|line| line.contains("kvrail-arena"));
    let fields = arenas.flat_map(|line| line.split(' '));
    let counts = fields.filter_map(|field| field.strip_prefix(&format!("N{node}=")));
    counts.map(|count| count.parse::<usize>().unwrap()).sum()
}

#[test]
fn arenas_lie_on_the_node_that_is_named() {
    let nodes = nodes();
    if nodes.len() < 2 {
        println!("skipped: this machine has {} NUMA node(s)", nodes.len());
        return;
    }
    for node in nodes.iter().copied() {
        let mut place = Place::with_volume(1, 4 << 20);
        place.configure(&format!("memory.node = {node}"));
        let sidecar = Sidecar::start(&place);
        let client = sidecar.attach();
        let arena = client.create_arena(64 * 4096, Pages::Base).unwrap();
        assert_eq!(arena_pages(sidecar.pid(), node), 64);
        let others = nodes.iter().filter(|other| **other != node);
        assert_eq!(others.map(|other| arena_pages(sidecar.pid(), *other)).sum::<usize>(), 0);
        let words = format!("arenas lie on NUMA node {node}");
        assert!(sidecar.status().notes.iter().any(|note| note.contains(&words)));
        drop((arena, client));
        sidecar.stop();
    }
}
