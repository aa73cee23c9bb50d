//! Gets that a memory tier serves: without a request, and without a read.

use std::ptr::NonNull;

use crate::block_op::Verified;
use crate::block_request::Verifier;
use crate::key::BlockKey;
use crate::store::Store;
use crate::tier::InMemory;
use crate::view::View;
use kvrail_crc::crc64;

impl Store {
    /// Whether the sidecar shows this client a memory tier of this store: gets of blocks in it
    /// need no request. Known once a namespace was opened.
    #[must_use]
    pub fn reads_from_memory(&self) -> bool {
        self.tiers().are_there()
    }

    /// The memory tiers as they are mapped here, one for each member that has one: where each
    /// begins, and its bytes. Mapped while a clone of this store is there; the sidecar writes all
    /// of it but the blocks that are viewed.
    #[must_use]
    pub fn tier_memory(&self) -> Vec<(NonNull<u8>, usize)> {
        self.tiers().memory()
    }

    /// Views that this client may open now. Asks the sidecar for its share, once; 0 without one.
    #[must_use]
    pub fn views_left(&self) -> usize {
        let asks = self.reads_from_memory();
        let holds = asks.then(|| self.session().holds(self.volume().id().0)).flatten();
        holds.map_or(0, |holds| holds.left())
    }

    /// The block of a key, if a memory tier has it. The presence tables know whether the uid is
    /// still in force, and whether the block is still there.
    pub(crate) fn in_memory(&self, uid: u64, key: BlockKey) -> Option<InMemory<'_>> {
        let found = self.tiers().find(uid, key.lo())?;
        self.has_open(uid, key.lo()).then_some(found)
    }

    fn hold(&self, found: &InMemory<'_>) -> Option<View> {
        let session = self.shared_session();
        let holds = session.holds(self.volume().id().0)?;
        found.hold(&holds).map(|block| View::new(block, session))
    }
}

/// What reading a block in place came to.
#[derive(Debug)]
pub(crate) enum Viewed {
    /// The bytes are the block's. With the CRC for a program that verifies, 0 for others.
    Right(View, u64),
    /// The bytes are wrong: the device has others, and the sidecar is to look.
    Wrong,
    /// The block left the tier meanwhile, or the client has as many views as it may.
    Gone,
}

/// Has a block of a memory tier read in place. Verified once in a process, or by the program.
pub(crate) fn view_block(
    found: &InMemory<'_>,
    (uid, key): (u64, BlockKey),
    (store, verifier): (&Store, Verifier),
    verified: &mut Verified,
) -> Viewed {
    let Some(view) = store.hold(found) else { return Viewed::Gone };
    if verifier == Verifier::Program {
        return Viewed::Right(view, key.check(found.check(), uid, found.bytes()));
    }
    let is_right = |crc| key.check(crc, uid, found.bytes()) == found.check();
    if !found.known_crc().is_some_and(is_right) {
        let crc = crc64(&view);
        if !is_right(crc) {
            verified.reread += 1;
            return Viewed::Wrong;
        }
        found.note_crc(crc);
    }
    verified.count_right();
    Viewed::Right(view, 0)
}

/// What a copy out of a memory tier came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied {
    /// The bytes are the block's. With the CRC for a program that verifies, 0 for others.
    Right(u64),
    /// The bytes are wrong: the device has others, and the sidecar is to look.
    Wrong,
    /// The block left the tier meanwhile.
    Gone,
}

/// Copies a block out of a memory tier, and verifies it unless the program does.
pub(crate) fn copy_block(
    found: &InMemory<'_>,
    (uid, key): (u64, BlockKey),
    verifier: Verifier,
    memory: &mut [u8],
    verified: &mut Verified,
) -> Copied {
    let (bytes, check) = (found.bytes(), found.check());
    if !found.copy(memory) {
        return Copied::Gone;
    }
    if verifier == Verifier::Program {
        return Copied::Right(key.check(check, uid, bytes));
    }
    if key.check(crc64(memory), uid, bytes) != check {
        verified.reread += 1;
        return Copied::Wrong;
    }
    verified.count_right();
    Copied::Right(0)
}
