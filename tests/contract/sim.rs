//! The simulated device: the whole contract with and without harmless faults, and each harmful
//! fault by name.

use kvrail_device::{
    Device, FakeClock, Fault, FaultPlan, MonotonicClock, Rule, SimDevice, SimOptions,
};
use kvrail_ring::{Opcode, Status};
use proptest::prelude::*;

use crate::rig::{AT, Bytes, Rig, Subject};

fn subject(plan: FaultPlan) -> Subject<SimDevice<MonotonicClock>> {
    let device = SimDevice::new(SimOptions { plan, ..Default::default() }, MonotonicClock);
    Subject { device, bytes: Bytes::Kept, keep: Box::new(()) }
}

mod faultless {
    use super::{FaultPlan, MonotonicClock, SimDevice, Subject};

    fn open() -> Option<Subject<SimDevice<MonotonicClock>>> {
        Some(super::subject(FaultPlan::none()))
    }

    conformance!(open);
}

/// Faults that a device must hide: short transfers, delays, any order.
mod harmless {
    use super::{Fault, FaultPlan, MonotonicClock, Rule, SimDevice, Subject};

    fn open() -> Option<Subject<SimDevice<MonotonicClock>>> {
        let plan = FaultPlan::none()
            .with(Rule::chance(Fault::Short, 300_000))
            .with(Rule::chance(Fault::Delay { ns: 200_000 }, 100_000))
            .with(Rule::chance(Fault::Reorder, 500_000));
        Some(super::subject(plan))
    }

    conformance!(open);
}

const LENGTH: usize = 64 << 10;

fn rig(rule: Rule) -> Rig<SimDevice<MonotonicClock>> {
    Rig::new(subject(FaultPlan::none().with(rule)), 1 << 20)
}

/// Writes version 1 without faults, then version 2 under the rule; then reads without faults.
fn after_write_under(fault: Fault) -> Rig<SimDevice<MonotonicClock>> {
    let mut rig = Rig::new(subject(FaultPlan::none()), 1 << 20);
    for offset in [0, LENGTH as u64] {
        rig.round_trip(offset, LENGTH, 0, 1);
    }
    rig.device.plan().add(Rule::once(fault).on(Opcode::Write));
    rig.fill(0, 0, LENGTH, 2);
    let write = rig.operation(Opcode::Write, 0, LENGTH, 0);
    rig.must(write);
    rig.wipe(0, 2 * LENGTH);
    let read = rig.operation(Opcode::Read, 0, 2 * LENGTH, 0);
    rig.must(read);
    rig
}

#[test]
fn short_continues_to_ok_with_the_right_data() {
    let mut rig = rig(Rule::always(Fault::Short));
    rig.round_trip(512, LENGTH, 512, 1); // 64 KiB in 8 steps each way
}

#[test]
fn no_progress_is_an_error() {
    let mut rig = rig(Rule::once(Fault::Nothing).on(Opcode::Read));
    let read = rig.operation(Opcode::Read, 0, LENGTH, 0);
    let finished = rig.run(&[read])[0];
    assert_eq!((finished.status, finished.bytes), (Status::IoError, 0));
}

#[test]
fn short_then_nothing_reports_the_contiguous_beginning() {
    let mut rig = rig(Rule::once(Fault::Short));
    rig.device.plan().add(Rule::always(Fault::Nothing));
    let read = rig.operation(Opcode::Read, 0, LENGTH, 0);
    let finished = rig.run(&[read])[0];
    assert_eq!((finished.status, finished.bytes), (Status::IoError, 32 << 10));
}

#[test]
fn an_error_is_reported_as_it_is() {
    for status in [Status::IoError, Status::NoSpace, Status::Unsupported] {
        let mut rig = rig(Rule::once(Fault::Error(status)));
        let write = rig.operation(Opcode::Write, 0, LENGTH, 0);
        assert_eq!(rig.run(&[write])[0].status, status);
        rig.round_trip(0, LENGTH, 0, 1);
    }
}

