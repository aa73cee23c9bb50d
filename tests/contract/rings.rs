//! Cases of io_uring alone: threads, system calls, removal, limits, refusals.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_device::{
    AnyDevice, BufferIndex, Device, DirectIo, Event, Events, Interrupt, ModeChoice, ModeName,
    Replacement, Sqpoll, Uring, UringOptions, open_path,
};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::{Opcode, Status};
use rustix::fs::{FlockOperation, flock};

use crate::rig::{Bytes, Rig, Subject};
use crate::uring::{FILE_BYTES, Loop, file, on_file};

#[test]
fn opened_here_and_driven_there() {
    let Some(subject) = on_file::<Interrupt>(|_| ()) else { return };
    let Subject { device, bytes, keep: _keep } = subject;
    std::thread::spawn(move || {
        let mut rig = Rig::new(Subject { device, bytes, keep: Box::new(()) }, 1 << 20);
        rig.round_trip(4096, 65_536, 0, 1);
    })
    .join()
    .expect("the device follows the thread that first submits");
}

#[test]
fn attached_here_and_driven_there() {
    let Some(subject) = on_file::<Interrupt>(|_| ()) else { return };
    let mut rig = Rig::new(Subject { keep: Box::new(()), ..subject }, 1 << 20);
    let (device, region) = (&mut rig.device, Arc::clone(&rig.region));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let read = kvrail_device::Operation {
                tag: 1,
                opcode: Opcode::Read,
                durability: kvrail_device::Durability::Visible,
                offset: 0,
                length: 4096,
                buffer: BufferIndex(0),
                buffer_offset: 0,
            };
            device.prepare(read).expect("room");
            device.submit();
            let mut events = Events::new();
            while events.is_empty() {
                device.reap(&mut events);
            }
            device.detach(BufferIndex(0)).expect("attached");
            while !events.contains(&Event::Detached(BufferIndex(0))) {
                device.reap(&mut events);
            }
        });
    });
    drop(rig); // on this thread again: nothing is in flight
    assert_eq!(Arc::strong_count(&region), 1);
}

/// A thread registers 16 rings at most; the others work without, and their description names the
/// reason.
#[test]
fn more_rings_than_a_thread_can_register() {
    let path = file();
    let name = path.to_str().expect("UTF-8 paths");
    let mut devices = Vec::new();
    for nth in 0..18 {
        let fd = open_path(name, DirectIo::Off).expect("our own file");
        let options = UringOptions { direct: DirectIo::Optional, ..UringOptions::new(name, fd) };
        let device = Uring::<Interrupt>::open(options).expect("rings are cheap");
        let subject = Subject { device, bytes: Bytes::Kept, keep: Box::new(()) };
        let mut rig = Rig::new(subject, 4096);
        rig.round_trip(nth * 4096, 4096, 0, 1);
        let features = rig.device.description().features.join(", ");
        assert_eq!(features.contains("registered ring"), nth < 16, "{nth}: {features}");
        devices.push(rig);
    }
}

#[test]
fn a_busy_sqpoll_ring_makes_no_system_calls() {
    let subject = on_file::<Sqpoll>(|options| options.thread.idle_ms = 5_000);
    let Some(subject) = subject else { return };
    let mut rig = Rig::new(subject, 1 << 20);
    for _ in 0..20 {
        let mut reads = Vec::new();
        for nth in 0..64 {
            reads.push(rig.operation(Opcode::Read, nth * 4096, 4096, 0));
        }
        rig.run(&reads);
    }
    assert!(rig.device.system_calls() <= 2, "{} calls", rig.device.system_calls());
}

#[test]
fn an_interrupt_ring_makes_one_call_to_submit_and_at_most_one_to_collect() {
    let Some(subject) = on_file::<Interrupt>(|_| ()) else { return };
    let mut rig = Rig::new(subject, 1 << 20);
    for nth in 0..100 {
        let read = rig.operation(Opcode::Read, nth * 4096, 4096, 0);
        rig.must(read);
    }
    assert!(rig.device.system_calls() <= 200, "{} calls", rig.device.system_calls());
}

/// A surprise removal: the device has no bytes any more, reads return 0 bytes without an error,
/// writes return ENOSPC. Both must end as `DEVICE_GONE`.
#[test]
fn a_device_that_shrinks_to_nothing_is_gone() {
    let Some(block) = Loop::new() else { return };
    let fd = open_path(&block.device, DirectIo::Required).expect("our own device");
    let device = Uring::<Interrupt>::open(UringOptions::new(&block.device, fd)).expect("block");
    let subject = Subject { device, bytes: Bytes::Kept, keep: Box::new(()) };
    let mut rig = Rig::new(subject, 1 << 20);
    rig.round_trip(0, 65_536, 0, 1);
    if !block.shrink_to_nothing() {
        return;
    }
    for opcode in [Opcode::Read, Opcode::Write, Opcode::Read] {
        let operation = rig.operation(opcode, 4096, 65_536, 0);
        let finished = rig.run(&[operation])[0];
        assert_eq!((finished.status, finished.bytes), (Status::DeviceGone, 0), "{opcode:?}");
    }
}

