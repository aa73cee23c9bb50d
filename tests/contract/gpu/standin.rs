//! The cases that run everywhere, on the stand-in.

use std::sync::Arc;

use kvrail_device::Device;
use kvrail_gpu::{CopyRoute, DirectPath, EmulatedGpu, Gpu, MechanismChoice, StagingOptions};

use super::layouts::plans;
use super::rig::{AT, Rig};

fn gpu(path: DirectPath) -> Arc<dyn Gpu> {
    Arc::new(EmulatedGpu::new(0, path))
}

mod staged {
    use super::{Arc, DirectPath, Gpu, MechanismChoice};

    fn open() -> Option<(Arc<dyn Gpu>, MechanismChoice)> {
        Some((super::gpu(DirectPath::Direct), MechanismChoice::Staged))
    }

    gpu_conformance!(open);
}

mod direct {
    use super::{Arc, DirectPath, Gpu, MechanismChoice};

    fn open() -> Option<(Arc<dyn Gpu>, MechanismChoice)> {
        Some((super::gpu(DirectPath::Direct), MechanismChoice::RequireDirect))
    }

    gpu_conformance!(open);
}

mod compat {
    use super::{Arc, DirectPath, Gpu, MechanismChoice};

    fn open() -> Option<(Arc<dyn Gpu>, MechanismChoice)> {
        Some((super::gpu(DirectPath::Compat), MechanismChoice::AllowCompat))
    }

    gpu_conformance!(open);
}

fn route(path: DirectPath, wanted: MechanismChoice) -> (CopyRoute, String) {
    let pool = StagingOptions { slot_bytes: 4096, slots: 2 };
    let rig = Rig::new(&*gpu(path), wanted, &plans()[4], pool);
    (rig.choice.route, rig.choice.reason)
}

#[test]
fn auto_is_direct_only_past_host_memory() {
    assert!(matches!(route(DirectPath::Direct, MechanismChoice::Auto).0, CopyRoute::Direct(_)));
    let (staged, reason) = route(DirectPath::Compat, MechanismChoice::Auto);
    assert_eq!(staged, CopyRoute::Staged);
    assert!(reason.starts_with("auto: "), "{reason}");
}

#[test]
#[should_panic(expected = "is required and not possible")]
fn required_direct_does_not_fall_back() {
    route(DirectPath::Compat, MechanismChoice::RequireDirect);
}

/// The GPU's poller gets a small read while the device works on it, and no other request.
#[test]
fn a_small_read_is_expected_at_the_gpu_until_it_is_there() {
    use kvrail_ring::Opcode::{Read, Write};
    let gpu = gpu(DirectPath::Direct);
    let plan = &plans()[0];
    let pool = StagingOptions { slot_bytes: 1 << 20, slots: 4 };
    let mut rig = Rig::new(&*gpu, MechanismChoice::Staged, plan, pool);
    let large = rig.block_bytes();
    assert!(large > 64 << 10, "{} has {large} bytes", plan.name);
    for (opcode, length, expected) in
        [(Read, 4096, true), (Write, 4096, false), (Read, large, false)]
    {
        let operation = rig.operation(opcode, (0, 0, length), 0);
        assert!(rig.offer(operation));
        rig.bridge.submit();
        assert_eq!(rig.poller.expects_jobs(), expected, "{operation:?}");
        assert_eq!(rig.bridge.has_handed_over(), opcode == Write, "{operation:?}");
        rig.turn_until("the read has ended", |rig| rig.accounts.finished.len() == 1);
        rig.accounts.finished.clear();
        assert!(!rig.poller.expects_jobs() && !rig.bridge.has_handed_over());
    }
    assert!(rig.bridge.detach(AT).is_ok());
}

#[test]
fn handles_of_the_dead_or_of_the_wrong_size_are_refused() {
    let standin = EmulatedGpu::new(0, DirectPath::Direct);
    let fragments = || plans()[4].fragments.clone();
    let memory = standin.allocate_legacy(1 << 20).unwrap();
    let handle = memory.export().unwrap();
    assert!(standin.import(vec![memory.export().unwrap()], fragments(), 1).is_ok());
    drop(memory);
    let error = standin.import(vec![handle], fragments(), 1).unwrap_err().to_string();
    // By now another test's file may have the descriptor's number.
    let gone = error.contains("living") || error.contains("leave the allocation");
    assert!(error.contains("memory 0") && gone, "{error}");
    let memory = standin.allocate(1 << 20).unwrap();
    let kvrail_gpu::GpuHandle::Vmm { fd, .. } = memory.export().unwrap() else { panic!() };
    let large = kvrail_gpu::GpuHandle::Vmm { fd, bytes: 2 << 20 };
    let error = standin.import(vec![large], fragments(), 1).unwrap_err().to_string();
    assert!(error.contains("2097152 bytes at offset 0 leave"), "{error}");
}
