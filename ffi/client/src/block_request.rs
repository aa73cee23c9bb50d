//! What can be asked of a store for one block.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvrail_ring::slot::FLAG_DURABLE;
use kvrail_ring::{CHAIN_BEGINS, CHAIN_DEPTH_MAX, Class, METADATA_BYTES_MAX, Opcode};
use kvrail_store::{Chain, Hint, Priority};

use crate::key::BlockKey;
use crate::lease::Lease;
use crate::store::Namespace;
use crate::submit_error_kind::SubmitErrorKind;

/// Who compares the bytes of a get with their check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Verifier {
    /// The queue, before it hands out the completion.
    #[default]
    Queue,
    /// The program.
    Program,
}

/// What becomes of a block that has the key of a put already, and other bytes or another length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Existing {
    /// It stays.
    #[default]
    Kept,
    /// It is dropped, and the put's bytes take its place.
    Replaced,
}

/// One request for one block, built step by step and given to a [`crate::Queue`].
#[derive(Debug)]
#[must_use]
pub struct BlockRequest {
    pub(crate) opcode: Opcode,
    pub(crate) namespace: Namespace,
    pub(crate) key: BlockKey,
    pub(crate) lease: Option<Lease>,
    pub(crate) bytes: u64,
    pub(crate) metadata: Box<[u8]>,
    /// As the lane has it.
    pub(crate) chain: u16,
    pub(crate) hint: Hint,
    pub(crate) flags: u8,
    pub(crate) class: Class,
    pub(crate) crc: Option<u64>,
    pub(crate) verifier: Verifier,
    pub(crate) existing: Existing,
    pub(crate) tag: u64,
    pub(crate) deadline_us: u32,
}

impl BlockRequest {
    fn new(opcode: Opcode, namespace: &Namespace, key: BlockKey, lease: Option<Lease>) -> Self {
        let bytes = lease.as_ref().map_or(0, Lease::bytes);
        Self {
            opcode,
            namespace: namespace.clone(),
            key,
            lease,
            bytes,
            metadata: Box::default(),
            chain: 0,
            hint: Hint::default(),
            flags: 0,
            class: Class::default(),
            crc: None,
            verifier: Verifier::default(),
            existing: Existing::default(),
            tag: 0,
            deadline_us: 0,
        }
    }

    /// Puts the lease's bytes as the block of this key. A block that is there already stays, and
    /// nothing is written, unless the put is [`BlockRequest::replacing`]; see
    /// [`crate::Completed::note`].
    pub fn put(namespace: &Namespace, key: BlockKey, lease: Lease) -> Self {
        Self::new(Opcode::Put, namespace, key, Some(lease))
    }

    /// Fills the lease with the block of this key. [`crate::Completed::bytes`] says how long it is;
    /// bytes of the lease behind it stay as they were. The bytes are verified before the
    /// completion is handed out; wrong ones are a MISS.
    pub fn get(namespace: &Namespace, key: BlockKey, lease: Lease) -> Self {
        Self::new(Opcode::Get, namespace, key, Some(lease))
    }

    /// Forgets the block of this key. MISS: it was not there.
    pub fn drop_block(namespace: &Namespace, key: BlockKey) -> Self {
        Self::new(Opcode::Drop, namespace, key, None)
    }

    /// For a put: up to 1 KiB that stay with the block, for listings and the feed of what is gone.
    pub fn metadata(self, metadata: &[u8]) -> Self {
        Self { metadata: metadata.into(), ..self }
    }

    /// For a put: how deep in its chain the block is. 0 is the head of a prompt; more than 32,767
    /// counts as 32,767.
    pub fn depth(self, depth: u16) -> Self {
        let chain = self.chain & CHAIN_BEGINS | depth.min(CHAIN_DEPTH_MAX);
        Self { chain, ..self }
    }

    /// For a put: what the store has of the chain that the block belongs to. [`Chain::of`] makes it
    /// of what a lookup found. Unless said otherwise the block [`Chain::Extends`] its chain.
    pub fn chain(self, chain: Chain) -> Self {
        let begins = if chain == Chain::Begins { CHAIN_BEGINS } else { 0 };
        Self { chain: self.chain & CHAIN_DEPTH_MAX | begins, ..self }
    }

    /// For a put: how much the block is worth beside others that are used as often; by default the
    /// same. It stays with the block, over restarts too. A quarter of a pool may have blocks of
    /// [`Priority::High`]; the rest has the worth of others. Sidecars of earlier releases take no
    /// worth.
    pub fn worth(mut self, priority: Priority) -> Self {
        self.hint.priority = priority;
        self
    }

