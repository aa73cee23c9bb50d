//! The arms: what each is called, where it takes part, and how it runs once.

use anyhow::{Context, Result};
use kvrail_cufile::File;
use kvrail_gpu::cuda::Cuda;
use kvrail_gpu::{FileIndex, Gpu};

use super::case::{Case, Field, Shape};
use super::ground::{Cache, Ground};
use super::kvrail::Memory;
use super::meter::{Counts, Meter};
use super::pollers::Pollers;
use super::{copies, cufile, host_pool, kvrail};

/// One way to move blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// kvrail into host memory: the ceiling, moves no byte to a GPU.
    Host,
    Staged,
    /// Staged, by kernels alone.
    Kernels,
    Direct,
    Auto,
    Batch,
    Calls,
    Buffered,
    Blocking,
    /// Staged without a device.
    Null,
    NullKernels,
    /// Plain copies, no device, no poller.
    Plain,
    /// One block after the other, no device, no poller.
    Mover,
    MoverKernels,
}

impl Arm {
    pub(super) const ALL: [Self; 14] = [
        Self::Host,
        Self::Staged,
        Self::Kernels,
        Self::Auto,
        Self::Direct,
        Self::Batch,
        Self::Calls,
        Self::Buffered,
        Self::Blocking,
        Self::Null,
        Self::NullKernels,
        Self::Plain,
        Self::Mover,
        Self::MoverKernels,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Staged => "staged",
            Self::Kernels => "staged:kernels",
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Batch => "cufile:batch",
            Self::Calls => "cufile:calls",
            Self::Buffered => "threads:buffered",
            Self::Blocking => "threads:direct",
            Self::Null => "null",
            Self::NullKernels => "null:kernels",
            Self::Plain => "copies:plain",
            Self::Mover => "copies:mover",
            Self::MoverKernels => "copies:kernels",
        }
    }

    /// What it is, for who reads the results.
    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::Host => "kvrail, file to host memory; the ceiling, no byte goes to the GPU",
            Self::Staged => "kvrail, through staging slots",
            Self::Kernels => "kvrail, through staging slots, all copies by kernels",
            Self::Auto => "kvrail, by its own choice",
            Self::Direct => "kvrail, cuFile batches into GPU memory",
            Self::Batch => "cuFile batches called directly: 4 handles, 64 entries",
            Self::Calls => "cuFileRead and cuFileWrite called directly, one after the other",
            Self::Buffered => "16 threads: pread or pwrite through the page cache, pinned, copy",
            Self::Blocking => "16 threads: the same with O_DIRECT",
            Self::Null => "kvrail, staged, a device that moves no bytes",
            Self::NullKernels => "the same, all copies by kernels",
            Self::Plain => "plain copies of whole contiguous blocks from or to pinned memory",
            Self::Mover => "the copies of kvrail's GPU poller, one block after the other",
            Self::MoverKernels => "the same by kernels",
        }
    }

    /// Whether its blocks can be compared with the file.
    pub(super) const fn is_verified(self) -> bool {
        matches!(
            self,
            Self::Staged
                | Self::Kernels
                | Self::Auto
                | Self::Direct
                | Self::Batch
                | Self::Calls
                | Self::Buffered
                | Self::Blocking
        )
    }

    /// Whether it has a part in a case. Kernels only where there is something to scatter, and
    /// what has no device only where bytes, not requests, are the load.
    fn is_in(self, case: Case) -> bool {
        let large = case.block_bytes >= 1 << 20;
        let scattered = case.shape != Shape::Contiguous;
        match (case.field, self) {
            (Field::Copies, Self::Plain | Self::Mover | Self::MoverKernels) => true,
            (Field::Copies, _) | (Field::Volume, Self::Mover | Self::MoverKernels) => false,
            (Field::Volume, Self::Kernels | Self::NullKernels) => scattered,
            (Field::Volume, Self::Null | Self::Plain) => large,
            (Field::Volume, _) => true,
        }
    }
}

/// The pollers of kvrail's arms, each pair for itself.
#[derive(Debug)]
pub(super) struct Sets {
    pub(super) staged: Pollers,
    pub(super) auto: Pollers,
    pub(super) null: Pollers,
    pub(super) kernels: Option<(Pollers, Pollers)>,
    pub(super) direct: Option<Direct>,
}

