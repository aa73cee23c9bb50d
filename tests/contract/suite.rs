//! The contract as cases. Each takes a fresh device.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvrail_device::{Attached, BUFFERS_MAX, BufferIndex, Device, DeviceError, Durability};
use kvrail_memory::{HeapBlock, Pinned};
use kvrail_ring::{Doorbell, Opcode, Status};

use crate::rig::{AT, Rig, Subject};

/// A KV block of DeepSeek-V3: a multiple of 512 bytes and not of 4 KiB.
const KV_BLOCK: usize = 1_124_352;

const MIB: usize = 1 << 20;

/// Declares every case of the suite for one factory `fn() -> Option<Subject<_>>`; a factory that
/// returns `None` prints the reason.
macro_rules! conformance {
    ($factory:path) => {
        conformance!(@cases $factory:
            sizes_round_trip, offsets_round_trip, beyond_transfer_max, beyond_depth,
            mixed_load_is_accounted_for, flush_discard_durable_nop, detach_waits_for_the_last_use,
            attach_and_detach_mistakes, dropped_in_flight, sleeping_wakes_up, blocking_wakes_up,
            survives_a_large_region, leaves_a_region_half_way,
        );
    };
    (@cases $factory:path: $($case:ident,)*) => {
        $(#[test]
        fn $case() {
            if let Some(subject) = $factory() {
                $crate::suite::$case(subject);
            }
        })*
    };
}

pub(crate) fn sizes_round_trip<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, 8 * MIB);
    let block = rig.device.description().logical_block as usize;
    for (version, length) in (1..).zip([512, 4096, KV_BLOCK, 4 * MIB]) {
        let length = length.next_multiple_of(block);
        rig.round_trip(0, length, 0, version);
        rig.round_trip(9 * MIB as u64, length, 4096, version + 100);
    }
}

pub(crate) fn offsets_round_trip<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, 4 * MIB);
    let block = rig.device.description().logical_block as usize;
    for (version, nth) in (1..).zip([1, 3, 7, 2195, 4393]) {
        let offset = (nth * block) as u64;
        rig.round_trip(offset, block, block * 5, version);
        rig.round_trip(offset, (KV_BLOCK).next_multiple_of(block), block, version + 50);
    }
}

pub(crate) fn beyond_transfer_max<D: Device>(subject: Subject<D>) {
    let description = subject.device.description();
    let block = description.logical_block as usize;
    let most = description.transfer_bytes_max as usize;
    let room = usize::try_from(description.capacity_bytes / 2).expect("small");
    let length = (2 * most + 3 * block).min(room - room % block).min(24 * MIB);
    let mut rig = Rig::new(subject, length + 2 * block);
    rig.round_trip(block as u64, length, block, 1);
    // Two of these at once, and small ones that must not get lost between them.
    rig.fill(0, 0, length, 2);
    let mut operations = Vec::new();
    for nth in 0..8 {
        let length = if nth % 4 == 0 { length } else { block };
        operations.push(rig.operation(Opcode::Write, 0, length, 0));
    }
    let ended = rig.run(&operations);
    assert!(ended.iter().all(|finished| finished.status == Status::Ok), "{ended:?}");
    rig.wipe(0, length);
    let read = rig.operation(Opcode::Read, 0, length, 0);
    rig.must(read);
    assert!(rig.holds(0, 0, length, 2));
}

pub(crate) fn beyond_depth<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, MIB);
    let depth = rig.device.description().depth;
    let mut taken = 0;
    let refused = loop {
        let read = rig.operation(Opcode::Read, 0, 4096, 0);
        if !rig.offer(read) {
            break read;
        }
        taken += 1;
        assert!(taken <= depth, "takes more than its depth of {depth}");
    };
    assert_eq!(taken, depth);
    rig.device.submit();
    rig.reap_until("all that were taken", |rig| rig.device.in_flight() == 0);
    assert!(rig.accounts.finished.iter().all(|finished| finished.status == Status::Ok));
    rig.must(refused);
}

/// A few thousand operations of mixed kinds and sizes on disjoint places; then everything is read
/// back. The rig checks that each tag comes back exactly once.
pub(crate) fn mixed_load_is_accounted_for<D: Device>(subject: Subject<D>) {
    const PLACES: usize = 64;
    const PLACE: usize = 128 << 10;
    let mut rig = Rig::new(subject, PLACES * PLACE);
    let block = rig.device.description().logical_block as usize;
    let mut lengths = [0; PLACES];
    for round in 0..24 {
        let mut operations = Vec::new();
        for (place, length) in lengths.iter_mut().enumerate() {
            let (offset, at) = ((place * PLACE) as u64, place * PLACE);
            if (place + round) % 3 == 0 {
                let blocks = 1 + (place * 31 + round * 17) % (PLACE / block);
                *length = blocks * block;
                rig.fill(at, offset, *length, (place + 1) as u64);
                operations.push(rig.operation(Opcode::Write, offset, *length, at));
            } else if (place + round) % 7 == 0 {
                operations.push(rig.operation(Opcode::Flush, 0, 0, 0));
            } else if *length > 0 {
                operations.push(rig.operation(Opcode::Read, offset, *length, at));
            }
        }
        let ended = rig.run(&operations);
        assert!(ended.iter().all(|finished| finished.status == Status::Ok), "{ended:?}");
        for (place, length) in lengths.iter().enumerate().filter(|(_, length)| **length > 0) {
            let at = place * PLACE;
            assert!(rig.holds(at, at as u64, *length, (place + 1) as u64), "place {place}");
        }
    }
}

