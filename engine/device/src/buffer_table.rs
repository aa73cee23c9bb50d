//! The regions attached to a device: which entries they take, and how many operations use each.
//!
//! One state machine for every device: attached, leaving (operations still use it), left (only the
//! hardware may still know it), free. Invariant 2 rests on the last two steps being apart.

use std::fmt;
use std::sync::Arc;

use kvrail_memory::Pinned;
use kvrail_ring::limits::ENTRY_BYTES;

use crate::contract::{AttachedBytes, BUFFERS_MAX, BufferIndex};
use crate::error::DeviceError;

/// When a detach can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// No operation uses the region: the hardware can unregister it.
    Now,
    /// Operations use it; the `release` of the last one returns `Now`.
    Later,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TableEntryState {
    #[default]
    Free,
    /// The second or a later entry of a larger region.
    Covered,
    Attached,
    Leaving,
    Left,
}

/// How requests name the memory of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    /// By an entry of the kernel's table: its pages are pinned as long as it is attached.
    #[default]
    Registered,
    /// By address alone: the kernel pins pages again for each request. Slower, but needs no
    /// permission to keep memory pinned.
    Addressed,
}

/// Where a range of an attached region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferPlace {
    pub(crate) address: usize,
    pub(crate) access: Access,
}

#[derive(Default)]
struct TableEntry {
    /// Address of the region's first byte.
    base: usize,
    /// Bytes that requests may name by entry: 0 unless the region is attached and registered.
    registered: u64,
    bytes: u64,
    uses: u32,
    /// Entries the region takes.
    span: u16,
    state: TableEntryState,
    access: Access,
    region: Option<Arc<dyn Pinned>>,
}

/// The buffer table of one device.
pub(crate) struct BufferTable {
    entries: Box<[TableEntry]>,
    attached: AttachedBytes,
}

/// Entries a region of that size takes.
pub(crate) fn span_of(bytes: u64) -> u16 {
    u16::try_from(bytes.div_ceil(ENTRY_BYTES)).unwrap_or(u16::MAX).max(1)
}

impl BufferPlace {
    /// Of an operation that moves no bytes.
    pub(crate) const NONE: Self = Self { address: 0, access: Access::Registered };
}

impl BufferTable {
    pub(crate) fn new() -> Self {
        let entries = (0..BUFFERS_MAX).map(|_| TableEntry::default()).collect();
        Self { entries, attached: AttachedBytes::default() }
    }

    /// Takes the entries from `at` on for a region.
    pub(crate) fn attach(
        &mut self,
        at: BufferIndex,
        region: Arc<dyn Pinned>,
    ) -> Result<(), DeviceError> {
        let bytes = region.bytes() as u64;
        let span = span_of(bytes);
        let first = usize::from(at.0);
        let Some(entries) = self.entries.get_mut(first..first + usize::from(span)) else {
            let what = "the region does not fit behind it; attach at a lower entry";
            return Err(DeviceError::Table { at, what });
        };
        if entries.iter().any(|entry| entry.state != TableEntryState::Free) {
            let what = "it or one behind it is taken; detach that region first";
            return Err(DeviceError::Table { at, what });
        }
        for entry in &mut *entries {
            entry.state = TableEntryState::Covered;
        }
        let base = region.base().as_ptr() as usize;
        let (state, access, registered) = (TableEntryState::Attached, Access::Registered, bytes);
        let region = Some(region);
        entries[0] = TableEntry { base, registered, bytes, uses: 0, span, state, access, region };
        self.attached.registered += bytes;
        Ok(())
    }

    /// The kernel does not register this region: requests name it by address. It was attached just
    /// now.
    pub(crate) fn address_only(&mut self, at: BufferIndex) {
        let entry = &mut self.entries[usize::from(at.0)];
        (entry.access, entry.registered) = (Access::Addressed, 0);
        self.attached.registered -= entry.bytes;
        self.attached.addressed += entry.bytes;
    }

    /// Whether requests name the region there by address.
    pub(crate) fn is_addressed(&self, at: BufferIndex) -> bool {
        self.entries[usize::from(at.0)].access == Access::Addressed
    }

    /// Bytes of all regions that are not free yet.
    pub(crate) fn attached(&self) -> AttachedBytes {
        self.attached
    }

