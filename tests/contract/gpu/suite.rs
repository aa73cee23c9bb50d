//! The contract as cases. Each takes a GPU and the mechanism to be used.

use std::sync::Arc;

use kvrail_device::{BUFFERS_MAX, BufferIndex, Device, DeviceError, RemoteMemory};
use kvrail_gpu::{CopyRoute, DirectPath, EmulatedGpu, Gpu, MechanismChoice, StagingOptions};
use kvrail_memory::store;
use kvrail_ring::{Opcode, Status};

use super::layouts::{Plan, plans};
use super::rig::{AT, HOST, Rig, noise};

/// A pool that every large block needs several slots of.
pub(crate) const SMALL: StagingOptions = StagingOptions { slot_bytes: 256 << 10, slots: 6 };

/// Declares every case for one factory `fn() -> Option<(Arc<dyn Gpu>, MechanismChoice)>`; a factory
/// that returns `None` prints the reason.
macro_rules! gpu_conformance {
    ($factory:path) => {
        gpu_conformance!(@cases $factory:
            whole_blocks_travel, parts_of_blocks_travel, many_at_once_with_few_slots,
            host_and_gpu_together, detach_waits_for_the_last_use, mistakes_are_errors,
            the_route_is_in_the_description,
        );
    };
    (@cases $factory:path: $($case:ident,)*) => {
        $(#[test]
        fn $case() {
            if let Some((gpu, wanted)) = $factory() {
                crate::gpu::suite::$case(&*gpu, wanted);
            }
        })*
    };
}

fn rig(gpu: &dyn Gpu, wanted: MechanismChoice, plan: &Plan) -> Rig {
    Rig::new(gpu, wanted, plan, SMALL)
}

/// Writes a block to the volume and reads it into another block, for every layout; checks every
/// byte around it, too.
pub(crate) fn whole_blocks_travel(gpu: &dyn Gpu, wanted: MechanismChoice) {
    for plan in plans() {
        let mut rig = rig(gpu, wanted, &plan);
        let (bytes, last) = (rig.block_bytes(), plan.blocks - 1);
        for (block, other) in [(1, 0), (last, 2), (0, last)] {
            let offset = u64::from(block) * u64::from(bytes);
            let write = rig.operation(Opcode::Write, (block, 0, bytes), offset);
            rig.must(&[write]);
            let read = rig.operation(Opcode::Read, (other, 0, bytes), offset);
            rig.must(&[read]);
            rig.check(plan.name);
        }
    }
}

/// Ranges that begin and end inside of fragments, as stripes cut them.
pub(crate) fn parts_of_blocks_travel(gpu: &dyn Gpu, wanted: MechanismChoice) {
    for plan in plans() {
        let mut rig = rig(gpu, wanted, &plan);
        let bytes = rig.block_bytes();
        for (nth, length) in (0..).zip([512, 1536, 3584, bytes / 2 / 512 * 512]) {
            let starts = [0, 16, 528, bytes - length];
            for start in starts.into_iter().filter(|start| start + length <= bytes) {
                let range = (nth % plan.blocks, u64::from(start), length);
                let write = rig.operation(Opcode::Write, range, 8192);
                let read = rig.operation(Opcode::Read, (plan.blocks - 1, range.1, length), 8192);
                rig.must(&[write]);
                rig.must(&[read]);
            }
        }
        rig.check(plan.name);
    }
}

/// More bytes than the pool holds, both ways at once; backpressure must not lose or mix anything.
pub(crate) fn many_at_once_with_few_slots(gpu: &dyn Gpu, wanted: MechanismChoice) {
    for plan in plans() {
        let mut rig = rig(gpu, wanted, &plan);
        let bytes = rig.block_bytes();
        let whole = |rig: &mut Rig, opcode, block, place: u32| {
            let offset = u64::from(place) * u64::from(bytes);
            rig.operation(opcode, (block, 0, bytes), offset)
        };
        for round in 0..12 {
            let half = plan.blocks / 2;
            let writes = |block| (round + block) % 2 == 0;
            let operations: Vec<_> = (0..2 * half)
                .map(|block| {
                    let opcode = if writes(block) { Opcode::Write } else { Opcode::Read };
                    whole(&mut rig, opcode, block, block)
                })
                .collect();
            rig.must(&operations);
        }
        rig.check(plan.name);
        assert_eq!(rig.staging.free(), 6, "every slot came back");
        assert_eq!(rig.health.counts().failed, 0);
    }
}

