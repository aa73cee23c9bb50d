//! The stand-in: everywhere.

use std::sync::Arc;

use kvrail_gpu::{DirectPath, Gpu, MechanismChoice, Route, StagingOptions, StandIn};

use super::layouts::plans;
use super::rig::Rig;

fn gpu(path: DirectPath) -> Arc<dyn Gpu> {
    Arc::new(StandIn::new(0, path))
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

fn route(path: DirectPath, wanted: MechanismChoice) -> (Route, String) {
    let pool = StagingOptions { slot_bytes: 4096, slots: 2 };
    let rig = Rig::new(&*gpu(path), wanted, &plans()[4], pool);
    (rig.choice.route, rig.choice.reason)
}

#[test]
fn auto_is_direct_only_past_host_memory() {
    assert!(matches!(route(DirectPath::Direct, MechanismChoice::Auto).0, Route::Direct(_)));
    let (staged, reason) = route(DirectPath::Compat, MechanismChoice::Auto);
    assert_eq!(staged, Route::Staged);
    assert!(reason.starts_with("auto: "), "{reason}");
}

#[test]
#[should_panic(expected = "is required and not possible")]
fn required_direct_does_not_fall_back() {
    route(DirectPath::Compat, MechanismChoice::RequireDirect);
}

#[test]
fn handles_of_the_dead_or_of_the_wrong_size_are_refused() {
    let standin = StandIn::new(0, DirectPath::Direct);
    let fragments = || plans()[4].fragments.clone();
    let memory = standin.allocate_legacy(1 << 20).unwrap();
    let handle = memory.export().unwrap();
    assert!(standin.import(vec![memory.export().unwrap()], fragments(), 1).is_ok());
    drop(memory);
    let error = standin.import(vec![handle], fragments(), 1).unwrap_err().to_string();
    assert!(error.contains("memory 0") && error.contains("living"), "{error}");
    let memory = standin.allocate(1 << 20).unwrap();
    let kvrail_gpu::GpuHandle::Vmm { fd, .. } = memory.export().unwrap() else { panic!() };
    let large = kvrail_gpu::GpuHandle::Vmm { fd, bytes: 2 << 20 };
    let error = standin.import(vec![large], fragments(), 1).unwrap_err().to_string();
    assert!(error.contains("2097152 bytes at offset 0 leave"), "{error}");
}
