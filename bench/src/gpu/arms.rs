//! The arms: what each is called, where it takes part, and the pollers of those that have some.

use clap::ValueEnum;
use kvrail_cufile::File;
use kvrail_gpu::FileIndex;

use super::case::{BlockShape, Field, GpuCase};
use super::pollers::GpuPollers;

/// One way to move blocks. In the order of the first round; names and words are the report's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum GpuArm {
    /// kvrail, file to host memory; the ceiling, no byte goes to the GPU
    Host,
    /// kvrail, through staging slots
    Staged,
    /// kvrail, through staging slots, all copies by kernels
    #[value(name = "staged:kernels")]
    Kernels,
    /// kvrail, by its own choice
    Auto,
    /// kvrail, cuFile batches into GPU memory
    Direct,
    /// cuFile batches called directly: 4 handles, 64 entries
    #[value(name = "cufile:batch")]
    Batch,
    /// cuFileRead and cuFileWrite called directly, one after the other
    #[value(name = "cufile:calls")]
    Calls,
    /// 16 threads: pread or pwrite through the page cache, pinned, copy
    #[value(name = "threads:buffered")]
    Buffered,
    /// 16 threads: the same with O_DIRECT
    #[value(name = "threads:direct")]
    Blocking,
    /// kvrail, staged, a device that moves no bytes
    Null,
    /// The same, all copies by kernels
    #[value(name = "null:kernels")]
    NullKernels,
    /// Plain copies of whole contiguous blocks from or to pinned memory
    #[value(name = "copies:plain")]
    Plain,
    /// The copies of kvrail's GPU poller, one block after the other
    #[value(name = "copies:mover")]
    Mover,
    /// The same by kernels
    #[value(name = "copies:kernels")]
    MoverKernels,
}

impl GpuArm {
    pub(super) fn name(self) -> String {
        self.words().0
    }

    /// Its name and its description, for readers of the results.
    pub(super) fn words(self) -> (String, String) {
        let value = self.to_possible_value().expect("no arm is hidden");
        let about = value.get_help().map(ToString::to_string);
        (value.get_name().to_owned(), about.unwrap_or_default())
    }

    /// Whether its blocks can be compared with the file.
    pub(super) const fn is_verified(self) -> bool {
        !matches!(
            self,
            Self::Host
                | Self::Null
                | Self::NullKernels
                | Self::Plain
                | Self::Mover
                | Self::MoverKernels
        )
    }

    /// Whether it has a part in a case. Kernels only where there is something to scatter, and
    /// what has no device only where bytes, not requests, are the load.
    pub(super) fn is_in(self, case: GpuCase) -> bool {
        let large = case.block_bytes >= 1 << 20;
        let scattered = case.shape != BlockShape::Contiguous;
        match (case.field, self) {
            (Field::Copies, Self::Plain | Self::Mover | Self::MoverKernels) => true,
            (Field::Copies, _) | (Field::Volume, Self::Mover | Self::MoverKernels) => false,
            (Field::Volume, Self::Kernels | Self::NullKernels) => scattered,
            (Field::Volume, Self::Null | Self::Plain) => large,
            (Field::Volume, _) => true,
        }
    }
}

/// This machine's means for the arms.
#[derive(Debug, Default)]
pub(super) struct Sets {
    /// The pollers of kvrail's arms, each pair for itself.
    pub(super) pollers: Vec<(GpuArm, GpuPollers)>,
    /// The volume's files for batches of cuFile; none where it cannot be used.
    pub(super) batched: Vec<FileIndex>,
    /// The same for its blocking calls; none with the stand-in.
    pub(super) called: Vec<File>,
}

impl Sets {
    /// The pollers of an arm.
    pub(super) fn of(&mut self, arm: GpuArm) -> Option<&mut GpuPollers> {
        // The ceiling is the same way to other memory.
        let arm = if arm == GpuArm::Host { GpuArm::Staged } else { arm };
        self.pollers.iter_mut().find(|(known, _)| *known == arm).map(|(_, pollers)| pollers)
    }
}
