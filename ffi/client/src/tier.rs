//! Memory tiers of the sidecar, mapped for reading: gets that need no request.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kvrail_memory::WordView;
use kvrail_protocol::{ControlReply, ControlRequest};
use kvrail_ring::{HeldBlock, Holds, TierFound, TierReader};
use kvrail_store::Members;

use crate::error::ClientError;
use crate::session::Session;

/// The tiers of a store's members.
#[derive(Debug)]
struct Tiers {
    of: Vec<Option<Tier>>,
    members: Members,
}

/// The tier of a member.
#[derive(Debug)]
struct Tier {
    reader: Arc<TierReader>,
    /// What was verified of each entry's block in place: once is enough for memory that only the
    /// sidecar writes.
    verified: OnceLock<Box<[VerifiedBlock]>>,
    /// For each entry its count and the second in which a use was reported.
    reported: OnceLock<Box<[AtomicU64]>>,
    mapped: Instant,
}

/// The count of an entry, and the CRC of the bytes that it had then.
#[derive(Debug, Default)]
struct VerifiedBlock {
    count: AtomicU32,
    crc: AtomicU64,
}

impl Tier {
    fn new(reader: TierReader) -> Self {
        let (verified, reported) = (OnceLock::new(), OnceLock::new());
        Self { reader: Arc::new(reader), verified, reported, mapped: Instant::now() }
    }

    fn verified(&self) -> &[VerifiedBlock] {
        let none = || (0..self.reader.entries()).map(|_| VerifiedBlock::default()).collect();
        self.verified.get_or_init(none)
    }

    fn reported(&self) -> &[AtomicU64] {
        let none = || (0..self.reader.entries()).map(|_| AtomicU64::new(0)).collect();
        self.reported.get_or_init(none)
    }
}

impl Tiers {
    fn get(session: &Session, volume: u16, members: Members) -> Result<Self, ClientError> {
        let ask = ControlRequest::ShowTier { volume };
        let packet = session.control().call("asking for memory tiers", ask, &[])?;
        let ControlReply::Tier { members: bytes } = packet.message else {
            let what = format!("answer about memory tiers: {:?}", packet.message);
            return Err(ClientError::protocol(what));
        };
        let mut files = packet.fds.into_iter();
        let tier = |bytes: u64| {
            let file = if bytes > 0 { files.next() } else { None };
            let reader = |file| Ok(TierReader::new(WordView::open_untouched(file, bytes)?));
            let view = |file| reader(file).map(|reader: Option<_>| reader.map(Tier::new));
            file.map_or(Ok(None), view)
        };
        let of = bytes.into_iter().map(tier).collect::<Result<Vec<_>, ClientError>>()?;
        if of.len() != usize::from(members.count()) {
            let what = format!("memory tiers of {} members, not {}", of.len(), members.count());
            return Err(ClientError::protocol(what));
        }
        Ok(Self { of, members })
    }

    /// The tier of a key's member.
    fn of_key(&self, uid: u64, lo: u64) -> Option<&Tier> {
        self.of[usize::from(self.members.place_of(uid, lo))].as_ref()
    }
}

/// The tiers of a store, once it was asked for them: none where the sidecar has none, is of an
/// earlier release, or does not show them to this client.
#[derive(Clone, Default)]
pub(crate) struct MemoryTiers(Arc<OnceLock<Option<Tiers>>>);

impl MemoryTiers {
    /// Maps them, if that was not tried before.
    pub(crate) fn fetch(&self, session: &Session, volume: u16, members: Members) {
        if self.0.get().is_some() {
            return;
        }
        let tiers = match session.control().protocol().shows_tiers() {
            true => Tiers::get(session, volume, members),
            false => Err(ClientError::protocol("a sidecar without tiers")),
        };
        let tiers = match tiers {
            Ok(tiers) => Some(tiers).filter(|tiers| tiers.of.iter().any(Option::is_some)),
            Err(ClientError::Denied { .. } | ClientError::Protocol { .. }) => None,
            Err(_) => return, // the next opening of a namespace asks again
        };
        let _first = self.0.set(tiers); // or another thread's, which are the same
    }