pub(crate) fn flush_discard_durable_nop<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, MIB);
    rig.fill(0, 0, 65_536, 1);
    let mut write = rig.operation(Opcode::Write, 0, 65_536, 0);
    write.durability = Durability::Durable;
    rig.must(write);
    let flush = rig.operation(Opcode::Flush, 0, 0, 0);
    rig.must(flush);
    let nop = rig.operation(Opcode::Nop, 0, 0, 0);
    rig.must(nop);
    let discard = rig.operation(Opcode::Discard, 16_384, 16_384, 0);
    let ended = rig.run(&[discard])[0];
    assert!(matches!(ended.status, Status::Ok | Status::Unsupported), "{ended:?}");
    rig.wipe(0, 65_536);
    let read = rig.operation(Opcode::Read, 0, 65_536, 0);
    rig.must(read);
    assert!(rig.holds(0, 0, 16_384, 1) && rig.holds(32_768, 32_768, 32_768, 1));
}

pub(crate) fn detach_waits_for_the_last_use<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, MIB);
    let at = BufferIndex(17);
    for round in 0..4 {
        let region: Arc<dyn Pinned> = Arc::new(HeapBlock::new(MIB));
        rig.device.attach(at, Arc::clone(&region)).expect("free again");
        assert!(rig.device.attach(at, Arc::clone(&region)).is_err(), "taken");
        for nth in 0..32 {
            let mut operation = rig.operation(Opcode::Read, 0, 64 << 10, 0);
            operation.buffer = at;
            assert!(rig.offer(operation), "operation {nth} of round {round}");
            if nth == 15 {
                rig.device.submit();
            }
        }
        // Half of them submitted, half only prepared.
        rig.device.detach(at).expect("attached");
        assert!(rig.device.detach(at).is_err(), "detached twice");
        let other = rig.operation(Opcode::Read, 0, 4096, 0);
        while !rig.offer(other) {
            rig.reap(); // other regions go on as soon as there is room
        }
        rig.device.submit();
        while rig.accounts.detached.is_empty() {
            rig.reap_until("detach", |rig| {
                !rig.accounts.detached.is_empty() || rig.accounts.finished.len() == 33 * (round + 1)
            });
            if rig.accounts.detached.is_empty() {
                rig.reap();
            }
        }
        assert_eq!(rig.accounts.detached, [at]);
        rig.accounts.detached.clear();
        // At most the operation on the other region may still be in flight.
        let left = 33 * (round + 1) - rig.accounts.finished.len();
        assert!(left <= 1, "{left} in flight at the detach");
        assert_eq!(Arc::strong_count(&region), 1, "the device has dropped the region");
        rig.reap_until("the rest", |rig| rig.device.in_flight() == 0);
        assert!(rig.accounts.finished.iter().all(|finished| finished.status == Status::Ok));
    }
}

pub(crate) fn attach_and_detach_mistakes<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, MIB);
    let region: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
    let error = rig.device.attach(AT, Arc::clone(&region)).unwrap_err().to_string();
    assert!(error.contains("entry 0") && error.contains("taken"), "{error}");
    assert!(rig.device.attach(BufferIndex(BUFFERS_MAX), Arc::clone(&region)).is_err());
    assert!(rig.device.detach(BufferIndex(5)).is_err());
    assert_eq!(Arc::strong_count(&region), 1, "a refused region is not kept");
    // Idle regions leave without any operation.
    let last = BufferIndex(BUFFERS_MAX - 1);
    rig.device.attach(last, Arc::clone(&region)).expect("the last entry is one");
    rig.device.detach(last).expect("attached");
    rig.reap_until("an idle detach", |rig| !rig.accounts.detached.is_empty());
    assert_eq!((rig.accounts.detached.as_slice(), Arc::strong_count(&region)), (&[last][..], 1));
}

pub(crate) fn dropped_in_flight<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, 4 * MIB);
    let region = Arc::clone(&rig.region);
    for nth in 0..32 {
        let read = rig.operation(Opcode::Read, nth * 65_536, 65_536, 0);
        assert!(rig.offer(read));
        if nth == 20 {
            rig.device.submit();
        }
    }
    drop(rig);
    assert_eq!(Arc::strong_count(&region), 1, "a drained device keeps nothing");
}

