//! What a store holds for its cases: blocks of each length, put before the first case that gets
//! them, and put again when the ring may have come round.

use std::collections::BTreeMap;
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
    /// Bytes of the blocks of one length, unless a case needs more.
    span_bytes: u64,
    lengths: BTreeMap<u32, Length>,
}

/// Blocks of one length.
#[derive(Debug)]
struct Length {
    map: VersionMap,
    /// Bytes that all puts had written when these were put.
    filled_at: u64,
}

impl Blocks {
    pub(crate) fn new(target: Arc<StoreTarget>, volume: Uuid, span_bytes: u64) -> Self {
        Self { target, volume, span_bytes, lengths: BTreeMap::new() }
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
        let fresh = |it: &Length| {
            it.map.span_bytes() + u64::from(block_bytes) > span
                && put_bytes - it.filled_at < kept / 2
        };
        if !self.lengths.get(&block_bytes).is_some_and(fresh) {
            let mut map = VersionMap::new(span, block_bytes);
            self.target.reserve(block_bytes, map.span_bytes());
            sweep(&self.target, self.volume, &mut map, Sweep::Fill, &|_| ())?;
            let filled_at = self.target.put_bytes();
            self.lengths.insert(block_bytes, Length { map, filled_at });
        }
        Ok(())
    }

    /// The versions of a case's blocks.
    pub(crate) fn map(&mut self, case: &Case) -> &mut VersionMap {
        let length = self.lengths.get_mut(&case.block_bytes);
        &mut length.expect("a case is prepared before it runs").map
    }

    /// Gets every block of a case's length, and compares every byte.
    pub(crate) fn verify(&mut self, case: &Case) -> Result<Tally> {
        let (target, volume) = (Arc::clone(&self.target), self.volume);
        sweep(&target, volume, self.map(case), Sweep::Verify, &|_| ())
    }

    /// Forgets them all.
    pub(crate) fn remove(&self) -> Result<()> {
        self.target.remove()
    }
}
