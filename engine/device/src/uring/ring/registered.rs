//! The memory the kernel may touch, registered or by address, and the proof that it no longer does.
#![expect(unsafe_code, reason = "io_uring: registration of memory")]
// UNSAFETY: the kernel reads and writes registered memory by itself; the block names the holder of
// the memory.

use std::ptr;
use std::sync::Arc;

use kvrail_memory::Pinned;
use kvrail_ring::limits::ENTRY_BYTES;
use rustix::io::Errno;

use crate::contract::{Attached, BufferIndex, Operation};
use crate::uring::ring::make::errno_of;
use crate::uring::ring::{EntriesLeft, Fate, HeldRegion, Ring, TAG};
use crate::uring::sqe::SqeFormat;

impl<W: SqeFormat> Ring<W> {
    /// Registers the first entry of a region that begins at `at`; `register_more` does the others.
    ///
    /// # Errors
    /// As `register_more`; EBUSY while an earlier registration there that failed is not yet
    /// forgotten.
    pub(crate) fn register(
        &mut self,
        at: BufferIndex,
        region: &Arc<dyn Pinned>,
    ) -> Result<Attached, Errno> {
        let held = self.registered.at(at);
        if held.region.is_some() {
            return Err(Errno::BUSY);
        }
        held.region = Some(Arc::clone(region));
        self.register_more(at)
    }

    /// Registers the next entry of a region, with a tag.
    ///
    /// # Errors
    /// The kernel's: the region is not registered then. Entries that are there already are left to
    /// `unregister_one`, if there are any (`is_filled`). `address_only` makes the region usable
    /// nevertheless.
    pub(crate) fn register_more(&mut self, at: BufferIndex) -> Result<Attached, Errno> {
        let held = self.registered.at(at);
        let (index, region) = (held.filled, held.region.as_ref().expect("registered before"));
        let most = usize::try_from(ENTRY_BYTES).expect("64 MiB fit");
        let (start, bytes) = (usize::from(index) * most, region.bytes());
        let iov_base = region.base().as_ptr().wrapping_add(start).cast();
        let entry = libc::iovec { iov_base, iov_len: most.min(bytes - start) };
        if let Err(errno) = self.update(at.0 + index, entry, TAG | u64::from(at.0)) {
            let held = self.registered.at(at);
            held.fate = Fate::Silent;
            if index == 0 {
                *held = HeldRegion::default();
            }
            return Err(errno);
        }
        self.registered.at(at).filled += 1;
        Ok(if start + most < bytes { Attached::Partly } else { Attached::Whole })
    }

    /// Takes a region whose registration has failed: requests name it by address from now on.
    pub(crate) fn address_only(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) {
        let held = self.registered.at(at);
        held.region = Some(region);
        held.fate = Fate::Addressed;
    }

    /// Releases an addressed region without uses and returns `true`; or `false`, while the kernel
    /// has entries of its failed registration.
    pub(crate) fn let_go(&mut self, at: BufferIndex) -> bool {
        let held = self.registered.at(at);
        assert_eq!(held.fate, Fate::Addressed, "a registered region leaves with its tags");
        if held.filled > 0 {
            return false;
        }
        *held = HeldRegion::default();
        true
    }

    /// Makes sure that a range belongs to the addressed region that the operation names.
    #[cold]
    pub(super) fn check_addressed(&mut self, operation: &Operation, address: usize) {
        let held = self.registered.at(operation.buffer);
        let region = held.region.as_ref().filter(|_| held.fate == Fate::Addressed);
        let start = region.map(|region| region.base().as_ptr() as usize);
        let offset = start.and_then(|start| address.checked_sub(start));
        let end = offset.and_then(|offset| offset.checked_add(operation.length as usize));
        assert!(
            end.zip(region).is_some_and(|(end, region)| end <= region.bytes()),
            "invariant 4: {operation:?} is not in an addressed region"
        );
    }

    /// Whether any entry of the region at `at` is still to be emptied.
    pub(crate) fn is_filled(&mut self, at: BufferIndex) -> bool {
        let held = self.registered.at(at);
        held.filled > held.emptied
    }

    /// Makes one more entry of the region at `at` empty: unpinning takes as long as pinning did.
    /// `RingCompletion::Freed` follows when the kernel has dropped its last use of all of them. May
    /// be repeated after an error.
    pub(crate) fn unregister_one(&mut self, at: BufferIndex) -> Result<EntriesLeft, Errno> {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let index = self.registered.at(at).emptied;
        self.update(at.0 + index, empty, 0)?;
        let held = self.registered.at(at);
        held.emptied += 1;
        Ok(if held.emptied < held.filled { EntriesLeft::Some } else { EntriesLeft::None })
    }

    /// Puts one entry, or nothing, into the kernel's buffer table.
    fn update(&self, index: u16, entry: libc::iovec, tag: u64) -> Result<(), Errno> {
        let (entries, tags) = ([entry], [tag]);
        let submitter = self.io.submitter();
        // SAFETY: the entry is empty or lies within a region that `registered` keeps alive until
        // the entry's tag has come (`tag_came`), or for ever (`leak`).
        let done =
            unsafe { submitter.register_buffers_update(u32::from(index), &entries, Some(&tags)) };
        done.map_err(errno_of)
    }
}
