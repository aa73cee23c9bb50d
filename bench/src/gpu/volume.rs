//! The volume that all arms move blocks from and to: files with the pattern.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::Result;
use kvrail_device::{DirectIo, ModeName, open_path};
use kvrail_ring::{Geometry, MemberRange};
use rustix::fs::{Advice, fadvise};
use uuid::Uuid;

use super::case::GpuCase;
use crate::drive::{Sweep, sweep};
use crate::harness::{FileHarness, Ground, Harness};
use crate::options::BenchOptions;
use crate::pattern::Pattern;
use crate::raw::RawTarget;
use crate::versions::VersionMap;

/// Bytes of one version.
const UNIT_BYTES: u32 = 4096;

/// Files, and what they hold.
pub(super) struct Volume {
    pub(super) members: Vec<PathBuf>,
    pub(super) geometry: Geometry,
    pub(super) uuid: Uuid,
    pub(super) raw: RawTarget,
    pub(super) map: VersionMap,
    pub(super) pattern: Pattern,
    /// Removed with it.
    _files: FileHarness,
}

impl Volume {
    /// A file in each directory, not yet filled.
    pub(super) fn new(options: &BenchOptions) -> Result<Self> {
        let mut files = FileHarness::default();
        let unit = u64::from(UNIT_BYTES);
        let ground = files.open(options, options.volume_size.next_multiple_of(unit))?;
        let Ground { members, geometry, io, uuid, .. } = ground;
        let raw = RawTarget::open(&members, geometry, io, ModeName::Interrupt)?;
        let map = VersionMap::new(geometry.capacity(), UNIT_BYTES);
        Ok(Self { members, geometry, uuid, raw, map, pattern: Pattern::new(uuid), _files: files })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.geometry.capacity()
    }

    /// Where a block lies: which file, and the first byte in it.
    pub(super) fn locate(&self, case: GpuCase, number: u64) -> Result<(usize, u64)> {
        let bytes = u64::from(case.block_bytes);
        let extent = self.geometry.locate(number * bytes, bytes)?;
        let MemberRange { member, device_offset } = extent;
        Ok((usize::from(member), device_offset))
    }

    /// Writes the pattern over what a case wrote.
    pub(super) fn restore(&mut self) -> Result<()> {
        sweep(&self.raw, self.uuid, &mut self.map, Sweep::Fill, &|_| ()).map(|_| ())
    }

    /// The files with O_DIRECT, or through the page cache, which forgets them first.
    pub(super) fn open(&self, io: DirectIo) -> Result<Vec<OwnedFd>> {
        let open = |path: &PathBuf| {
            let file = open_path(&path.to_string_lossy(), io)?;
            if io == DirectIo::Off {
                fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            Ok(file)
        };
        self.members.iter().map(open).collect()
    }
}
