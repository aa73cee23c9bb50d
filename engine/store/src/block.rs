//! A block that is being put, and its parts.

use crate::core::Core;
use crate::hint::Hint;
use crate::key::Key;
use crate::placed::Placed;
use crate::request::{Durability, Put, Status};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockStage {
    /// Parts are missing or being written.
    Writing,
    /// All parts are written; the record waits for a page.
    Unrecorded,
    /// The record's page is not durable.
    Waiting,
    /// The key was there already, with this length and check; its record may not be durable.
    Confirming,
    /// Given up; the space goes when the last part has ended.
    Cancelled(Status),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    pub(crate) key: Key,
    pub(crate) number: u16,
    pub(crate) owner: u16,
    pub(crate) length: u32,
    pub(crate) check: u64,
    pub(crate) depth: u16,
    pub(crate) metadata: u16,
    pub(crate) hint: Hint,
    pub(crate) durability: Durability,
    pub(crate) stage: BlockStage,
    pub(crate) placed: Option<Placed>,
    /// Bytes of parts that were taken, and that are written.
    pub(crate) begun: u32,
    pub(crate) done: u32,
    /// Parts that are not answered.
    pub(crate) parts: u32,
    /// When the last part ended.
    pub(crate) touched: u64,
    /// Of the part that completed it.
    pub(crate) user: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPart {
    pub(crate) block: u32,
    pub(crate) user: u64,
    pub(crate) owner: u16,
    pub(crate) at: u32,
    pub(crate) bytes: u32,
}

impl Block {
    pub(crate) fn new(core: &Core, number: u16, put: &Put<'_>) -> Self {
        Self {
            key: put.key,
            number,
            owner: put.owner,
            length: put.length,
            check: put.check,
            depth: put.depth,
            metadata: u16::try_from(put.metadata.len()).expect("checked"),
            hint: put.hint,
            durability: put.durability,
            stage: BlockStage::Writing,
            placed: None,
            begun: 0,
            done: 0,
            parts: 0,
            touched: core.now().ns,
            user: put.user,
        }
    }

    /// Whether it has begun, and parts of it were not given yet.
    pub(crate) fn is_incomplete(&self) -> bool {
        (1..self.length).contains(&self.begun)
    }
}