#[test]
fn a_hung_operation_keeps_its_memory_until_it_ends() {
    let mut rig = rig(Rule::once(Fault::Hang).on(Opcode::Read));
    let control = rig.device.control();
    let read = rig.operation(Opcode::Read, 0, LENGTH, 0);
    assert!(rig.offer(read));
    rig.device.submit();
    rig.device.detach(AT).expect("attached");
    for _ in 0..100 {
        rig.reap();
    }
    assert_eq!(
        (rig.accounts.finished.len(), rig.accounts.detached.len(), control.hung()),
        (0, 0, 1)
    );
    control.release();
    rig.reap_until("the released read", |rig| rig.accounts.finished.len() == 1);
    assert_eq!(rig.accounts.finished[0].status, Status::Ok);
    rig.reap_until("its region", |rig| rig.accounts.detached == [AT]);
    assert_eq!(control.hung(), 0);
}

#[test]
fn a_delay_passes_by_the_devices_clock_only() {
    let clock = FakeClock::default();
    let plan = FaultPlan::none().with(Rule::always(Fault::Delay { ns: 1_000 }));
    let options = SimOptions { plan, latency_ns: 500, ..Default::default() };
    let device = SimDevice::new(options, clock.clone());
    let mut rig = Rig::new(Subject { device, bytes: Bytes::Kept, keep: Box::new(()) }, 1 << 20);
    let read = rig.operation(Opcode::Read, 0, 512, 0);
    assert!(rig.offer(read));
    rig.device.submit();
    for (advance, expected) in [(0, 0), (1_499, 0), (1, 1)] {
        clock.advance(advance);
        rig.reap();
        assert_eq!(rig.accounts.finished.len(), expected);
    }
}

#[test]
fn reordered_operations_end_out_of_turn() {
    let mut rig = rig(Rule::always(Fault::Reorder));
    for nth in 0..32 {
        let read = rig.operation(Opcode::Read, nth * 512, 512, 0);
        assert!(rig.offer(read));
    }
    rig.device.submit();
    rig.reap_until("all reads", |rig| rig.device.in_flight() == 0);
    assert!(
        !rig.accounts.finished.is_sorted_by_key(|finished| finished.tag),
        "seed {}",
        rig.device.seed()
    );
}

#[test]
fn a_corrupt_read_shows_and_the_next_does_not() {
    let mut rig = rig(Rule::once(Fault::Corrupt).on(Opcode::Read));
    rig.fill(0, 0, LENGTH, 1);
    let write = rig.operation(Opcode::Write, 0, LENGTH, 0);
    rig.must(write);
    for right in [false, true] {
        let read = rig.operation(Opcode::Read, 0, LENGTH, 0);
        rig.must(read);
        assert_eq!(rig.holds(0, 0, LENGTH, 1), right);
    }
}

#[test]
fn a_corrupt_write_stays() {
    let rig = after_write_under(Fault::Corrupt);
    assert!(!rig.holds(0, 0, LENGTH, 2) && !rig.holds(0, 0, LENGTH, 1));
}

#[test]
fn a_torn_write_is_half_new_and_half_old() {
    let (rig, half) = (after_write_under(Fault::Torn), LENGTH / 2);
    assert!(rig.holds(0, 0, half, 2) && rig.holds(half, half as u64, half, 1));
}

#[test]
fn a_lost_write_was_acknowledged_and_is_not_there() {
    assert!(after_write_under(Fault::Lost).holds(0, 0, LENGTH, 1));
}

#[test]
fn a_misdirected_write_is_behind_its_place() {
    let rig = after_write_under(Fault::Misdirected);
    assert!(rig.holds(0, 0, LENGTH, 1) && rig.holds(LENGTH, 0, LENGTH, 2));
}

