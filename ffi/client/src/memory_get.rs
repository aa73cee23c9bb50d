//! Gets that a memory tier serves: without a request, and without a read.

use kvrail_ring::Presence;

use crate::block_op::{Verified, crc_of};
use crate::block_request::Verifier;
use crate::key::BlockKey;
use crate::store::Store;
use crate::tier::InMemory;

impl Store {
    /// Whether the sidecar shows this client a memory tier of this store: gets of blocks in it
    /// need no request. Known once a namespace was opened.
    #[must_use]
    pub fn reads_from_memory(&self) -> bool {
        self.tiers().are_there()
    }

    /// The block of a key, if a memory tier has it. The presence tables know whether the uid is
    /// still in force, and whether the block is still there.
    pub(crate) fn in_memory(&self, uid: u64, key: BlockKey) -> Option<InMemory<'_>> {
        let found = self.tiers().find(uid, key.lo())?;
        let is_there = self.known_tables()?.probe_open(uid, key.lo()) == Presence::Present;
        is_there.then_some(found)
    }
}

/// Copies a block out of a memory tier, and verifies it unless the program does. Returns the CRC
/// for a program that verifies, 0 for others; nothing where the bytes changed meanwhile, or are
/// wrong: the device has them.
pub(crate) fn copy_block(
    found: &InMemory<'_>,
    (uid, key): (u64, BlockKey),
    verifier: Verifier,
    memory: &mut [u8],
    verified: &mut Verified,
) -> Option<u64> {
    let (bytes, check) = (found.bytes(), found.check());
    if !found.copy(memory) {
        return None;
    }
    if verifier == Verifier::Program {
        return Some(key.check(check, uid, bytes));
    }
    if key.check(crc_of(memory), uid, bytes) != check {
        verified.reread += 1;
        return None;
    }
    verified.count_right();
    Some(0)
}
