//! Faults that only the stand-in makes: a GPU that fails or hangs, batches with wrong results.

use kvrail_gpu::{DirectPath, EmulatedGpu, GpuFault, MechanismChoice};
use kvrail_ring::{Opcode, Status};

use super::layouts::plans;
use super::rig::Rig;
use super::suite::SMALL;
use kvrail_device::{Device, Finished};

fn rig(wanted: MechanismChoice) -> (Rig, std::sync::Arc<kvrail_gpu::GpuControl>) {
    let gpu = EmulatedGpu::new(0, DirectPath::Direct);
    (Rig::new(&gpu, wanted, &plans()[0], SMALL), gpu.control())
}

fn staged() -> (Rig, std::sync::Arc<kvrail_gpu::GpuControl>) {
    rig(MechanismChoice::Staged)
}

fn direct() -> (Rig, std::sync::Arc<kvrail_gpu::GpuControl>) {
    rig(MechanismChoice::RequireDirect)
}

/// Reads or writes of the first blocks.
fn blocks(rig: &mut Rig, opcode: Opcode, count: u32) -> Vec<Finished> {
    let bytes = rig.block_bytes();
    let operations: Vec<_> = (0..count)
        .map(|block| {
            let offset = u64::from(block) * u64::from(bytes);
            rig.operation(opcode, (block, 0, bytes), offset)
        })
        .collect();
    rig.run(&operations)
}

fn host_works(rig: &mut Rig) {
    let write = rig.host_operation(Opcode::Write, 3);
    assert_eq!(rig.run(&[write])[0].status, Status::Ok, "host traffic is undisturbed");
}

#[test]
fn a_sticky_error_fails_the_gpu_and_nothing_else() {
    for (fault, opcode) in [
        (GpuFault::Launch, Opcode::Read),
        (GpuFault::Launch, Opcode::Write),
        (GpuFault::Running, Opcode::Read),
        (GpuFault::Running, Opcode::Write),
    ] {
        let (mut rig, control) = staged();
        control.inject(fault);
        let ended = blocks(&mut rig, opcode, 4);
        let failed = ended.iter().all(|finished| finished.status == Status::GpuError);
        assert!(failed, "{fault:?}: {ended:?}");
        let reason = rig.health.failure().expect("the GPU is marked failed");
        assert!(reason.contains("by order"), "{reason}");
        host_works(&mut rig);
        let later = blocks(&mut rig, opcode, 1);
        assert_eq!((later[0].status, later[0].bytes), (Status::GpuError, 0));
        assert_eq!(rig.staging.free(), 6, "every slot came back");
    }
}

#[test]
fn a_gpu_that_hangs_keeps_its_requests_and_nothing_else() {
    let (mut rig, control) = staged();
    control.inject(GpuFault::Hang);
    let bytes = rig.block_bytes();
    let read = rig.operation(Opcode::Read, (0, 0, bytes), 0);
    assert!(rig.offer(read));
    for _ in 0..2000 {
        rig.turn();
    }
    assert!(rig.accounts.finished.is_empty(), "no end before the hardware's last event");
    host_works(&mut rig);
    assert!(rig.health.works() && rig.bridge.in_flight() == 1);
    control.release();
    rig.turn_until("the hung read", |rig| rig.bridge.in_flight() == 0);
    assert_eq!(rig.accounts.finished[0].status, Status::Ok);
}

#[test]
fn a_short_or_failed_entry_is_an_error() {
    for fault in [GpuFault::Short, GpuFault::Entry] {
        let (mut rig, control) = direct();
        control.inject(fault);
        let ended = blocks(&mut rig, Opcode::Read, 1)[0];
        assert_eq!(ended.status, Status::IoError, "{fault:?}");
        assert_eq!(blocks(&mut rig, Opcode::Write, 4)[3].status, Status::Ok, "others go on");
        assert_eq!(rig.health.direct_failure(), None);
    }
}

#[test]
fn a_refused_batch_fails_its_requests_and_retires_one_handle() {
    let (mut rig, control) = direct();
    control.inject(GpuFault::Submit);
    assert_eq!(blocks(&mut rig, Opcode::Write, 1)[0].status, Status::IoError);
    assert_eq!(blocks(&mut rig, Opcode::Write, 4)[0].status, Status::Ok, "others take over");
    assert_eq!(rig.health.direct_failure(), None);
    for _ in 0..7 {
        control.inject(GpuFault::Submit);
        assert_eq!(blocks(&mut rig, Opcode::Write, 1)[0].status, Status::IoError);
    }
    let reason = rig.health.direct_failure().expect("no handle is left");
    assert!(reason.contains("refuse"), "{reason}");
    assert_eq!(blocks(&mut rig, Opcode::Write, 1)[0].status, Status::GpuError);
    host_works(&mut rig);
}

#[test]
fn a_hung_batch_keeps_its_requests() {
    let (mut rig, control) = direct();
    control.inject(GpuFault::HungBatch);
    let bytes = rig.block_bytes();
    let read = rig.operation(Opcode::Read, (0, 0, bytes), 0);
    assert!(rig.offer(read));
    for _ in 0..200 {
        rig.turn();
    }
    assert!(rig.accounts.finished.is_empty(), "nothing cancels or times out");
    // Other handles carry later requests.
    let write = rig.operation(Opcode::Write, (1, 0, bytes), 1 << 20);
    assert!(rig.offer(write));
    rig.turn_until("the other request", |rig| rig.accounts.finished.len() == 1);
    assert_eq!(rig.accounts.finished[0].tag, write.tag);
    control.release();
    rig.turn_until("the hung read", |rig| rig.accounts.finished.len() == 2);
    assert_eq!(rig.accounts.finished[1].status, Status::Ok);
}

#[test]
fn a_batch_without_status_keeps_its_memory() {
    let (mut rig, control) = direct();
    let bytes = rig.block_bytes();
    let read = rig.operation(Opcode::Read, (0, 0, bytes), 0);
    assert!(rig.offer(read));
    control.inject(GpuFault::Status);
    for _ in 0..200 {
        rig.turn();
    }
    assert!(
        rig.accounts.finished.is_empty(),
        "the states of the entries are unknown, so none is reported"
    );
    assert_eq!(blocks(&mut rig, Opcode::Write, 2)[1].status, Status::Ok, "others go on");
}
