//! Errors of a GPU, each with its remedy.

use std::path::PathBuf;

use kvrail_cufile::CuFileError;
use kvrail_layout::LayoutError;
use kvrail_memory::MemoryError;
use thiserror::Error;

use crate::handle::GpuUuid;

/// A failed call of the CUDA driver.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{call}: {name} ({code})")]
pub struct CudaError {
    /// The function.
    pub call: &'static str,
    /// Its status.
    pub code: u32,
    /// The driver's name for it.
    pub name: String,
}

/// Why a GPU, its memory or a mechanism cannot be used.
#[derive(Debug, Error)]
pub enum GpuError {
    /// No driver.
    #[error(
        "no CUDA driver: libcuda.so.1 cannot be loaded; install the NVIDIA driver, or give the \
         container its libraries (runtime class nvidia)"
    )]
    NoDriver,
    /// A driver that lacks something.
    #[error("the CUDA driver has no {symbol}; it is older than CUDA 12.4, install driver 550 on")]
    OldDriver {
        /// The function it lacks.
        symbol: &'static str,
    },
    /// No such GPU.
    #[error("there is no GPU {wanted}; this machine has {present}")]
    NoSuchGpu {
        /// The requested index or UUID.
        wanted: String,
        /// The GPUs present.
        present: String,
    },
    /// Memory of another GPU than was named.
    #[error("the handle is memory of {actual}, but GPU {named} was named; name that GPU")]
    WrongGpu {
        /// The GPU named.
        named: GpuUuid,
        /// Where the memory is.
        actual: String,
    },
    /// A handle that cannot be opened, or of another size.
    #[error("memory {index}: {reason}")]
    Handle {
        /// Which of the region's memories.
        index: usize,
        /// The fault, and the remedy.
        reason: String,
    },
    /// The layout is wrong.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A CUDA call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// A cuFile call failed.
    #[error(transparent)]
    CuFile(#[from] CuFileError),
    /// No memory for staging.
    #[error("the staging pool: {0}")]
    Staging(#[from] MemoryError),
    /// cuFile looks for a device in udev's database and does not find it.
    #[error(
        "cuFile cannot register {device}: udev has no entry {}; mount /run/udev into the \
         container, or write the entry: E:ID_FS_USAGE=filesystem and E:ID_FS_TYPE=ext4 (or xfs)",
        entry.display()
    )]
    NoUdevEntry {
        /// The device.
        device: String,
        /// The file that is missing.
        entry: PathBuf,
    },
    /// Direct was required and is not to be had.
    #[error(
        "direct I/O between {device} and GPU {gpu} is required and not possible: {reason}; \
         load nvidia-fs or enable PCI peer-to-peer, or set mechanism = \"auto\""
    )]
    NotDirect {
        /// The device.
        device: String,
        /// The GPU.
        gpu: GpuUuid,
        /// The missing part.
        reason: String,
    },
    /// The GPU failed before.
    #[error("GPU {gpu} has failed: {reason}; restart the sidecar once the GPU is reset")]
    Failed {
        /// Which.
        gpu: GpuUuid,
        /// The first error.
        reason: String,
    },
}
