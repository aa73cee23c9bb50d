//! One drop, from the index to its record.

use crate::core::Core;
use crate::format::{Record, RecordKind};
use crate::key::Key;
use crate::log::Log;
use crate::request::{Answer, DropKey, Durability, Status};

/// A drop whose key has left the index, and whose reply is pending.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dropping {
    user: u64,
    owner: u16,
    key: Key,
    uid: u64,
    pool: u8,
    durability: Durability,
    answer: Answer,
}

impl Dropping {
    /// `length`: of the block that the index had; none if it had none.
    pub(crate) fn new(drop: &DropKey, (uid, pool): (u64, u8), length: Option<u32>) -> Self {
        let status = if length.is_some() { Status::Ok } else { Status::Miss };
        Self {
            user: drop.user,
            owner: drop.owner,
            key: drop.key,
            uid,
            pool,
            durability: drop.durability,
            answer: Answer { length: length.unwrap_or(0), ..status.into() },
        }
    }

    /// The pool of its namespace.
    pub(crate) fn pool(&self) -> u8 {
        self.pool
    }

    /// The session that issued the drop.
    pub(crate) fn owner(&self) -> u16 {
        self.owner
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.durability == Durability::Durable
    }

    /// Appends its record. The serial of the page, or nothing when there is no space or page now.
    pub(crate) fn append(&self, core: &mut Core, log: &mut Log) -> Option<u64> {
        let record = Record::plain(RecordKind::Drop, self.key, self.uid, core.now().unix);
        log.append_plain(core, self.pool, &record, self.is_durable())
    }

    pub(crate) fn answer(&self, core: &mut Core) {
        let declined = core.declines().map(|why| Status::Declined(why).into());
        core.reply(self.user, self.owner, declined.unwrap_or(self.answer));
    }
}
