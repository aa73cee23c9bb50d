//! Blocks in the sidecar's memory, as C has them.
#![expect(unsafe_code, reason = "exports functions that take pointers")]
#![expect(clippy::missing_safety_doc, reason = "the header has it once for all")]
// UNSAFETY: pointers are followed by `boundary` and `key` only, on the header's terms.

use std::ffi::c_void;

use crate::boundary::{call, store, take};
use crate::key::{Key, keys};
use crate::namespace::{Namespace, opened};
use crate::queue::{Queue, hold};

/// A block in the sidecar's memory tier, where it lies.
#[derive(Debug)]
pub struct View {
    _view: kvrail_client::View,
}

/// A block in the sidecar's memory tier, without a copy, a request or a read: `bytes` becomes its
/// first byte, `length` how many there are. They may be read, by any thread, and stay as they are
/// until kvrail_view_close, whatever becomes of the block, as long as the sidecar does not end the
/// session; not in a forked child. `view` becomes NULL where the tier does
/// not have the block, or this client has as many views as it may (4 to 255, one for each 128
/// blocks of the tier): get it then. Verified at its first view by this client. A view keeps the
/// session of its client.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_view_open(
    queue: *mut Queue,
    space: *const Namespace,
    key: *const Key,
    view: *mut *mut View,
    bytes: *mut *const c_void,
    length: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's variables.
        unsafe { store(view, std::ptr::null_mut(), "view") }?;
        // SAFETY: as above.
        unsafe { store(bytes, std::ptr::null(), "bytes") }?;
        // SAFETY: as above.
        unsafe { store(length, 0, "length") }?;
        // SAFETY: the caller's handle.
        let space = unsafe { opened(space) }?;
        // SAFETY: the caller's key.
        let key = unsafe { keys(key, 1) }?[0];
        // SAFETY: the caller's handle.
        let (_, mut held) = unsafe { hold(queue) }?;
        let Some(found) = held.queue.view(space, key) else { return Ok(()) };
        // SAFETY: as above.
        unsafe { store(bytes, found.as_ptr().cast(), "bytes") }?;
        // SAFETY: as above.
        unsafe { store(length, found.len(), "length") }?;
        let made = Box::new(View { _view: found });
        // SAFETY: as above.
        unsafe { store(view, Box::into_raw(made), "view") }
    })
}

/// Lets the sidecar use the memory for other blocks, and sets the variable to NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvrail_view_close(view: *mut *mut View) -> i32 {
    call(|| {
        // SAFETY: the caller's variable with a handle that is not used any more.
        drop(unsafe { take(view, "view") }?);
        Ok(())
    })
}
