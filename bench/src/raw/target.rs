//! The way to a volume through bare rings, one for each client thread.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use kvrail_device::{DirectIo, ModeName};
use kvrail_memory::{PinLimit, Region, current_affinity};
use kvrail_ring::Geometry;

use super::mode;
use super::ring::{PortBuffers, RingPort, Striped};
use super::wire::{BlockWire, NvmeWire, Wire};
use crate::cpu::usable_cores;
use crate::port::{PortShape, Target, Work};

/// Most pieces one operation may fall into at stripe borders.
const PIECES_MAX: u32 = 64;

/// The members, opened for the language of the mode.
#[derive(Debug)]
enum RawMembers {
    Block(Vec<<BlockWire as Wire>::Member>),
    Nvme(Vec<<NvmeWire as Wire>::Member>),
}

/// A bare ring on the members of a volume.
#[derive(Debug)]
pub struct RawTarget {
    members: RawMembers,
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
        let members = if mode.passes_through() {
            RawMembers::Nvme(opened::<NvmeWire>(members, io)?)
        } else {
            RawMembers::Block(opened::<BlockWire>(members, io)?)
        };
        let mode = if mode == ModeName::Hybrid { ModeName::Iopoll } else { mode };
        Ok(Self { members, geometry, mode })
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

    /// Pieces that one operation of this size can fall into, at stripe borders and at the largest
    /// request.
    fn pieces_max(&self, bytes: u32, request_bytes_max: u32) -> u32 {
        let requests = u64::from(bytes.div_ceil(request_bytes_max));
        let stripes = if self.geometry.members == 1 {
            0
        } else {
            u64::from(bytes).div_ceil(self.geometry.stripe_bytes)
        };
        u32::try_from(requests + stripes).unwrap_or(u32::MAX).min(PIECES_MAX)
    }

    fn with_ring<W: Wire>(
        &self,
        members: &[W::Member],
        shape: PortShape,
        work: Work<'_>,
    ) -> Result<()> {
        let request_bytes_max = members.iter().map(W::request_bytes_max).min().unwrap_or(u32::MAX);
        let pieces_max = self.pieces_max(shape.buffer_bytes, request_bytes_max);
        let memory = Arc::new(PortBuffers::new(shape)?);
        let entries = self.mode.queue_entries(shape.slots * pieces_max);
        let mut ring = mode::ring::<W::Entry, W::Answer>(self.mode, entries, self.kernel_core()?)?;
        let (mut submitter, sq, cq) = ring.split();
        let fds: Vec<i32> = members.iter().map(|member| member.as_fd().as_raw_fd()).collect();
        submitter.register_files(&fds).context("the raw arm cannot register its files")?;
        let buffers = memory.register(&submitter)?;
        submitter.register_ring_fd().context("the raw arm cannot register its ring")?;
        let volume = Striped { members, geometry: self.geometry, request_bytes_max };
        let mut port =
            RingPort::<W>::new((submitter, sq, cq), (memory, buffers), volume, self.mode);
        port.reserve(shape.slots, pieces_max);
        let worked = work(&mut port);
        let drained = port.drain();
        worked.and(drained)
    }
}

fn opened<W: Wire>(paths: &[PathBuf], io: DirectIo) -> Result<Vec<W::Member>> {
    paths.iter().map(|path| W::open(path, io)).collect()
}

impl Target for RawTarget {
    fn mode(&self) -> String {
        self.mode.name().to_owned()
    }

    fn with_port(&self, shape: PortShape, work: Work<'_>) -> Result<()> {
        match &self.members {
            RawMembers::Block(members) => self.with_ring::<BlockWire>(members, shape, work),
            RawMembers::Nvme(members) => self.with_ring::<NvmeWire>(members, shape, work),
        }
    }
}

/// Which pages the raw arm's buffers get here, in words.
#[must_use]
pub fn memory_in_use() -> String {
    match Region::create_best("kvrail-bench-probe", 2 << 20) {
        Ok((region, None)) => format!("{} pages{}", region.page().name(), limited()),
        Ok((region, Some(reason))) => {
            format!("{} pages ({reason}){}", region.page().name(), limited())
        }
        Err(error) => error.to_string(),
    }
}

/// The bytes of them that are not registered.
fn limited() -> String {
    match PinLimit::of_this_process() {
        PinLimit::Unlimited => String::new(),
        limit => format!("; not registered where they are more than {limit}"),
    }
}
