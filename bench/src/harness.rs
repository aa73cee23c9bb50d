//! The benchmark's surroundings: a volume, and a sidecar that serves it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use kvrail_client::Client;
use kvrail_device::{DirectIo, ModeName};
use kvrail_ring::Geometry;
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::Errno;
use tempfile::NamedTempFile;
use uuid::Uuid;

use crate::lanes::LaneProbe;
use crate::memory::TieredStore;
use crate::options::BenchOptions;
use crate::sidecar::{SidecarTarget, StoreTarget};

/// Bytes of a stripe of the embedded volume, where it has several members: the largest block that
/// is measured, so that each is one request.
pub const STRIPE_BYTES: u64 = 4 << 20;

/// A sidecar that is running and ready.
#[derive(Debug)]
pub struct Sidecar {
    /// The way to its volume, over the lanes.
    pub target: SidecarTarget,
    /// The session behind it.
    pub client: Client,
    /// Its processes, for the CPU accounts.
    pub pids: Vec<i32>,
    /// The way to its store, if it serves one.
    pub store: Option<Arc<StoreTarget>>,
    /// A lane that ends at a null device, and the core its poller runs on.
    pub null_lane: Option<NullLane>,
}

/// A lane without a device behind it.
#[derive(Debug)]
pub struct NullLane {
    /// How to use it.
    pub probe: Box<dyn LaneProbe>,
    /// Core of the poller at its other end, if it is bound to one.
    pub poller_core: Option<u32>,
}

/// The ground of the arms.
#[derive(Debug)]
pub struct Ground {
    /// The volume's devices or files, in order. Empty when this process cannot reach them: then
    /// there is no raw arm and no fio.
    pub members: Vec<PathBuf>,
    /// How the volume lies on them.
    pub geometry: Geometry,
    /// Its uuid: part of the pattern.
    pub uuid: Uuid,
    /// How the members are opened.
    pub io: DirectIo,
    /// The ring mode in force.
    pub mode: ModeName,
    /// Why this one.
    pub reason: String,
    /// The sidecar, unless there is none.
    pub sidecar: Option<Sidecar>,
    /// Cores of the sidecar's pollers. Raw's threads run there first: at the same place as the
    /// sidecar's rings, interrupts included.
    pub poller_cores: Vec<u32>,
}

/// Makes the ground, and takes it away again.
pub trait Harness {
    /// A volume of at least `volume_bytes`, whose content may be overwritten, served by a sidecar
    /// that is ready. Prints its own progress on standard error.
    ///
    /// # Errors
    /// Whatever stands in the way, with its remedy.
    fn open(&mut self, options: &BenchOptions, volume_bytes: u64) -> Result<Ground>;

    /// A store with a memory tier of this size, once every target was dropped: the sidecar of
    /// `open` has none, or gets would not reach the drives. The inner error is why there is none.
    ///
    /// # Errors
    /// Whatever stands in the way, with its remedy.
    fn open_tiered(
        &mut self,
        _options: &BenchOptions,
        _tier_bytes: u64,
    ) -> Result<Result<TieredStore, String>> {
        Ok(Err("no sidecar runs".to_owned()))
    }

    /// Stops what was started, after every target was dropped.
    ///
    /// # Errors
    /// When the sidecar did not end well.
    fn close(&mut self) -> Result<()>;
}

/// A plain file without label and sidecar: for the raw arm alone, for GPU memory, and for tests.
#[derive(Debug, Default)]
pub struct FileHarness {
    files: Vec<NamedTempFile>,
}

impl Harness for FileHarness {
    fn open(&mut self, options: &BenchOptions, volume_bytes: u64) -> Result<Ground> {
        let dirs = options.dirs_or(&std::env::temp_dir());
        let stripe_bytes = if dirs.len() == 1 { volume_bytes } else { STRIPE_BYTES };
        let stripes = volume_bytes.div_ceil(stripe_bytes).div_ceil(dirs.len() as u64);
        let member_bytes = stripes * stripe_bytes;
        for dir in &dirs {
            let file = NamedTempFile::with_prefix_in("kvrail-bench-", dir)
                .with_context(|| format!("{}: no file can be made; give --dir", dir.display()))?;
            // File systems that reserve nothing find out while the volume is filled.
            let made = match fallocate(file.as_file(), FallocateFlags::empty(), 0, member_bytes) {
                Err(Errno::OPNOTSUPP) => ftruncate(file.as_file(), member_bytes),
                made => made,
            };
            made.with_context(|| {
                format!("{}: no room for {member_bytes} bytes; give --dir or less", dir.display())
            })?;
            self.files.push(file);
        }
        let members: Vec<_> = self.files.iter().map(|file| file.path().to_owned()).collect();
        let mode = match options.mode.as_deref() {
            None | Some("auto") => ModeName::Interrupt,
            Some(named) => named.parse().map_err(anyhow::Error::msg)?,
        };
        Ok(Ground {
            geometry: Geometry {
                members: u16::try_from(members.len()).context("too many directories")?,
                stripe_bytes,
                member_bytes,
                data_offset: 0,
                logical_block: 512,
                memory_alignment: 512,
            },
            members,
            uuid: Uuid::new_v4(),
            io: DirectIo::Required,
            mode,
            reason: "a plain file, no sidecar".to_owned(),
            sidecar: None,
            poller_cores: Vec::new(),
        })
    }

    fn close(&mut self) -> Result<()> {
        let close = |file: NamedTempFile| file.close().context("removing the benchmark's file");
        self.files.drain(..).try_for_each(close)
    }
}
