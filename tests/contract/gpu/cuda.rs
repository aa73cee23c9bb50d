//! CUDA, where a GPU is; elsewhere each case prints why it is skipped.

use std::sync::{Arc, OnceLock};

use kvrail_cufile::Compat;
use kvrail_gpu::cuda::{Copies, Cuda};
use kvrail_gpu::{Gpu, GpuError, MechanismChoice};

fn plain(copies: Copies) -> Option<Arc<dyn Gpu>> {
    match Cuda::open(0) {
        Ok(cuda) => Some(Arc::new(cuda.with_copies(copies))),
        Err(error @ (GpuError::NoDriver | GpuError::NoSuchGpu { .. })) => {
            println!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// cuFile opens once in a process.
fn with_direct() -> Option<Arc<dyn Gpu>> {
    static OPENED: OnceLock<Option<Arc<Cuda>>> = OnceLock::new();
    plain(Copies::Auto)?;
    let open = || match Cuda::open(0).and_then(|cuda| cuda.with_direct(Compat::Allowed)) {
        Ok(cuda) => Some(Arc::new(cuda)),
        Err(error) => {
            println!("skipped: {error}");
            None
        }
    };
    Some(OPENED.get_or_init(open).clone()?)
}

mod staged {
    use super::{Arc, Copies, Gpu, MechanismChoice};

    fn open() -> Option<(Arc<dyn Gpu>, MechanismChoice)> {
        Some((super::plain(Copies::Auto)?, MechanismChoice::Staged))
    }

    gpu_conformance!(open);
}

mod kernels {
    use super::{Arc, Copies, Gpu, MechanismChoice};

    fn open() -> Option<(Arc<dyn Gpu>, MechanismChoice)> {
        Some((super::plain(Copies::Kernels)?, MechanismChoice::Staged))
    }

    gpu_conformance!(open);
}

mod compat {
    use super::{Arc, Gpu, MechanismChoice};

    fn open() -> Option<(Arc<dyn Gpu>, MechanismChoice)> {
        Some((super::with_direct()?, MechanismChoice::AllowCompat))
    }

    gpu_conformance!(open);
}

/// The error for an absent GPU names it and the GPUs that are there.
#[test]
fn a_gpu_that_does_not_exist() {
    if plain(Copies::Auto).is_none() {
        return;
    }
    let error = Cuda::open(4711).unwrap_err().to_string();
    assert!(error.contains("no GPU 4711") && error.contains("this machine has"), "{error}");
}
