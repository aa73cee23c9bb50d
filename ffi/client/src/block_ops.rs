//! Operations on blocks in flight, by the entry of the in-flight table that sends their requests.

use crate::block_op::{BlockOp, Verified};
use crate::lease::Lease;

/// All of them.
#[derive(Debug)]
pub(crate) struct BlockOps {
    /// One place for each entry; no places where the sidecar has no store.
    ops: Vec<Option<BlockOp>>,
    /// Begins of their calls, by the queue's clock. Beside them, because operations are moved.
    begun_ns: Vec<u64>,
    /// Entries whose next request, after the first, is to be sent.
    unsent: Vec<u32>,
    /// Pages for tails that no operation has.
    tails: Vec<Lease>,
    verified: Verified,
}

impl BlockOps {
    /// `tails` are pages for the tails of blocks: one for each entry, or none where the sidecar has
    /// no store.
    pub(crate) fn new(tails: Vec<Lease>) -> Self {
        Self {
            ops: tails.iter().map(|_| None).collect(),
            begun_ns: vec![0; tails.len()],
            unsent: Vec::with_capacity(tails.len()),
            tails,
            verified: Verified::default(),
        }
    }

    /// Whether the sidecar has a store.
    pub(crate) fn are_possible(&self) -> bool {
        !self.ops.is_empty()
    }

    /// Takes an operation, whose first request the caller sends.
    pub(crate) fn add(
        &mut self,
        index: u32,
        begun_ns: u64,
        make: impl FnOnce(Option<Lease>) -> BlockOp,
    ) -> &mut BlockOp {
        let tail = self.tails.pop();
        debug_assert!(tail.is_some(), "a page for each entry, and this entry was free");
        self.begun_ns[index as usize] = begun_ns;
        let place = &mut self.ops[index as usize];
        debug_assert!(place.is_none(), "a free entry has no operation");
        place.insert(make(tail))
    }

    /// The operation of an entry.
    pub(crate) fn get(&mut self, index: u32) -> (&mut BlockOp, &mut Verified) {
        let op = self.ops[index as usize].as_mut().expect("the entry is a block's");
        (op, &mut self.verified)
    }

    /// When the call of an entry's operation began, by the queue's clock.
    pub(crate) fn begun_ns(&self, index: u32) -> u64 {
        self.begun_ns[index as usize]
    }

    /// The next request of an operation is to be sent.
    pub(crate) fn send_again(&mut self, index: u32) {
        debug_assert!(!self.is_unsent(index), "one request of an operation at a time");
        self.unsent.push(index);
    }

    /// Whether requests are to be sent.
    #[inline(always)]
    pub(crate) fn are_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Whether the next request of an entry's operation is to be sent.
    pub(crate) fn is_unsent(&self, index: u32) -> bool {
        self.unsent.contains(&index)
    }

    /// The entry at this place among those with a request to be sent.
    pub(crate) fn unsent(&self, at: usize) -> Option<u32> {
        self.unsent.get(at).copied()
    }

    /// The request of the operation at this place was sent.
    pub(crate) fn sent(&mut self, at: usize) {
        self.unsent.remove(at);
    }

    /// Takes an operation that has ended.
    pub(crate) fn take(&mut self, index: u32) -> BlockOp {
        self.unsent.retain(|other| *other != index);
        self.ops[index as usize].take().expect("the entry is a block's")
    }

    /// Takes a page back that no hardware can write any more.
    pub(crate) fn give_back(&mut self, tail: Option<Lease>) {
        self.tails.extend(tail);
        debug_assert!(self.tails.len() <= self.ops.len(), "no page is free twice");
    }

    /// What gets came to.
    pub(crate) fn verified(&self) -> Verified {
        self.verified
    }

    /// The same, for gets that need no operation.
    pub(crate) fn verified_mut(&mut self) -> &mut Verified {
        &mut self.verified
    }
}