    /// The place of a range of a registered region; `None` for any other range, which is for
    /// `place`.
    #[inline(always)]
    pub(crate) fn registered(
        &self,
        at: BufferIndex,
        offset: u64,
        length: u32,
    ) -> Option<BufferPlace> {
        let entry = self.entries.get(usize::from(at.0))?;
        let end = offset.checked_add(u64::from(length))?;
        if end > entry.registered {
            return None;
        }
        let address = entry.base + usize::try_from(offset).expect("below the region's length");
        Some(BufferPlace { address, access: Access::Registered })
    }

    /// The place of a range of an attached region.
    ///
    /// # Panics
    /// If nothing is attached there or the range leaves the region: the caller checks operations
    /// before they come here (invariant 4).
    #[inline]
    pub(crate) fn place(&self, at: BufferIndex, offset: u64, length: u32) -> BufferPlace {
        let entry = &self.entries[usize::from(at.0)];
        let end = offset.checked_add(u64::from(length));
        assert!(
            matches!(entry.state, TableEntryState::Attached | TableEntryState::Leaving)
                && end.is_some_and(|end| end <= entry.bytes),
            "invariant 4: buffer {} offset {offset} length {length} is not in an attached region",
            at.0
        );
        let address = entry.base + usize::try_from(offset).expect("below the region's length");
        BufferPlace { address, access: entry.access }
    }

    /// The region attached there.
    pub(crate) fn region(&self, at: BufferIndex) -> &Arc<dyn Pinned> {
        let region = self.entries[usize::from(at.0)].region.as_ref();
        region.expect("an operation in flight holds its region")
    }

    /// Counts an operation that uses the region. `registered` or `place` has checked that it is
    /// attached.
    #[inline(always)]
    pub(crate) fn acquire(&mut self, at: BufferIndex) {
        self.entries[usize::from(at.0)].uses += 1;
    }

    /// Counts it off, if the region is not leaving; else that is for `release`.
    #[inline(always)]
    pub(crate) fn release_attached(&mut self, at: BufferIndex) -> bool {
        let entry = &mut self.entries[usize::from(at.0)];
        if entry.state != TableEntryState::Attached {
            return false;
        }
        entry.uses = entry.uses.checked_sub(1).expect("invariant 1: released once per operation");
        true
    }

    /// Counts one use less. `Now` for the last use of a region that is leaving: the hardware can
    /// then unregister it.
    #[inline]
    pub(crate) fn release(&mut self, at: BufferIndex) -> Leave {
        let entry = &mut self.entries[usize::from(at.0)];
        entry.uses = entry.uses.checked_sub(1).expect("invariant 1: released once per operation");
        if entry.uses == 0 && entry.state == TableEntryState::Leaving {
            (entry.state, entry.registered) = (TableEntryState::Left, 0);
            return Leave::Now;
        }
        Leave::Later
    }

    /// Starts to forget a region.
    pub(crate) fn leave(&mut self, at: BufferIndex) -> Result<Leave, DeviceError> {
        let entry = self.entries.get_mut(usize::from(at.0));
        let Some(entry) = entry.filter(|entry| entry.state == TableEntryState::Attached) else {
            let what = "no region is attached there, or it is being detached already";
            return Err(DeviceError::Table { at, what });
        };
        if entry.uses > 0 {
            entry.state = TableEntryState::Leaving;
            return Ok(Leave::Later);
        }
        (entry.state, entry.registered) = (TableEntryState::Left, 0);
        Ok(Leave::Now)
    }

    /// Whether a region is there that nothing uses any more, and that is not free yet.
    pub(crate) fn has_left(&self, at: BufferIndex) -> bool {
        self.entries[usize::from(at.0)].state == TableEntryState::Left
    }

    /// Nothing can touch the region any more: its entries are free, its `Arc` is dropped.
    pub(crate) fn free(&mut self, at: BufferIndex) {
        let first = usize::from(at.0);
        let span = usize::from(self.entries[first].span);
        let TableEntry { uses, bytes, access, .. } = self.entries[first];
        assert_eq!(uses, 0, "invariant 2: freed while operations use it");
        *match access {
            Access::Registered => &mut self.attached.registered,
            Access::Addressed => &mut self.attached.addressed,
        } -= bytes;
        self.entries[first..first + span].fill_with(TableEntry::default);
    }
}

