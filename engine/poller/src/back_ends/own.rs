//! Names of what the sidecar does for itself, among those of clients' requests.

use kvrail_store::TaskId;

use crate::limits::SIDECAR;
use crate::task::{StoreTask, TaskOwner};

/// No request's name has this bit: slots have 63.
pub(crate) const OWN: u64 = 1 << 63;
/// What a call of the control thread asks the store.
pub(crate) const USER_CALL: u64 = OWN;
/// The drop of a block that was wrong.
pub(crate) const USER_CORRUPT: u64 = OWN | 1;

/// The read of a block that was reported: no number of a store's task.
pub(crate) const SUSPECT: u64 = OWN | 1 << 32;

/// The read of a block into the memory tier, with its number in the low byte.
const FILL: u64 = OWN | 1 << 33;

/// The put of a late block, with its entry in the low half: no client's request.
const LATE: u64 = OWN | 1 << 34;

/// The name of the put of a late block.
pub(crate) fn late_user(entry: usize) -> u64 {
    LATE | u64::from(u32::try_from(entry).expect("entries have 32 bits"))
}

/// The entry of a late block, if a put is of one.
pub(crate) fn late_of(user: u64) -> Option<usize> {
    let entry = (user & LATE == LATE).then_some(user & !LATE)?;
    Some(usize::try_from(entry).expect("an entry"))
}

/// The owner of a task of the store's own.
pub(crate) fn own_task(shard: u8, id: TaskId) -> TaskOwner {
    TaskOwner::store(StoreTask { shard, tag: OWN | u64::from(id.number()) }, Some(SIDECAR))
}

/// The owner of the read of a block that was reported.
pub(crate) fn suspect_read(shard: u8) -> TaskOwner {
    TaskOwner::store(StoreTask { shard, tag: SUSPECT }, Some(SIDECAR))
}

/// The owner of the read of a block into the memory tier.
pub(crate) fn fill_read(shard: u8, number: u8) -> TaskOwner {
    TaskOwner::store(StoreTask { shard, tag: FILL | u64::from(number) }, Some(SIDECAR))
}

/// The number of a read into the memory tier, if the tag is of one.
pub(crate) fn fill_of(tag: u64) -> Option<u8> {
    let number = (tag & FILL == FILL).then_some(tag & !FILL)?;
    Some(u8::try_from(number).expect("a fill has a number of 8 bits"))
}

/// The store's name of a task of its own.
pub(crate) fn own_id(tag: u64) -> TaskId {
    debug_assert!(tag & OWN != 0 && tag != SUSPECT, "the name of a store's own task");
    TaskId::of_number(u32::try_from(tag & !OWN).expect("task numbers have 32 bits"))
}