#[test]
fn a_truncated_file_is_gone() {
    let path = file();
    let name = path.to_str().expect("UTF-8 paths");
    let fd = open_path(name, DirectIo::Off).expect("our own file");
    let options = UringOptions { direct: DirectIo::Optional, ..UringOptions::new(name, fd) };
    let device = Uring::<Interrupt>::open(options).expect("a file");
    assert_eq!(device.description().capacity_bytes, FILE_BYTES);
    let subject = Subject { device, bytes: Bytes::Kept, keep: Box::new(()) };
    let mut rig = Rig::new(subject, 1 << 20);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(4096))
        .expect("our own file");
    // The read finds its bytes; the write succeeds in the kernel, and makes the file grow again.
    let whole = rig.operation(Opcode::Read, 0, 4096, 0);
    let behind = rig.operation(Opcode::Read, 0, 65_536, 0);
    let write = rig.operation(Opcode::Write, FILE_BYTES - 8192, 4096, 0);
    let flush = rig.operation(Opcode::Flush, 0, 0, 0);
    for operation in [whole, behind, write, flush, whole] {
        let finished = rig.run(&[operation])[0];
        assert_eq!((finished.status, finished.bytes), (Status::DeviceGone, 0), "{operation:?}");
    }
}

#[test]
fn impossible_options_are_refused_by_name() {
    let path = file();
    let name = path.to_str().expect("UTF-8 paths");
    let open = |adjust: fn(&mut UringOptions), mode| {
        let fd = open_path(name, DirectIo::Off).expect("our own file");
        let mut options = UringOptions::new(name, fd);
        options.direct = DirectIo::Optional;
        adjust(&mut options);
        let choice = ModeChoice::Fixed(mode);
        AnyDevice::open(choice, options).map(|_| ()).expect_err("impossible").to_string()
    };
    let text = open(|options| options.depth = 0, ModeName::Interrupt);
    assert!(text.contains("depth 0") && text.contains("1 to 4096"), "{text}");
    let text = open(|options| options.depth = 4097, ModeName::Interrupt);
    assert!(text.contains("depth 4097"), "{text}");
    let text = open(|options| options.thread.cpu = Some(4000), ModeName::Sqpoll);
    assert!(text.contains("CPU 4000") && text.contains("cpuset"), "{text}");
}

#[test]
fn a_refused_registration_leaves_nothing_behind() {
    let Some(subject) = on_file::<Interrupt>(|_| ()) else { return };
    let mut rig = Rig::new(subject, 4096);
    // The region needs more entries than are left: refused by the table.
    let region: Arc<dyn Pinned> = Arc::new(HeapBlock::new((1 << 30) + 4096));
    let last = BufferIndex(kvrail_device::BUFFERS_MAX - 1);
    let error = rig.device.attach(last, Arc::clone(&region)).unwrap_err().to_string();
    assert!(error.contains("lower entry"), "{error}");
    assert_eq!(Arc::strong_count(&region), 1);
    let small: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
    rig.device.attach(last, small).expect("free");
}

/// A device that comes back: ring, memory and tables stay, only the file is a new one.
#[test]
fn a_ring_goes_on_with_what_came_back() {
    let Some(subject) = on_file::<Interrupt>(|_| ()) else { return };
    let mut rig = Rig::new(subject, 1 << 20);
    let path = file();
    let back = |name: &str| {
        let fd = open_path(name, DirectIo::Off).expect("our own file");
        UringOptions::new(name, fd)
    };
    let name = path.to_str().expect("UTF-8 paths");
    rig.round_trip(0, 65_536, 0, 1);
    let running = rig.device.description().clone();
    let mut new = Replacement::examine(&running, back(name)).expect("as large as the other");

    let read = rig.operation(Opcode::Read, 0, 65_536, 0);
    assert!(rig.offer(read));
    let error = rig.device.replace(&mut new).unwrap_err().to_string();
    assert!(error.contains("1 operations") && error.contains("tried again"), "{error}");
    rig.device.submit();
    rig.reap_until("the read ends", |rig| !rig.accounts.finished.is_empty());

    rig.device.replace(&mut new).expect("nothing is in flight");
    let read = rig.operation(Opcode::Read, 0, 65_536, 0);
    rig.must(read);
    assert!(!rig.holds(0, 0, 65_536, 1), "the other file was never written");
    rig.round_trip(0, 65_536, 0, 2);
    drop(new); // what it had before

    let other = std::fs::OpenOptions::new().write(true).open(&path).expect("our own file");
    other.set_len(FILE_BYTES / 2).expect("our own file");
    let error = Replacement::examine(&running, back(name)).unwrap_err().to_string();
    assert!(error.contains("came back with bytes:"), "{error}");
}

/// A device that is retired: its file is not open any more, so locks on it end.
#[test]
fn a_ring_lets_go_of_its_file() {
    let path = file();
    let name = path.to_str().expect("UTF-8 paths");
    let open = || open_path(name, DirectIo::Off).expect("our own file");
    let locked = |fd: &OwnedFd| flock(fd, FlockOperation::NonBlockingLockExclusive);
    let options = || {
        let fd = open();
        locked(&fd).expect("no other has it");
        UringOptions { direct: DirectIo::Off, ..UringOptions::new(name, fd) }
    };
    for mode in [ModeName::Interrupt, ModeName::Sqpoll] {
        let mut device = match AnyDevice::open(ModeChoice::Fixed(mode), options()) {
            Ok(device) => device,
            Err(error) => {
                println!("skipped: {mode}: {error}");
                continue;
            }
        };
        assert!(locked(&open()).is_err(), "{mode}: the ring has it");
        let mut nothing = Replacement::nothing().expect("descriptors are left");
        device.replace(&mut nothing).expect("nothing is in flight");
        drop(nothing); // the file
        let begun = std::time::Instant::now();
        while locked(&open()).is_err() {
            assert!(begun.elapsed().as_secs() < 10, "{mode}: the ring still has it");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