/// Host operations pass through while GPU operations are in flight.
pub(crate) fn host_and_gpu_together(gpu: &dyn Gpu, wanted: MechanismChoice) {
    let plan = &plans()[0];
    let mut rig = rig(gpu, wanted, plan);
    let bytes = rig.block_bytes();
    let expected = noise(99, 64 * 4096);
    store(&*rig.host, 0, &expected);
    for opcode in [Opcode::Write, Opcode::Read] {
        let mut operations = Vec::new();
        for nth in 0..64 {
            operations.push(rig.host_operation(opcode, nth));
            if nth % 16 == 0 {
                let block = u32::try_from(nth / 16).expect("small");
                let offset = u64::from(block) * u64::from(bytes);
                operations.push(rig.operation(opcode, (block, 0, bytes), offset));
            }
        }
        let ended = rig.run(&operations);
        assert!(ended.iter().all(|finished| finished.status == Status::Ok), "{ended:?}");
        if opcode == Opcode::Write {
            store(&*rig.host, 0, &[0xee; 64 * 4096]);
        }
    }
    let mut seen = vec![0; expected.len()];
    kvrail_memory::load(&*rig.host, 0, &mut seen);
    assert!(seen == expected, "host blocks came back changed");
}

/// `Detached` comes after the last operation, and nothing holds the region then.
pub(crate) fn detach_waits_for_the_last_use(gpu: &dyn Gpu, wanted: MechanismChoice) {
    let plan = &plans()[1];
    let mut rig = rig(gpu, wanted, plan);
    let bytes = rig.block_bytes();
    let mut count = 0;
    for block in 0..3 {
        let read = rig.operation(Opcode::Read, (block, 0, bytes), 0);
        count += usize::from(rig.offer(read));
    }
    assert!(count > 0, "an idle bridge takes something");
    rig.bridge.detach(AT).expect("attached");
    assert!(rig.bridge.detach(AT).is_err(), "detached twice");
    rig.turn_until("detach", |rig| !rig.accounts.detached.is_empty());
    assert_eq!((rig.accounts.detached.as_slice(), rig.accounts.finished.len()), (&[AT][..], count));
    assert_eq!(Arc::strong_count(&rig.region), 1, "the bridge has dropped the region");
    let region = Arc::clone(&rig.region) as Arc<dyn RemoteMemory>;
    rig.bridge.attach_remote(AT, region).expect("free again");
    rig.bridge.detach(AT).expect("attached");
    rig.turn_until("an idle detach", |rig| rig.accounts.detached.len() == 2);
    rig.bridge.detach(HOST).expect("attached");
    rig.turn_until("a host detach", |rig| rig.accounts.detached.len() == 3);
}

pub(crate) fn mistakes_are_errors(gpu: &dyn Gpu, wanted: MechanismChoice) {
    let plan = &plans()[4];
    let mut rig = rig(gpu, wanted, plan);
    let region = Arc::clone(&rig.region) as Arc<dyn RemoteMemory>;
    let taken = rig.bridge.attach_remote(AT, Arc::clone(&region)).unwrap_err().to_string();
    assert!(taken.contains(&format!("entry {BUFFERS_MAX}")) && taken.contains("taken"), "{taken}");
    assert!(rig.bridge.attach_remote(BufferIndex(BUFFERS_MAX + 512), region).is_err());
    assert!(rig.bridge.detach(BufferIndex(BUFFERS_MAX + 1)).is_err(), "nothing attached");
    // Memory of a GPU that the device has no port to.
    let other = EmulatedGpu::new(7, DirectPath::Direct);
    let memory = other.allocate(1 << 20).unwrap().export().unwrap();
    let stranger = other.import(vec![memory], plan.fragments.clone(), 1).unwrap();
    let error = rig.bridge.attach_remote(BufferIndex(BUFFERS_MAX + 1), stranger).unwrap_err();
    assert!(matches!(error, DeviceError::NoRemote { .. }), "{error}");
    // A layout that leaves its memory.
    let memory = gpu.allocate(2 << 20).unwrap().export().unwrap();
    let error = gpu.import(vec![memory], plan.fragments.clone(), 4000).unwrap_err().to_string();
    assert!(error.contains("ends at byte"), "{error}");
}

/// The device's description names the route and the reason for it.
pub(crate) fn the_route_is_in_the_description(gpu: &dyn Gpu, wanted: MechanismChoice) {
    let rig = rig(gpu, wanted, &plans()[4]);
    let features = rig.bridge.description().features.join("\n");
    let route = if rig.choice.route == CopyRoute::Staged { "staged" } else { "direct" };
    let uuid = gpu.identity().uuid.to_string();
    assert!(features.contains(&uuid) && features.contains(route), "{features}");
    assert!(features.contains(&rig.choice.reason), "{features}");
}
