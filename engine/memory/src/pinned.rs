//! Memory that stays where it is: the contract that lanes and arenas stand on.
#![expect(unsafe_code, reason = "a contract that safe code relies on for its soundness")]
// UNSAFETY: the trait is unsafe to implement; nothing here is dereferenced.

use std::fmt::Debug;
use std::ptr::NonNull;

use rustix::io::Errno;

/// Memory whose address and length do not change while the value lives.
///
/// # Safety
/// `base` must point to `bytes` readable, writable, initialised bytes, aligned to 4096, until the
/// value is dropped. Other processes may write them at any time; this process touches them by the
/// copies of this crate, through a lease, or through the kernel only.
pub unsafe trait Pinned: Send + Sync + Debug {
    /// First byte, aligned to 4096.
    fn base(&self) -> NonNull<u8>;
    /// Length in bytes.
    fn bytes(&self) -> usize;

    /// Copies bytes out for a reader that must survive a peer's changes to the memory: an error
    /// where a load would fault, because a peer punched holes that cannot be filled again.
    ///
    /// # Errors
    /// The kernel's. Memory no peer can punch never fails.
    ///
    /// # Panics
    /// If the range does not lie within the memory.
    fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), Errno>;

    /// Copies bytes into memory of our own, for a reader as above: the kernel writes them there, as
    /// a device would. Nothing else of this process may touch the range meanwhile.
    ///
    /// # Errors
    /// As `read_at`.
    ///
    /// # Panics
    /// If one of the ranges does not lie within its memory.
    fn copy_to(
        &self,
        offset: usize,
        to: &dyn Pinned,
        to_offset: usize,
        bytes: usize,
    ) -> Result<(), Errno>;
}

/// Whether a range lies within memory of this length.
pub(crate) fn assert_within(what: &str, offset: usize, bytes: usize, whole: usize) {
    assert!(
        offset.checked_add(bytes).is_some_and(|end| end <= whole),
        "{what} of {bytes} bytes at offset {offset} leaves the memory of {whole} bytes"
    );
}
