//! What all arms share: the file, its bytes, and GPU memory with the case's layout.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kvrail_gpu::cuda::Cuda;
use kvrail_gpu::{Gpu, GpuRegion, OwnMemory};
use rustix::fs::{Advice, OFlags, fadvise};

use super::case::{Case, KV_BLOCKS, Run, Way};

/// Bytes whose content is computed at once.
const PIECE: usize = 1 << 20;

/// The file under the volume.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Bytes of a piece of the file: noise that names its place.
fn piece(number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number ^ 0x6b76_7261_696c);
    let mut bytes = vec![0; PIECE];
    random.fill(&mut bytes);
    bytes
}

/// Bytes of a range of the file.
fn content(offset: u64, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes);
    let mut at = offset;
    while out.len() < bytes {
        let whole = piece(at / PIECE as u64);
        let from = usize::try_from(at % PIECE as u64).expect("below the piece");
        let take = (PIECE - from).min(bytes - out.len());
        out.extend_from_slice(&whole[from..from + take]);
        at += take as u64;
    }
    out
}

impl Ground {
    /// Writes the file.
    pub(super) fn new(directory: &Path, bytes: u64) -> Result<Self> {
        let path = directory.join("kvrail-bench-gpu.dat");
        let named = || format!("{}: cannot be written", path.display());
        let bytes = bytes / PIECE as u64 * PIECE as u64;
        let ground = Self { path: path.clone(), bytes };
        let file = File::create(&path).with_context(named)?;
        ground.fill(&file).with_context(named)?;
        Ok(ground)
    }

    fn fill(&self, file: &File) -> std::io::Result<()> {
        for number in 0..self.bytes / PIECE as u64 {
            file.write_all_at(&piece(number), number * PIECE as u64)?;
        }
        file.sync_all()
    }

    /// Brings the bytes back that a case wrote over.
    pub(super) fn restore(&self) -> Result<()> {
        let file = OpenOptions::new().write(true).open(&self.path)?;
        Ok(self.fill(&file)?)
    }

    /// The file with O_DIRECT.
    pub(super) fn direct(&self) -> Result<OwnedFd> {
        let flags = i32::try_from(OFlags::DIRECT.bits()).expect("a flag");
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path);
        Ok(file.with_context(|| format!("{}: O_DIRECT", self.path.display()))?.into())
    }

    /// The file through the page cache, which forgets it first.
    pub(super) fn buffered(&self) -> Result<OwnedFd> {
        let file = OpenOptions::new().read(true).write(true).open(&self.path)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        Ok(file.into())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// GPU memory of one case.
#[derive(Debug)]
pub(super) struct Cache {
    pub(super) memory: Box<dyn OwnMemory>,
    pub(super) region: Arc<GpuRegion>,
    case: Case,
}

impl Cache {
    pub(super) fn new(cuda: &Cuda, case: Case) -> Result<Self> {
        let bytes = u64::from(case.block_bytes) * u64::from(KV_BLOCKS);
        let mut memory = cuda.allocate(bytes)?;
        let noise = content(1 << 40, usize::try_from(bytes)?);
        memory.write(0, &noise)?;
        let region = cuda.import(vec![memory.export()?], case.layout(), KV_BLOCKS)?;
        Ok(Self { memory, region, case })
    }

    /// The bytes of a KV block, read back.
    fn block(&self, block: u32) -> Result<Vec<u8>> {
        let mut out = vec![0; self.case.block_bytes as usize];
        for run in self.region.layout().runs(block, 0, self.case.block_bytes) {
            let from = usize::try_from(run.at)?;
            let to = from + usize::try_from(run.bytes)?;
            self.memory.read(run.offset, &mut out[from..to])?;
        }
        Ok(out)
    }

    /// Every KV block that was moved holds what its volume block holds.
    pub(super) fn verify(&self, ground: &Ground, run: &Run) -> Result<u64> {
        let file = File::open(&ground.path)?;
        let mut verified = 0;
        for (block, volume_block) in (0..).zip(&run.last) {
            let Some(volume_block) = volume_block else { continue };
            let seen = self.block(block)?;
            let offset = volume_block * u64::from(self.case.block_bytes);
            let expected = match self.case.way {
                Way::Read => content(offset, seen.len()),
                Way::Write => {
                    let mut stored = vec![0; seen.len()];
                    file.read_exact_at(&mut stored, offset)?;
                    stored
                }
            };
            ensure!(seen == expected, "block {block} differs from volume block {volume_block}");
            verified += seen.len() as u64;
        }
        Ok(verified)
    }
}
