//! Names of what the sidecar does for itself, among those of clients' requests.

use kvrail_store::TaskId;

use crate::limits::SIDECAR;
use crate::task::{Owner, StoreTask};

/// No request's name has this bit: slots have 63.
pub(crate) const OWN: u64 = 1 << 63;
/// What a call of the control thread asks the store.
pub(crate) const USER_CALL: u64 = OWN;
/// A read of a block that was reported.
pub(crate) const USER_SUSPECT: u64 = OWN | 1;
/// The drop of one that was wrong.
pub(crate) const USER_ROTTEN: u64 = OWN | 2;

/// Who hears of a task of the store's own.
pub(crate) fn own_task(shard: u8, id: TaskId) -> Owner {
    Owner::store(StoreTask { shard, tag: OWN | u64::from(id.number()) }, Some(SIDECAR))
}

/// The store's name of a task of its own.
pub(crate) fn own_id(tag: u64) -> TaskId {
    TaskId::of_number(u32::try_from(tag & !OWN).expect("task numbers have 32 bits"))
}
