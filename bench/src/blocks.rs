//! What a store holds for its cases: blocks of one length, put before the first case that gets
//! them, and put again when the ring may have come round.

use std::sync::Arc;

use anyhow::{Result, ensure};
use kvrail_units::Size;
use uuid::Uuid;

use crate::drive::{Sweep, Tally, sweep};
use crate::plan::Case;
use crate::sidecar::StoreTarget;
use crate::versions::VersionMap;

/// The blocks.
#[derive(Debug)]
pub(crate) struct Blocks {
    target: Arc<StoreTarget>,
    volume: Uuid,
    /// Bytes of them, unless a case needs more.
    span_bytes: u64,
    map: VersionMap,
    /// Bytes that all puts had written when these were put.
    filled_at: u64,
}

impl Blocks {
    pub(crate) fn new(target: Arc<StoreTarget>, volume: Uuid, span_bytes: u64) -> Self {
        Self { target, volume, span_bytes, map: VersionMap::new(0, 1), filled_at: 0 }
    }

    /// Whether the store takes blocks as long as these.
    pub(crate) fn take(&self, case: &Case) -> bool {
        case.block_bytes <= self.target.block_bytes_max()
    }

    /// Puts the blocks of a case, unless they are there.
    pub(crate) fn prepare(&mut self, case: &Case) -> Result<()> {
        let (block_bytes, put_bytes) = (case.block_bytes, self.target.put_bytes());
        let (kept, span) = (self.target.kept_bytes(), self.span_bytes.max(case.span_bytes_min()));
        ensure!(
            span <= kept,
            "{case} needs {} of blocks, the store keeps {}; give a larger one",
            Size::new(span),
            Size::new(kept)
        );
        let (map, aged) = (&self.map, put_bytes - self.filled_at > kept / 2);
        let enough = map.span_bytes() + u64::from(block_bytes) > span;
        if aged || map.unit_bytes() != block_bytes || !enough {
            self.map = VersionMap::new(span, block_bytes);
            self.target.begin(block_bytes, self.map.span_bytes())?;
            sweep(&self.target, self.volume, &mut self.map, Sweep::Fill, &|_| ())?;
            self.filled_at = self.target.put_bytes();
        }
        Ok(())
    }

    /// Their versions.
    pub(crate) fn map(&mut self) -> &mut VersionMap {
        &mut self.map
    }

    /// Gets every block, and compares every byte.
    pub(crate) fn verify(&mut self) -> Result<Tally> {
        sweep(&self.target, self.volume, &mut self.map, Sweep::Verify, &|_| ())
    }

    /// Forgets them all.
    pub(crate) fn remove(&self) -> Result<()> {
        self.target.remove()
    }
}
