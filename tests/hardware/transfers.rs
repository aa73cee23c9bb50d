//! A sidecar that is killed while a slow drive has its reads: no memory changes once the kernel has
//! shown the end of them, in any mode.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use kvrail_client::{Pages, Request, Status};
use kvrail_device::ModeName;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::Signal;

use crate::bed::Bed;
use crate::machine;
use crate::monitor::Monitor;
use crate::rig::Sidecar;

const BLOCK: usize = 64 << 10;
const READS: usize = 3;

/// Between the reads: neighbours would be one request of the block layer's.
const STEP: usize = 4 * BLOCK;
const PATIENCE: Duration = Duration::from_secs(60);

/// What the memory has before a read.
const UNREAD: u8 = 0x11;

/// Memory of a client's, whose bytes are seen behind the end of the session.
fn memory() -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("memory", flags).expect("memory"));
    file.write_all_at(&[UNREAD; READS * BLOCK], 0).expect("room");
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).expect("sealed");
    file
}

fn bytes(memory: &File) -> Vec<u8> {
    let mut bytes = vec![0; READS * BLOCK];
    memory.read_exact_at(&mut bytes, 0).expect("our memory");
    bytes
}

fn unread(bytes: &[u8]) -> usize {
    bytes.chunks(BLOCK).filter(|block| block.contains(&UNREAD)).count()
}

/// The blocks of a client's memory that nothing has filled when the sidecar is killed, that memory,
/// and its bytes at the hang-up. Nothing where the kernel shows no hang-up.
fn killed(sidecar: &Sidecar, monitor: &mut Monitor) -> Option<(usize, File, Vec<u8>)> {
    let client = sidecar.attach();
    let watch = client.watch_transfers().expect("an answer")?;
    let hangs_up = |within: Duration| {
        let within = Timespec::try_from(within).expect("some seconds");
        let mut ends = [PollFd::new(&watch, PollFlags::empty())];
        poll(&mut ends, Some(&within)).expect("our pipe");
        ends[0].revents().contains(PollFlags::HUP)
    };
    let volume = client.volume("kv").expect("the volume is there");
    let mut queue = client.open_queue(16).expect("a queue");
    let zeros = client.create_arena(READS * STEP, Pages::Base).expect("memory");
    let all = zeros.lease(READS * STEP).expect("all of it");
    queue.submit(Request::write(&volume, 0, all)).expect("room");
    let wrote = queue.wait(PATIENCE).expect("the sidecar lives").expect("it ends");
    assert_eq!(wrote.status, Status::Ok);
    let seen = memory();
    let own = seen.try_clone().expect("a descriptor").into();
    let arena = client.import_arena(own, (READS * BLOCK) as u64).expect("good memory");
    monitor.throttle(1);
    for nth in 0..READS {
        let lease = arena.lease(BLOCK).expect("memory for each");
        queue.submit(Request::read(&volume, (nth * STEP) as u64, lease)).expect("room");
    }
    std::thread::sleep(Duration::from_millis(300));
    let before = unread(&bytes(&seen));
    sidecar.signal(Signal::KILL);
    let begun = Instant::now();
    assert!(!hangs_up(Duration::from_millis(500)), "{before} reads are in flight");
    while !hangs_up(Duration::from_millis(20)) {
        assert!(begun.elapsed() < PATIENCE, "it never hangs up");
    }
    let at = bytes(&seen);
    monitor.throttle(0);
    Some((before, seen, at))
}

#[test]
fn no_memory_changes_behind_the_end_of_a_killed_sidecars_transfers() {
    if !machine::is_ours() {
        return;
    }
    let (mut monitor, mut seen) = (Monitor::open(), Vec::new());
    for mode in ModeName::ALL {
        let place = Bed::new(mode.name(), "kvr-slow", 1).place;
        let mut sidecar = Sidecar::launch(&place, place.serve());
        if sidecar.wait_or_serve() {
            println!("mode {mode}: refused: {}", sidecar.stderr());
            assert!(mode == ModeName::Hybrid, "only this one needs a newer kernel than 6.12");
            continue;
        }
        let begun = Instant::now();
        let Some((before, memory, at)) = killed(&sidecar, &mut monitor) else {
            println!("mode {mode}: nothing shows the end of transfers");
            assert!(!mode.ends_behind_a_kill());
            continue;
        };
        let ended = before - unread(&at);
        println!("mode {mode}: {ended} reads ended behind the kill, in {:?}", begun.elapsed());
        assert!(ended > 0, "mode {mode}: no read was in flight");
        seen.push((mode, memory, at));
    }
    std::thread::sleep(Duration::from_secs(2));
    for (mode, memory, at) in seen {
        assert!(at == bytes(&memory), "mode {mode}: memory has changed behind the hang-up");
    }
}