/// The descriptor that `wait` names becomes readable for completions, including those of a region
/// being detached.
pub(crate) fn sleeping_wakes_up<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, MIB);
    for nth in 0..64 {
        let opcode = if nth % 5 == 0 { Opcode::Flush } else { Opcode::Read };
        let length = if opcode == Opcode::Read { 4096 } else { 0 };
        let operation = rig.operation(opcode, nth * 4096, length, 0);
        assert!(rig.offer(operation));
        rig.device.submit();
        while rig.device.in_flight() > 0 {
            rig.sleep();
            rig.reap();
        }
    }
    assert_eq!(rig.accounts.finished.len(), 64);
    rig.device.detach(AT).expect("attached");
    while rig.accounts.detached.is_empty() {
        rig.sleep();
        rig.reap();
    }
}

/// Devices that can block wake up for completions and for the bell; others give the bell back.
pub(crate) fn blocking_wakes_up<D: Device>(subject: Subject<D>) {
    const LONG: Duration = Duration::from_secs(100);
    let mut rig = Rig::new(subject, MIB);
    let bell = Doorbell::eventfd().expect("descriptors are left");
    let watched = bell.as_fd().try_clone_to_owned().expect("descriptors are left");
    if rig.device.watch(watched).is_err() {
        assert_ne!(rig.device.description().mode, "interrupt");
        return;
    }
    let long_ns = u64::try_from(LONG.as_nanos()).expect("100 s");
    let start = Instant::now();
    for nth in 0..64 {
        let read = rig.operation(Opcode::Read, nth * 4096, 4096, 0);
        assert!(rig.offer(read));
        while rig.device.in_flight() > 0 {
            rig.device.block(long_ns); // hands over what is queued, too
            rig.reap();
        }
    }
    // Idle: only the bell can end the sleep, before it begins or while it lasts.
    for pause_ms in [0, 1, 20, 0, 5] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(pause_ms));
                bell.ring();
            });
            rig.device.block(long_ns);
            rig.reap();
        });
    }
    assert!(start.elapsed() < LONG, "slept to the end: a wake-up was lost");
    rig.device.block(1_000_000); // and time ends it as well
    assert_eq!(rig.accounts.finished.len(), 64);
}

/// A region larger than one table entry: addressed on both sides of the border and across it.
pub(crate) fn survives_a_large_region<D: Device>(subject: Subject<D>) {
    const BORDER: usize = 64 * MIB;
    assert_eq!(BORDER as u64, kvrail_ring::limits::ENTRY_BYTES);
    let mut rig = Rig::new(subject, MIB);
    let at = BufferIndex(8);
    let region: Arc<dyn Pinned> = Arc::new(HeapBlock::new(BORDER + 4 * MIB));
    match rig.device.attach(at, Arc::clone(&region)) {
        Ok(()) => {}
        Err(error @ DeviceError::Register { .. }) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("two entries are free: {error}"),
    }
    let small: Arc<dyn Pinned> = Arc::new(HeapBlock::new(4096));
    assert!(rig.device.attach(BufferIndex(9), small).is_err(), "the second entry is taken too");
    let first = std::mem::replace(&mut rig.region, Arc::clone(&region));
    let length = 2 * MIB;
    let block = rig.device.description().memory_alignment as usize;
    for (version, buffer_offset) in
        (1..).zip([BORDER - 2 * MIB, BORDER - MIB / 2, BORDER, BORDER - block])
    {
        for opcode in [Opcode::Write, Opcode::Read] {
            if opcode == Opcode::Write {
                rig.fill(buffer_offset, 0, length, version);
            } else {
                rig.wipe(buffer_offset, length);
            }
            let mut operation = rig.operation(opcode, 0, length, buffer_offset);
            operation.buffer = at;
            rig.must(operation);
        }
        assert!(rig.holds(buffer_offset, 0, length, version), "buffer offset {buffer_offset}");
    }
    rig.region = first;
    rig.device.detach(at).expect("attached");
    rig.reap_until("a detach of two entries", |rig| rig.accounts.detached == [at]);
    assert_eq!(Arc::strong_count(&region), 1);
}

/// A region that is attached partly can be left at every step, and its entries are free then.
pub(crate) fn leaves_a_region_half_way<D: Device>(subject: Subject<D>) {
    let mut rig = Rig::new(subject, MIB);
    let at = BufferIndex(8);
    let region: Arc<dyn Pinned> = Arc::new(HeapBlock::new(129 * MIB));
    for steps in 0..3 {
        let mut progress = match rig.device.begin_attach(at, Arc::clone(&region)) {
            Ok(progress) => progress,
            Err(error @ DeviceError::Register { .. }) => return println!("skipped: {error}"),
            Err(error) => panic!("three entries are free: {error}"),
        };
        for _ in 0..steps {
            progress = rig.device.attach_more(at).expect("begun");
        }
        if steps < 2 && progress == Attached::Whole {
            println!("this device attaches at once");
        }
        assert!(steps < 2 || progress == Attached::Whole, "three entries, three steps");
        rig.device.detach(at).expect("begun");
        rig.reap_until("a detach half-way", |rig| rig.accounts.detached == [at]);
        rig.accounts.detached.clear();
        assert_eq!(Arc::strong_count(&region), 1);
    }
}
