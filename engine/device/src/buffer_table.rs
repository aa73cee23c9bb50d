//! The regions attached to a device: which entries they take, and how many operations use each.
//!
//! One state machine for every device: attached, leaving (operations still use it), left (only the
//! hardware may still know it), free. Invariant 2 rests on the last two steps being apart.

use std::fmt;
use std::sync::Arc;

use kvrail_memory::Pinned;
use kvrail_ring::limits::ENTRY_BYTES;

use crate::contract::{BUFFERS_MAX, BufferIndex};
use crate::error::DeviceError;

/// What a detach has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leave {
    /// No operation uses the region: the hardware can be told to forget it.
    Now,
    /// Operations use it; the `release` of the last one says so.
    Later,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    /// The second or a later entry of a larger region.
    Covered,
    Attached,
    Leaving,
    Left,
}

#[derive(Default)]
struct Entry {
    /// Address of the region's first byte.
    base: usize,
    bytes: u64,
    uses: u32,
    /// Entries the region takes.
    span: u16,
    state: State,
    region: Option<Arc<dyn Pinned>>,
}

/// The buffer table of one device.
pub(crate) struct Table {
    entries: Box<[Entry]>,
}

/// Entries a region of that size takes.
pub(crate) fn span_of(bytes: u64) -> u16 {
    u16::try_from(bytes.div_ceil(ENTRY_BYTES)).unwrap_or(u16::MAX).max(1)
}

impl Table {
    pub(crate) fn new() -> Self {
        Self { entries: (0..BUFFERS_MAX).map(|_| Entry::default()).collect() }
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
        if entries.iter().any(|entry| entry.state != State::Free) {
            let what = "it or one behind it is taken; detach that region first";
            return Err(DeviceError::Table { at, what });
        }
        for entry in &mut *entries {
            entry.state = State::Covered;
        }
        let base = region.base().as_ptr() as usize;
        let state = State::Attached;
        entries[0] = Entry { base, bytes, uses: 0, span, state, region: Some(region) };
        Ok(())
    }

    /// Address of a range of an attached region.
    ///
    /// # Panics
    /// If nothing is attached there or the range leaves the region: the caller checks operations
    /// before they come here (invariant 4).
    #[inline(always)]
    pub(crate) fn address(&self, at: BufferIndex, offset: u64, length: u32) -> usize {
        let entry = &self.entries[usize::from(at.0)];
        let end = offset.checked_add(u64::from(length));
        assert!(
            matches!(entry.state, State::Attached | State::Leaving)
                && end.is_some_and(|end| end <= entry.bytes),
            "invariant 4: buffer {} offset {offset} length {length} is not in an attached region",
            at.0
        );
        entry.base + usize::try_from(offset).expect("below the region's length")
    }

    /// The region attached there.
    pub(crate) fn region(&self, at: BufferIndex) -> &Arc<dyn Pinned> {
        let region = self.entries[usize::from(at.0)].region.as_ref();
        region.expect("an operation in flight holds its region")
    }

    /// Counts an operation that uses the region. `address` has checked that it is attached.
    #[inline(always)]
    pub(crate) fn acquire(&mut self, at: BufferIndex) {
        self.entries[usize::from(at.0)].uses += 1;
    }

    /// Counts it off, if the region is not leaving; else that is for `release`.
    #[inline(always)]
    pub(crate) fn release_attached(&mut self, at: BufferIndex) -> bool {
        let entry = &mut self.entries[usize::from(at.0)];
        if entry.state != State::Attached {
            return false;
        }
        entry.uses = entry.uses.checked_sub(1).expect("invariant 1: released once per operation");
        true
    }

    /// Counts it off. Says whether it was the last one of a region that is leaving: the hardware
    /// can be told to forget it then.
    #[inline]
    pub(crate) fn release(&mut self, at: BufferIndex) -> Leave {
        let entry = &mut self.entries[usize::from(at.0)];
        entry.uses = entry.uses.checked_sub(1).expect("invariant 1: released once per operation");
        if entry.uses == 0 && entry.state == State::Leaving {
            entry.state = State::Left;
            return Leave::Now;
        }
        Leave::Later
    }

    /// Starts to forget a region.
    pub(crate) fn leave(&mut self, at: BufferIndex) -> Result<Leave, DeviceError> {
        let entry = self.entries.get_mut(usize::from(at.0));
        let Some(entry) = entry.filter(|entry| entry.state == State::Attached) else {
            let what = "no region is attached there, or it is being detached already";
            return Err(DeviceError::Table { at, what });
        };
        entry.state = if entry.uses == 0 { State::Left } else { State::Leaving };
        Ok(if entry.uses == 0 { Leave::Now } else { Leave::Later })
    }

    /// Nothing can touch the region any more: its entries are free, its `Arc` is dropped.
    pub(crate) fn free(&mut self, at: BufferIndex) {
        let first = usize::from(at.0);
        let span = usize::from(self.entries[first].span);
        assert_eq!(self.entries[first].uses, 0, "invariant 2: freed while operations use it");
        self.entries[first..first + span].fill_with(Entry::default);
    }
}

impl fmt::Debug for Table {
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

    use super::{Leave, Table, span_of};
    use crate::contract::{BUFFERS_MAX, BufferIndex};

    fn block() -> Arc<HeapBlock> {
        Arc::new(HeapBlock::new(4096))
    }

    #[test]
    fn a_region_leaves_only_after_its_last_operation() {
        let (mut table, at, region) = (Table::new(), BufferIndex(3), block());
        table.attach(at, region.clone()).unwrap();
        assert_eq!(table.address(at, 4, 4092), region_base(&region) + 4);
        table.acquire(at);
        table.acquire(at);
        assert_eq!(table.leave(at).unwrap(), Leave::Later);
        assert!(table.leave(at).is_err() && table.attach(at, block()).is_err());
        assert_eq!(table.release(at), Leave::Later);
        assert_eq!(table.release(at), Leave::Now);
        assert_eq!(Arc::strong_count(&region), 2);
        table.free(at);
        assert_eq!(Arc::strong_count(&region), 1);
        table.attach(at, block()).unwrap();
    }

    fn region_base(block: &HeapBlock) -> usize {
        use kvrail_memory::Pinned;
        block.base().as_ptr() as usize
    }

    #[test]
    fn entries_that_do_not_exist_are_refused() {
        let mut table = Table::new();
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
        let mut table = Table::new();
        table.attach(BufferIndex(0), block()).unwrap();
        table.address(BufferIndex(0), 1, 4096);
    }
}