    /// For a put: after this time, in whole seconds, the block is worth nothing. It is served for
    /// as long as it is there, and goes first.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let end = now.saturating_add(ttl);
        let end_s = end.as_secs().saturating_add(u64::from(end.subsec_nanos() > 0));
        self.hint.until = u32::try_from(end_s).unwrap_or(u32::MAX).max(1);
        self
    }

    /// For a put: only the first bytes of the lease.
    pub fn length(self, bytes: u64) -> Self {
        Self { bytes, ..self }
    }

    /// For a put or drop: it is answered when it holds over a loss of power.
    pub fn durable(self) -> Self {
        Self { flags: FLAG_DURABLE, ..self }
    }

    /// For a put whose CRC-64/NVME the program knows: it is not computed again.
    pub fn crc(self, crc: u64) -> Self {
        Self { crc: Some(crc), ..self }
    }

    /// For a put whose key may name other bytes than before: a block with other bytes or of another
    /// length is dropped, and its drop is durable, before these bytes are put. A get between the
    /// two is a MISS; what was replaced never comes back. The same bytes are PRESENT, and nothing
    /// is written. Beside another put of the key that is in flight this one is PENDING.
    pub fn replacing(self) -> Self {
        Self { existing: Existing::Replaced, ..self }
    }

    /// For a get whose bytes the program verifies itself, where they end up:
    /// [`crate::Completed::checksum`] is the CRC-64/NVME that they must have. What fails is got
    /// once more without this, which reads it again, ends as a MISS if it is wrong, and tells the
    /// sidecar.
    pub fn unverified(self) -> Self {
        Self { verifier: Verifier::Program, ..self }
    }

    /// How urgent it is; [`Class::Demand`] unless said otherwise.
    pub fn class(self, class: Class) -> Self {
        Self { class, ..self }
    }

    /// A name of the program's own, which comes back in [`crate::Completed::tag`].
    pub fn tag(self, tag: u64) -> Self {
        Self { tag, ..self }
    }

    /// For a put or get: as [`crate::Request::deadline`], in microseconds, at most 71 minutes.
    pub fn deadline(self, after: Duration) -> Self {
        Self { deadline_us: u32::try_from(after.as_micros()).unwrap_or(u32::MAX).max(1), ..self }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> BlockKey {
        self.key
    }

    /// Takes the request apart.
    #[must_use]
    pub fn into_lease(self) -> Option<Lease> {
        self.lease
    }

    /// Whether its check is computed from its bytes.
    pub(crate) fn is_to_be_summed(&self) -> bool {
        self.opcode == Opcode::Put && self.crc.is_none()
    }

    /// What it asks for that its operation does not have.
    fn unfit(&self) -> Option<&'static str> {
        let Self { opcode, flags, metadata, chain, hint, crc, verifier, existing, .. } = self;
        let puts_only = [
            ("metadata", !metadata.is_empty()),
            ("a depth or chain", *chain != 0),
            ("a worth or time to live", *hint != Hint::default()),
            ("a checksum", crc.is_some()),
            ("replacing", *existing == Existing::Replaced),
        ];
        let unfit = match opcode {
            Opcode::Put => None,
            _ => puts_only.iter().find(|(_, asked)| *asked).map(|(option, _)| *option),
        };
        match opcode {
            Opcode::Get if flags & FLAG_DURABLE != 0 => Some("durable"),
            Opcode::Put | Opcode::Drop if *verifier == Verifier::Program => Some("unverified"),
            Opcode::Drop if self.deadline_us != 0 => Some("a deadline"),
            _ => unfit,
        }
    }

    /// Checks what can be checked without the sidecar.
    pub(crate) fn check(&self) -> Result<(), SubmitErrorKind> {
        if self.metadata.len() > METADATA_BYTES_MAX {
            return Err(SubmitErrorKind::MetadataTooLong { bytes: self.metadata.len() });
        }
        if let Some(option) = self.unfit() {
            return Err(SubmitErrorKind::Unfit { option, opcode: self.opcode });
        }
        let Some(lease) = &self.lease else { return Ok(()) };
        if lease.client() != self.namespace.client() {
            return Err(SubmitErrorKind::Foreign { what: "lease" });
        }
        if self.bytes == 0 {
            return Err(SubmitErrorKind::Empty);
        }
        if self.bytes > lease.bytes() {
            return Err(SubmitErrorKind::LeaseTooShort {
                length: self.bytes,
                lease: lease.bytes(),
            });
        }
        let max = u64::from(self.namespace.store().block_bytes_max());
        if self.opcode == Opcode::Put && self.bytes > max {
            return Err(SubmitErrorKind::BlockTooLong { bytes: self.bytes, max });
        }
        let (offset, alignment) = (lease.offset() as u64, self.namespace.memory_alignment().into());
        if !offset.is_multiple_of(alignment) {
            return Err(SubmitErrorKind::BufferMisaligned { offset, alignment });
        }
        Ok(())
    }
}