/// cuFile, where it can be used.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) pollers: Pollers,
    /// One for each file of the volume.
    pub(super) files: Vec<FileIndex>,
    /// The same for its blocking calls; none with the stand-in.
    pub(super) plain: Vec<File>,
}

impl Sets {
    /// All of them, with their arms.
    pub(super) fn each(&self) -> Vec<(Arm, &Pollers)> {
        let mut all =
            vec![(Arm::Staged, &self.staged), (Arm::Auto, &self.auto), (Arm::Null, &self.null)];
        if let Some((kernels, null)) = &self.kernels {
            all.extend([(Arm::Kernels, kernels), (Arm::NullKernels, null)]);
        }
        all.extend(self.direct.iter().map(|direct| (Arm::Direct, &direct.pollers)));
        all
    }

    /// Ends all threads.
    pub(super) fn stop(self) -> Result<()> {
        let kernels = self.kernels.into_iter().flat_map(|(file, null)| [file, null]);
        let direct = self.direct.map(|direct| direct.pollers);
        let mut all = [self.staged, self.auto, self.null].into_iter().chain(kernels).chain(direct);
        all.try_for_each(Pollers::stop)
    }
}

/// What the arms of a case run on.
pub(super) struct Round<'a> {
    pub(super) gpu: &'a dyn Gpu,
    /// The same, where it is CUDA: with kernels alone too.
    pub(super) cuda: Option<(&'a Cuda, &'a Cuda)>,
    pub(super) ground: &'a Ground,
    pub(super) cache: &'a Cache,
    /// A cache of contiguous blocks, for plain copies.
    pub(super) contiguous: &'a Cache,
    pub(super) case: Case,
}

impl Round<'_> {
    /// Runs an arm; nothing where this machine or this case has no place for it.
    pub(super) fn run(
        &self,
        arm: Arm,
        sets: &mut Sets,
        meter: Meter<'_>,
    ) -> Result<Option<Counts>> {
        let case = self.case;
        if !arm.is_in(case) {
            return Ok(None);
        }
        let (gpu, host) = (Memory::Gpu, Memory::Host);
        let counts = match arm {
            Arm::Host => kvrail::run(&mut sets.staged, case, host, meter),
            Arm::Staged => kvrail::run(&mut sets.staged, case, gpu, meter),
            Arm::Auto => kvrail::run(&mut sets.auto, case, gpu, meter),
            Arm::Null => kvrail::run(&mut sets.null, case, gpu, meter),
            Arm::Mover => copies::mover(self.gpu, &self.cache.region, case, meter),
            Arm::Kernels | Arm::NullKernels => {
                let Some((kernels, null)) = &mut sets.kernels else { return Ok(None) };
                let pollers = if arm == Arm::Kernels { kernels } else { null };
                kvrail::run(pollers, case, gpu, meter)
            }
            Arm::Direct => {
                let Some(direct) = &mut sets.direct else { return Ok(None) };
                kvrail::run(&mut direct.pollers, case, gpu, meter)
            }
            Arm::Batch | Arm::Calls => {
                let Some(direct) = &sets.direct else { return Ok(None) };
                return self.cufile(arm, direct, meter);
            }
            Arm::Buffered | Arm::Blocking | Arm::Plain | Arm::MoverKernels => {
                let Some((cuda, kernels)) = self.cuda else { return Ok(None) };
                match arm {
                    Arm::Plain => copies::plain(cuda, &self.contiguous.region, case, meter),
                    Arm::MoverKernels => copies::mover(kernels, &self.cache.region, case, meter),
                    _ => {
                        let buffered = arm == Arm::Buffered;
                        let ground = self.ground;
                        let files = if buffered { ground.buffered() } else { ground.direct() }?;
                        host_pool::run(cuda, (ground, &files), self.cache, case, meter)
                    }
                }
            }
        };
        counts.map(Some)
    }

    fn cufile(&self, arm: Arm, direct: &Direct, meter: Meter<'_>) -> Result<Option<Counts>> {
        if arm == Arm::Calls {
            let library = self.cuda.and_then(|(cuda, _)| cuda.cufile());
            let Some(library) = library else { return Ok(None) };
            let volume = (self.ground, &direct.plain[..]);
            return cufile::calls(library, volume, self.cache, self.case, meter).map(Some);
        }
        let gpu = self.gpu.direct().context("cuFile is open")?;
        let volume = (self.ground, &direct.files[..]);
        cufile::batches(gpu, volume, self.cache, self.case, meter).map(Some)
    }
}
