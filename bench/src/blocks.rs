//! Blocks of stores for their cases: blocks of one length, put before the first case that gets
//! them, and put again when the ring may have come round.

use anyhow::{Result, ensure};
use kvrail_units::Size;
use uuid::Uuid;

use crate::arms::ArmKind;
use crate::drive::{Sweep, Tally, sweep};
use crate::plan::{Case, Op};
use crate::port::KeyedTarget;
use crate::versions::VersionMap;

/// The blocks of one arm.
#[derive(Debug)]
pub(crate) struct Blocks {
    target: Box<dyn KeyedTarget>,
    volume: Uuid,
    /// Bytes of them, unless a case needs more.
    span_bytes: u64,
    map: VersionMap,
    /// Bytes that all puts had written when these were put.
    filled_at: u64,
}

impl Blocks {
    pub(crate) fn new(target: Box<dyn KeyedTarget>, volume: Uuid, span_bytes: u64) -> Self {
        Self { target, volume, span_bytes, map: VersionMap::new(0, 1), filled_at: 0 }
    }

    /// Whether the arm can do a case.
    pub(crate) fn take(&self, case: &Case) -> bool {
        let target = &self.target;
        let depth = target.depth_max().is_none_or(|most| case.depth <= most);
        let op = case.op != Op::Lookup || target.looks_up();
        case.block_bytes <= target.block_bytes_max() && depth && op
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
            sweep(&*self.target, self.volume, &mut self.map, Sweep::Fill, &|_| ())?;
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
        sweep(&*self.target, self.volume, &mut self.map, Sweep::Verify, &|_| ())
    }

    /// Forgets them all.
    pub(crate) fn remove(&self) -> Result<()> {
        self.target.remove()
    }
}

/// The blocks of the arms with keys.
#[derive(Debug, Default)]
pub(crate) struct KeyedBlocks(pub(crate) Vec<(ArmKind, Blocks)>);

impl KeyedBlocks {
    /// Of an arm of this kind.
    pub(crate) fn of(&self, kind: ArmKind) -> Option<&Blocks> {
        self.0.iter().find(|(held, _)| *held == kind).map(|(_, blocks)| blocks)
    }

    /// Of an arm of this kind, to change.
    pub(crate) fn of_mut(&mut self, kind: ArmKind) -> Option<&mut Blocks> {
        self.0.iter_mut().find(|(held, _)| *held == kind).map(|(_, blocks)| blocks)
    }

    /// Forgets them all.
    pub(crate) fn remove(&self) -> Result<()> {
        self.0.iter().try_for_each(|(_, blocks)| blocks.remove())
    }
}
