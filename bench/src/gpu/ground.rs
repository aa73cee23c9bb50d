//! What all arms share: the volume's files, their bytes, and GPU memory with the case's layout.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result};
use kvrail_gpu::{Gpu, GpuRegion, OwnMemory};
use kvrail_ring::{Extent, Geometry};
use rustix::fs::{Advice, OFlags, fadvise};
use tempfile::{NamedTempFile, TempPath};

use super::case::{Case, KV_BLOCKS, STRIPE_BYTES, Way};

/// Bytes whose content is computed at once.
const PIECE: usize = 64 << 10;

/// The files under the volume, gone at the end, and how it lies on them.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) paths: Vec<TempPath>,
    pub(super) geometry: Geometry,
}

/// Bytes that name their place.
const STAMPED: usize = 512;

/// Bytes of a piece of the volume: noise, every sector of which names its place.
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

/// Bytes of a range of the volume.
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

/// How a volume of at most so many bytes lies on its members.
pub(super) fn shape(members: u16, bytes: u64) -> Geometry {
    let stripe_bytes = if members == 1 { PIECE as u64 } else { STRIPE_BYTES };
    let stripes = bytes / stripe_bytes / u64::from(members);
    Geometry {
        members,
        stripe_bytes,
        member_bytes: stripes * stripe_bytes,
        data_offset: 0,
        logical_block: 4096,
        memory_alignment: 16,
    }
}

impl Ground {
    /// Writes a file in each directory.
    pub(super) fn new(directories: &[PathBuf], bytes: u64) -> Result<Self> {
        let members = u16::try_from(directories.len()).context("too many directories")?;
        let geometry = shape(members, bytes);
        let mut ground = Self { paths: Vec::new(), geometry };
        for directory in directories {
            // A name that nobody can guess: /tmp belongs to others, too.
            let file = NamedTempFile::with_prefix_in("kvrail-bench-gpu-", directory);
            let made = file.with_context(|| {
                format!("{}: no file can be made; give --dir", directory.display())
            })?;
            ground.paths.push(made.into_temp_path());
        }
        ground.fill()?;
        Ok(ground)
    }

    /// Bytes of the volume.
    pub(super) fn bytes(&self) -> u64 {
        self.geometry.capacity()
    }

    fn locate(&self, offset: u64, bytes: usize) -> Result<(usize, u64)> {
        let Extent { member, device_offset } = self.geometry.locate(offset, bytes as u64)?;
        Ok((usize::from(member), device_offset))
    }

    /// Where a block of the volume lies: which file, and the first byte in it.
    pub(super) fn locate_block(&self, case: Case, number: u64) -> Result<(usize, u64)> {
        self.locate(number * u64::from(case.block_bytes), case.block_bytes as usize)
    }

    /// Writes the bytes of all files, also those that a case wrote over.
    pub(super) fn fill(&self) -> Result<()> {
        let files = self.open(OFlags::empty())?;
        for number in 0..self.bytes() / PIECE as u64 {
            let (file, at) = self.locate(number * PIECE as u64, PIECE)?;
            let written = files[file].write_all_at(&piece(number), at);
            written
                .with_context(|| format!("{}: cannot be written", self.paths[file].display()))?;
        }
        files.iter().try_for_each(|file| Ok(file.sync_all()?))
    }

    fn open(&self, flags: OFlags) -> Result<Vec<File>> {
        let bits = i32::try_from(flags.bits()).expect("flags of open");
        let open = |path: &TempPath| {
            let file = OpenOptions::new().read(true).write(true).custom_flags(bits).open(path);
            file.with_context(|| format!("{}: cannot be opened ({flags:?})", path.display()))
        };
        self.paths.iter().map(open).collect()
    }

    /// The files with O_DIRECT.
    pub(super) fn direct(&self) -> Result<Vec<OwnedFd>> {
        Ok(self.open(OFlags::DIRECT)?.into_iter().map(OwnedFd::from).collect())
    }

    /// The files through the page cache, which forgets them first.
    pub(super) fn buffered(&self) -> Result<Vec<OwnedFd>> {
        let files = self.open(OFlags::empty())?;
        for file in &files {
            fadvise(file, 0, None, Advice::DontNeed)?;
        }
        Ok(files.into_iter().map(OwnedFd::from).collect())
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
        let files = ground.open(OFlags::empty())?;
        let mut verified = Verified::default();
        for (block, volume_block) in (0..).zip(last) {
            let Some(volume_block) = volume_block else { continue };
            let seen = self.block(block)?;
            let offset = volume_block * u64::from(self.case.block_bytes);
            let expected = match self.case.way {
                Way::Read => content(offset, seen.len()),
                Way::Write => {
                    let mut stored = vec![0; seen.len()];
                    let (file, at) = ground.locate_block(self.case, *volume_block)?;
                    files[file].read_exact_at(&mut stored, at)?;
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