impl fmt::Debug for BufferTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let taken = self.entries.iter().enumerate().filter(|(_, entry)| entry.span > 0);
        f.debug_map().entries(taken.map(|(at, entry)| (at, (entry.state, entry.uses)))).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvrail_memory::HeapBlock;
    use kvrail_ring::limits::ENTRY_BYTES;

    use super::{Access, BufferPlace, BufferTable, Leave, span_of};
    use crate::contract::{AttachedBytes, BUFFERS_MAX, BufferIndex};

    fn block() -> Arc<HeapBlock> {
        Arc::new(HeapBlock::new(4096))
    }

    #[test]
    fn a_region_leaves_only_after_its_last_operation() {
        let (mut table, at, region) = (BufferTable::new(), BufferIndex(3), block());
        table.attach(at, region.clone()).unwrap();
        let place = BufferPlace { address: region_base(&region) + 4, access: Access::Registered };
        assert_eq!(table.place(at, 4, 4092), place);
        assert_eq!(table.registered(at, 4, 4092), Some(place));
        table.acquire(at);
        table.acquire(at);
        assert_eq!(table.leave(at).unwrap(), Leave::Later);
        assert!(table.leave(at).is_err() && table.attach(at, block()).is_err());
        assert_eq!(table.release(at), Leave::Later);
        assert_eq!(table.release(at), Leave::Now);
        assert_eq!(Arc::strong_count(&region), 2);
        assert_eq!(table.registered(at, 4, 4092), None, "it has left");
        table.free(at);
        assert_eq!(Arc::strong_count(&region), 1);
        table.attach(at, block()).unwrap();
    }

    #[test]
    fn a_region_that_is_not_registered_is_named_by_address_only() {
        let (mut table, at, region) = (BufferTable::new(), BufferIndex(3), block());
        table.attach(at, region.clone()).unwrap();
        table.attach(BufferIndex(4), block()).unwrap();
        table.address_only(at);
        let attached = AttachedBytes { registered: 4096, addressed: 4096 };
        assert_eq!((table.attached(), table.is_addressed(at)), (attached, true));
        assert_eq!(table.registered(at, 0, 4096), None);
        let place = BufferPlace { address: region_base(&region), access: Access::Addressed };
        assert_eq!(table.place(at, 0, 4096), place);
        table.acquire(at);
        assert_eq!((table.leave(at).unwrap(), table.has_left(at)), (Leave::Later, false));
        assert_eq!((table.release(at), table.has_left(at)), (Leave::Now, true));
        table.free(at);
        assert_eq!(table.attached(), AttachedBytes { registered: 4096, addressed: 0 });
        table.attach(at, region).unwrap();
        assert!(!table.is_addressed(at), "nothing is left of the one before");
    }

    #[test]
    fn no_range_outside_a_registered_region_is_named_by_entry() {
        let (mut table, at) = (BufferTable::new(), BufferIndex(0));
        table.attach(at, block()).unwrap();
        for (at, offset, length) in [
            (at, 1, 4096),
            (at, 4096, 1),
            (at, u64::MAX, 1),
            (BufferIndex(1), 0, 1),
            (BufferIndex(BUFFERS_MAX), 0, 1),
        ] {
            assert_eq!(table.registered(at, offset, length), None);
        }
        assert!(table.registered(at, 4095, 1).is_some());
    }

    fn region_base(block: &HeapBlock) -> usize {
        use kvrail_memory::Pinned;
        block.base().as_ptr() as usize
    }

    #[test]
    fn entries_that_do_not_exist_are_refused() {
        let mut table = BufferTable::new();
        assert!(table.attach(BufferIndex(BUFFERS_MAX), block()).is_err());
        assert!(table.leave(BufferIndex(BUFFERS_MAX)).is_err());
        assert!(table.leave(BufferIndex(0)).is_err());
    }

    #[test]
    fn large_regions_take_several_entries() {
        let one = ENTRY_BYTES;
        for (bytes, span) in [(1, 1), (one, 1), (one + 1, 2), (5 * one, 5), (u64::MAX, u16::MAX)] {
            assert_eq!(span_of(bytes), span);
        }
    }

    #[test]
    #[should_panic(expected = "invariant 4: buffer 0 offset 1 length 4096")]
    fn a_range_outside_the_region_is_a_bug_of_the_caller() {
        let mut table = BufferTable::new();
        table.attach(BufferIndex(0), block()).unwrap();
        table.place(BufferIndex(0), 1, 4096);
    }
}
