//! What all arms share: the file, its bytes, and GPU memory with the case's layout.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result};
use kvrail_gpu::{Gpu, GpuRegion, OwnMemory};
use rustix::fs::{Advice, OFlags, fadvise};

use super::case::{Case, KV_BLOCKS, Way};

/// Bytes whose content is computed at once.
const PIECE: usize = 64 << 10;

/// The file under the volume.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Bytes that name their place.
const STAMPED: usize = 512;

/// Bytes of a piece of the file: noise, every sector of which names its place.
fn piece(number: u64) -> Vec<u8> {
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut bytes = vec![0; PIECE];
        fastrand::Rng::with_seed(0x6b76_7261_696c).fill(&mut bytes);
        bytes
    });
    let mut bytes = NOISE.clone();
    for (sector, stamped) in (number * (PIECE / STAMPED) as u64..).zip(bytes.chunks_mut(STAMPED)) {
        stamped[..8].copy_from_slice(&sector.to_le_bytes());
    }
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
    memories: Vec<Box<dyn OwnMemory>>,
    pub(super) region: Arc<GpuRegion>,
    case: Case,
}

impl Cache {
    pub(super) fn new(gpu: &dyn Gpu, case: Case) -> Result<Self> {
        let mut memories = Vec::new();
        for (seed, bytes) in (0..).zip(case.memories()) {
            let mut memory = gpu.allocate(bytes)?;
            memory.write(0, &content((1 + seed) << 40, usize::try_from(bytes)?))?;
            memories.push(memory);
        }
        let handles = memories.iter().map(|memory| memory.export()).collect::<Result<_, _>>()?;
        let region = gpu.import(handles, case.layout(), KV_BLOCKS)?;
        Ok(Self { memories, region, case })
    }

    /// The bytes of a KV block, read back.
    fn block(&self, block: u32) -> Result<Vec<u8>> {
        let mut out = vec![0; self.case.block_bytes as usize];
        for run in self.region.layout().runs(block, 0, self.case.block_bytes) {
            let from = usize::try_from(run.at)?;
            let to = from + usize::try_from(run.bytes)?;
            self.memories[usize::from(run.memory)].read(run.offset, &mut out[from..to])?;
        }
        Ok(out)
    }

    /// Compares every KV block that was moved with what its volume block holds.
    pub(super) fn verify(&self, ground: &Ground, last: &[Option<u64>]) -> Result<Verified> {
        let file = File::open(&ground.path)?;
        let mut verified = Verified::default();
        for (block, volume_block) in (0..).zip(last) {
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
            if seen != expected {
                let words = format!("KV block {block} differs from volume block {volume_block}");
                verified.first.get_or_insert(words);
                verified.wrong_blocks += 1;
            }
            verified.bytes += seen.len() as u64;
        }
        Ok(verified)
    }
}

/// What reading back found.
#[derive(Debug, Default)]
pub(super) struct Verified {
    pub(super) bytes: u64,
    pub(super) wrong_blocks: u64,
    /// The first of them in words.
    pub(super) first: Option<String>,
}