#[test]
fn a_removed_device_ends_everything_with_device_gone() {
    let mut rig = rig(Rule::once(Fault::Gone).after(10));
    let mut reads = Vec::new();
    for nth in 0..40 {
        reads.push(rig.operation(Opcode::Read, nth * 512, 512, 0));
    }
    let ended = rig.run(&reads);
    let good = ended.iter().take_while(|finished| finished.status == Status::Ok).count();
    assert_eq!(good, 10);
    assert!(ended[good..].iter().all(|finished| finished.status == Status::DeviceGone));
    let flush = rig.operation(Opcode::Flush, 0, 0, 0);
    assert_eq!(rig.run(&[flush])[0].status, Status::DeviceGone);
}

#[test]
fn removal_from_outside_ends_what_hangs() {
    let mut rig = rig(Rule::always(Fault::Hang));
    let read = rig.operation(Opcode::Read, 0, 2 << 20, 0);
    assert!(!rig.region.bytes().is_multiple_of(2 << 20), "only the device's own limits matter");
    let read = kvrail_device::Operation { length: 1 << 20, ..read };
    assert!(rig.offer(read));
    rig.device.submit();
    rig.reap();
    rig.device.control().remove();
    rig.reap();
    assert_eq!(rig.accounts.finished[0].status, Status::DeviceGone);
}

#[test]
fn the_seed_decides() {
    let trace = |seed| {
        let plan = FaultPlan::none()
            .with(Rule::chance(Fault::Reorder, 500_000))
            .with(Rule::chance(Fault::Error(Status::IoError), 200_000));
        let options = SimOptions { plan, seed, ..Default::default() };
        let device = SimDevice::new(options, FakeClock::default());
        let keep: Box<dyn std::any::Any> = Box::new(());
        let mut rig = Rig::new(Subject { device, bytes: Bytes::Kept, keep }, 1 << 20);
        assert!(rig.device.description().features[0].contains(&format!("{seed:#x}")));
        for nth in 0..64 {
            let read = rig.operation(Opcode::Read, nth * 512, 512, 0);
            assert!(rig.offer(read));
        }
        rig.device.submit();
        rig.reap_until("all reads", |rig| rig.device.in_flight() == 0);
        rig.accounts.finished
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

proptest! {
    /// Any mix of faults: every operation ends once, an OK one has the right data unless the fault
    /// corrupts them silently, and nothing hangs once released.
    #[test]
    fn every_operation_ends_under_any_plan(
        seed: u64,
        chances in prop::array::uniform5(0_u32..400_000),
        blocks in prop::collection::vec((0_u64..64, 1_usize..200), 1..60),
    ) {
        let [short, nothing, error, hang, reorder] = chances;
        let plan = FaultPlan::none()
            .with(Rule::chance(Fault::Short, short))
            .with(Rule::chance(Fault::Nothing, nothing))
            .with(Rule::chance(Fault::Error(Status::IoError), error))
            .with(Rule::chance(Fault::Hang, hang))
            .with(Rule::chance(Fault::Reorder, reorder));
        let options = SimOptions { plan, seed, transfer_bytes_max: 8192, ..Default::default() };
        let device = SimDevice::new(options, FakeClock::default());
        let keep: Box<dyn std::any::Any> = Box::new(());
        let mut rig = Rig::new(Subject { device, bytes: Bytes::Kept, keep }, 1 << 20);
        let control = rig.device.control();
        let mut waiting: Vec<_> = blocks
            .iter()
            .map(|(place, blocks)| rig.operation(Opcode::Read, place << 18, blocks * 512, 0))
            .collect();
        while !waiting.is_empty() || rig.device.in_flight() > 0 {
            while let Some(operation) = waiting.pop() {
                if !rig.offer(operation) {
                    waiting.push(operation);
                    break;
                }
            }
            rig.device.submit();
            rig.reap();
            control.release();
        }
        prop_assert_eq!(rig.accounts.finished.len(), blocks.len());
    }
}
