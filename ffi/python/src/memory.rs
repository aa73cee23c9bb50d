//! Memory of arenas on its way to Python: buffers, DLPack, and names of ranges for requests.
#![expect(unsafe_code, reason = "fills structures of C with addresses of mapped memory")]
// UNSAFETY: every address given out lies in a mapping that an `Arc<dyn Pinned>` keeps, and whoever
// gets the address gets such an `Arc`, or the Python object that holds one. No Rust reference to
// the bytes is ever formed here: Python and the devices share them as C programs do.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use kvrail_client::{Arena, ClientError, Lease};
use kvrail_memory::Pinned;
use pyo3::exceptions::{PyBufferError, PyOSError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::from_client;

/// Names a range of an arena for a request.
pub(crate) fn named(arena: &Arena, position: u64, length: u64) -> PyResult<Lease> {
    let [position, length] =
        [position, length].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    // SAFETY: the lease is never dereferenced: it names the range on its way to the sidecar and
    // back, and `Completion` drops it.
    let memory = unsafe { arena.pool().assume(position, length) };
    let memory = memory.map_err(|error| from_client(ClientError::from(error)))?;
    arena.adopt(memory).map_err(from_client)
}

/// A descriptor of our own for what Python has open: a number, or something with `fileno`.
pub(crate) fn duplicate(file: &Bound<'_, PyAny>) -> PyResult<OwnedFd> {
    let number: i32 = match file.extract() {
        Ok(number) => number,
        Err(_) => file.call_method0("fileno")?.extract()?,
    };
    if number < 0 {
        return Err(PyOSError::new_err(format!("descriptor {number} is not open")));
    }
    // SAFETY: not negative, and borrowed for the length of this call: if it is not open, the
    // kernel says so.
    Ok(unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()?)
}

/// Fills a buffer view with all of the memory.
///
/// # Safety
/// `view` is what the interpreter passed to `__getbuffer__`; `owner` keeps the memory mapped for
/// as long as it lives.
pub(crate) unsafe fn fill(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    memory: &Arc<dyn Pinned>,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    let base = memory.base().as_ptr().cast::<c_void>();
    let bytes = ffi::Py_ssize_t::try_from(memory.bytes())?;
    // SAFETY: `view` is the interpreter's; the call takes a reference to `owner`, which keeps the
    // memory until the view is released.
    let outcome = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), base, bytes, 0, flags) };
    if outcome == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}

/// DLPack's description of a tensor (dlpack.h, `DLTensor`).
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`: what consumers before DLPack 1.0 take.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// `DLManagedTensorVersioned`: what consumers from DLPack 1.0 on take.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: Tensor,
}

/// What a tensor keeps alive until its consumer calls the deleter, in whatever thread.
struct Kept {
    shape: [i64; 1],
    _memory: Arc<dyn Pinned>,
}

/// `kDLCPU`.
pub(crate) const DLPACK_CPU: i32 = 1;
/// `kDLUInt`.
const DLPACK_UNSIGNED: u8 = 1;

const PLAIN: &CStr = c"dltensor";
const WITH_VERSION: &CStr = c"dltensor_versioned";

fn tensor(memory: &Arc<dyn Pinned>) -> PyResult<(Tensor, *mut Kept)> {
    let shape = [i64::try_from(memory.bytes())?];
    let kept = Box::into_raw(Box::new(Kept { shape, _memory: Arc::clone(memory) }));
    let tensor = Tensor {
        data: memory.base().as_ptr().cast(),
        device_type: DLPACK_CPU,
        device_id: 0,
        dimensions: 1,
        type_code: DLPACK_UNSIGNED,
        type_bits: 8,
        type_lanes: 1,
        // SAFETY: just made from a box; a raw pointer to the field, no reference.
        shape: unsafe { &raw mut (*kept).shape }.cast(),
        strides: ptr::null_mut(), // compact
        byte_offset: 0,
    };
    Ok((tensor, kept))
}

/// # Safety
/// `managed` came from `plain_capsule` and is not used again.
unsafe extern "C" fn delete_plain(managed: *mut Managed) {
    // SAFETY: made by `Box::into_raw`; consumers call the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: its context was made the same way.
    drop(unsafe { Box::from_raw(managed.context.cast::<Kept>()) });
}

/// # Safety
/// `managed` came from `versioned_capsule` and is not used again.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: made by `Box::into_raw`; consumers call the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: its context was made the same way.
    drop(unsafe { Box::from_raw(managed.context.cast::<Kept>()) });
}

/// A capsule that nobody consumed still has its name: then its tensor is deleted with it.
///
/// # Safety
/// The interpreter calls it with a capsule made here.
unsafe extern "C" fn drop_capsule(capsule: *mut ffi::PyObject) {
    // SAFETY: a capsule; a renamed one (consumed) is not valid under the name.
    if unsafe { ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) } != 0 {
        // SAFETY: valid, so this is the pointer it was made with.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()) };
        // SAFETY: made in `capsule`, not consumed.
        unsafe { delete_plain(managed.cast()) };
    }
    // SAFETY: as above.
    if unsafe { ffi::PyCapsule_IsValid(capsule, WITH_VERSION.as_ptr()) } != 0 {
        // SAFETY: as above.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, WITH_VERSION.as_ptr()) };
        // SAFETY: as above.
        unsafe { delete_versioned(managed.cast()) };
    }
}

/// Which layout of a DLPack capsule the consumer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dlpack {
    /// Before DLPack 1.0.
    Plain,
    /// 1.0 and later.
    Versioned,
}

/// All of the memory as a DLPack capsule: a tensor of bytes.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    memory: &Arc<dyn Pinned>,
    layout: Dlpack,
) -> PyResult<Bound<'py, PyAny>> {
    let (tensor, kept) = tensor(memory)?;
    let context = kept.cast();
    let (pointer, name) = match layout {
        Dlpack::Plain => {
            let deleter = Some(delete_plain as unsafe extern "C" fn(_));
            let managed = Managed { tensor, context, deleter };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), PLAIN)
        }
        Dlpack::Versioned => {
            let deleter = Some(delete_versioned as unsafe extern "C" fn(_));
            let managed = Versioned { major: 1, minor: 0, context, deleter, flags: 0, tensor };
            (Box::into_raw(Box::new(managed)).cast::<c_void>(), WITH_VERSION)
        }
    };
    // SAFETY: the name is static, the pointer ours; the destructor frees what nobody consumed.
    let made = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule)) };
    // SAFETY: a new reference or null with an exception set. (Without memory for a capsule the
    // tensor leaks: nobody is left to free it for.)
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}