    fn known(&self) -> Option<&Tiers> {
        self.0.get()?.as_ref()
    }

    /// Whether there are some.
    pub(crate) fn are_there(&self) -> bool {
        self.known().is_some()
    }

    /// The memory of each: where it begins here, and its bytes.
    pub(crate) fn memory(&self) -> Vec<(NonNull<u8>, usize)> {
        let of = self.known().map_or(&[][..], |tiers| &tiers.of);
        of.iter().flatten().map(|tier| tier.reader.memory()).collect()
    }

    /// The block whose key has this lower half, if a tier has it.
    pub(crate) fn find(&self, uid: u64, lo: u64) -> Option<InMemory<'_>> {
        let tier = self.known()?.of_key(uid, lo)?;
        tier.reader.find(uid, lo).map(|found| InMemory { tier, found })
    }
}

impl fmt::Debug for MemoryTiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.are_there() { "memory tiers" } else { "no memory tiers" })
    }
}

/// A block that a memory tier has.
#[derive(Debug)]
pub(crate) struct InMemory<'a> {
    tier: &'a Tier,
    found: TierFound,
}

impl InMemory<'_> {
    pub(crate) fn bytes(&self) -> u32 {
        self.found.block.length
    }

    /// The check that its bytes must have.
    pub(crate) fn check(&self) -> u64 {
        self.found.block.check
    }

    /// Whether a use of it is to be reported: the directory shows none since the hand came by, or
    /// this store object has reported none in this second. Hits in memory are no others of the
    /// store, which would take hot blocks for cold ones.
    pub(crate) fn is_use_due(&self) -> bool {
        let (place, now) = self.reported();
        place.load(Ordering::Relaxed) != now || !self.found.is_used // orders nothing
    }

    /// A use was reported.
    pub(crate) fn note_use(&self) {
        let (place, now) = self.reported();
        place.store(now, Ordering::Relaxed); // as above
    }

    fn reported(&self) -> (&AtomicU64, u64) {
        let (entry, count) = self.found.of();
        let second = self.tier.mapped.elapsed().as_secs() & u64::from(u32::MAX);
        (&self.tier.reported()[entry], u64::from(count) << 32 | second)
    }

    /// Copies it. False: it left the tier meanwhile.
    pub(crate) fn copy(&self, out: &mut [u8]) -> bool {
        self.tier.reader.copy(&self.found, out)
    }

    /// Has its memory stay as it is while the hold lasts. Nothing when it left the tier meanwhile,
    /// or the client holds as many blocks as it may.
    pub(crate) fn hold(&self, holds: &Arc<Holds>) -> Option<HeldBlock> {
        HeldBlock::new(&self.tier.reader, &self.found, holds)
    }

    /// The CRC of its bytes, if this process has computed it in place. The directory knows half of
    /// a key: with the CRC the check shows whether the block is that of the whole key. Where two
    /// threads noted at once it may be another block's, and no check agrees with it.
    pub(crate) fn known_crc(&self) -> Option<u64> {
        let (entry, count) = self.found.of();
        let verified = &self.tier.verified()[entry];
        // Pairs with Release in `note_crc`.
        let is_known = verified.count.load(Ordering::Acquire) == count;
        is_known.then(|| verified.crc.load(Ordering::Relaxed))
    }

    /// Its bytes have this CRC, and were held meanwhile.
    pub(crate) fn note_crc(&self, crc: u64) {
        let (entry, count) = self.found.of();
        let verified = &self.tier.verified()[entry];
        verified.crc.store(crc, Ordering::Relaxed);
        verified.count.store(count, Ordering::Release); // pairs with Acquire in `known_crc`
    }
}
