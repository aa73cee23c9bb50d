//! The way to a volume through bare rings, one for each client thread.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kvrail_device::{DirectIo, ModeName, open_path};
use kvrail_memory::{Region, current_affinity};
use kvrail_ring::Geometry;

use super::mode;
use super::ring::{Memory, RingPort};
use crate::cpu::usable_cores;
use crate::port::{Shape, Target, Work};

/// Most pieces one operation may fall into at stripe borders.
const PIECES_MAX: u32 = 64;

/// A bare ring on the members of a volume.
#[derive(Debug)]
pub struct RawTarget {
    files: Vec<OwnedFd>,
    geometry: Geometry,
    mode: ModeName,
}

impl RawTarget {
    /// Opens the members, each for itself and not exclusively: a sidecar may hold them.
    ///
    /// # Errors
    /// Names the member that cannot be opened.
    pub fn open(
        members: &[PathBuf],
        geometry: Geometry,
        io: DirectIo,
        mode: ModeName,
    ) -> Result<Self> {
        ensure!(
            members.len() == usize::from(geometry.members),
            "the volume has {} members, {} paths were given; give one for each",
            geometry.members,
            members.len()
        );
        let open = |path: &PathBuf| {
            open_path(&path.to_string_lossy(), io).context("opening a member for the raw arm")
        };
        let files = members.iter().map(open).collect::<Result<_>>()?;
        Ok(Self { files, geometry, mode })
    }

    /// Where the ring's kernel thread must run: it would inherit the core of a client thread that
    /// is bound to one, and both spin.
    fn kernel_core(&self) -> Result<Option<u32>> {
        let mine = current_affinity().context("reading the affinity")?;
        if !self.mode.has_kernel_thread() || mine.len() > 1 {
            return Ok(None);
        }
        Ok(usable_cores()?.into_iter().rfind(|core| !mine.contains(*core)))
    }

    /// Pieces that one operation of this size can fall into.
    fn pieces_max(&self, bytes: u32) -> u32 {
        if self.geometry.members == 1 {
            return 1;
        }
        let stripes = u64::from(bytes).div_ceil(self.geometry.stripe_bytes) + 1;
        u32::try_from(stripes).unwrap_or(u32::MAX).min(PIECES_MAX)
    }
}

impl Target for RawTarget {
    fn mode(&self) -> String {
        self.mode.name().to_owned()
    }

    fn with_port(&self, shape: Shape, work: Work<'_>) -> Result<()> {
        let pieces_max = self.pieces_max(shape.buffer_bytes);
        let memory = Arc::new(Memory::new(shape)?);
        let mut ring = mode::ring(self.mode, shape.slots * pieces_max, self.kernel_core()?)?;
        let (mut submitter, sq, cq) = ring.split();
        let fds: Vec<i32> = self.files.iter().map(AsRawFd::as_raw_fd).collect();
        submitter.register_files(&fds).context("the raw arm cannot register its files")?;
        memory.register(&submitter)?;
        submitter.register_ring_fd().context("the raw arm cannot register its ring")?;
        let mut port = RingPort::new((submitter, sq, cq), memory, self.geometry, self.mode);
        port.reserve(shape.slots, pieces_max);
        let worked = work(&mut port);
        let drained = port.drain();
        worked.and(drained)
    }
}

/// Which pages the raw arm's buffers get here, in words.
#[must_use]
pub fn memory_in_use() -> String {
    match Region::create_best("kvrail-bench-probe", 2 << 20) {
        Ok((region, None)) => format!("{} pages", region.page().name()),
        Ok((region, Some(reason))) => format!("{} pages ({reason})", region.page().name()),
        Err(error) => error.to_string(),
    }
}
