//! Registered memory: what the kernel may touch, and the proof that it no longer does.
#![expect(unsafe_code, reason = "io_uring: registration of memory")]
// UNSAFETY: the kernel reads and writes registered memory by itself; the block says who holds it.

use std::ptr;
use std::sync::Arc;

use kvrail_memory::Pinned;
use kvrail_ring::limits::REGISTERED_BYTES_MAX;
use rustix::io::Errno;

use crate::contract::{BUFFERS_MAX, BufferIndex};
use crate::uring::ring::{Ring, TAG, errno_of};
use crate::uring::wire::Wire;

/// A region the kernel may know, by its first table entry.
#[derive(Default)]
struct Held {
    region: Option<Arc<dyn Pinned>>,
    /// Entries registered whose tag has not come yet.
    tags: u16,
    /// Its registration failed half-way: nobody waits to hear that it is gone.
    undone: bool,
}

/// Every region the kernel may know.
pub(super) struct Registered {
    held: Box<[Held]>,
}

impl Default for Registered {
    fn default() -> Self {
        Self { held: (0..BUFFERS_MAX).map(|_| Held::default()).collect() }
    }
}

impl Registered {
    fn at(&mut self, at: BufferIndex) -> &mut Held {
        &mut self.held[usize::from(at.0)]
    }

    /// The kernel has dropped its last use of one entry of the region at `at`. When it was the
    /// last entry, the region is let go, and is named if somebody waits to hear that.
    pub(super) fn tag_came(&mut self, at: BufferIndex) -> Option<BufferIndex> {
        let held = self.at(at);
        held.tags = held.tags.checked_sub(1).expect("invariant 2: a tag comes once");
        if held.tags > 0 {
            return None;
        }
        let held = std::mem::take(held);
        (!held.undone).then_some(at)
    }

    /// Keeps every region for ever; says how many there are.
    pub(super) fn leak(&mut self) -> usize {
        let held = std::mem::take(&mut self.held);
        let regions = held.iter().filter(|held| held.region.is_some()).count();
        std::mem::forget(held);
        regions
    }
}

impl<W: Wire> Ring<W> {
    /// Registers a region as the entries from `at` on, each with a tag; one entry a call, since a
    /// larger update that fails half-way is reported as done.
    ///
    /// # Errors
    /// The kernel's; EBUSY while an earlier registration there that failed is not yet forgotten.
    pub(crate) fn register(
        &mut self,
        at: BufferIndex,
        region: &Arc<dyn Pinned>,
    ) -> Result<(), Errno> {
        if self.registered.at(at).region.is_some() {
            return Err(Errno::BUSY);
        }
        let bytes = region.bytes();
        let most = usize::try_from(REGISTERED_BYTES_MAX).expect("1 GiB fits");
        self.registered.at(at).region = Some(Arc::clone(region));
        for (start, index) in (0..bytes).step_by(most).zip(at.0..) {
            let iov_base = region.base().as_ptr().wrapping_add(start).cast();
            let entry = libc::iovec { iov_base, iov_len: most.min(bytes - start) };
            if let Err(errno) = self.update(index, entry, TAG | u64::from(at.0)) {
                self.undo(at);
                return Err(errno);
            }
            self.registered.at(at).tags += 1;
        }
        Ok(())
    }

    /// Forgets what `register` had done before it failed.
    #[cold]
    fn undo(&mut self, at: BufferIndex) {
        let held = self.registered.at(at);
        if held.tags == 0 {
            held.region = None;
            return;
        }
        held.undone = true;
        if let Err(errno) = self.unregister(at) {
            // Held, and so refused by `register`, until the ring is dropped.
            tracing::error!(%errno, entry = at.0, "a half-registered region cannot be removed");
        }
    }

    /// Makes the entries of the region at `at` empty. `Completion::Freed` follows when the kernel
    /// has dropped its last use of them. May be repeated after an error.
    pub(crate) fn unregister(&mut self, at: BufferIndex) -> Result<(), Errno> {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let tags = self.registered.at(at).tags;
        (at.0..at.0 + tags).try_for_each(|index| self.update(index, empty, 0))
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
