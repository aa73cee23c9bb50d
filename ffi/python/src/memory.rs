//! Memory of arenas on its way to Python: buffers, DLPack, and names of ranges for requests.
#![expect(unsafe_code, reason = "fills structures of C with addresses of mapped memory")]
// UNSAFETY: every address given out lies in a mapping that an `Arc<dyn Pinned>` keeps, and the
// receiver of the address gets such an `Arc`, or the Python object that holds one. No Rust
// reference to the bytes is ever formed here: Python and the devices share them as C programs do.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use kvrail_client::{Arena, ClientError, Lease};
use kvrail_memory::Pinned;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyOSError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::from_client;
use crate::errors::raised::RequestError;
use crate::rows::Rows;

/// Names a range of an arena for a request.
pub(crate) fn named(arena: &Arena, position: u64, length: u64) -> PyResult<Lease> {
    let [position, length] =
        [position, length].map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    lent(arena, position, length).map_err(from_client)
}

/// As `named`, without Python.
pub(crate) fn lent(arena: &Arena, position: usize, length: usize) -> Result<Lease, ClientError> {
    // SAFETY: only the client library reads the bytes, to compute and verify checks and to copy the
    // tails of blocks, and only while their request is in flight. Until it has ended they are not
    // the program's, as the package's documentation states; a program that reads them all the same
    // sees bytes in the middle of a move, as a C program would.
    let memory = unsafe { arena.pool().assume(position, length) };
    arena.adopt(memory?)
}

/// Copies all rows of a buffer.
pub(crate) fn copied(_py: Python<'_>, buffer: &PyUntypedBuffer, rows: &Rows) -> Vec<u8> {
    let mut all = vec![0; rows.count * rows.bytes];
    let first = buffer.buf_ptr().cast::<u8>();
    for (at, row) in all.chunks_exact_mut(rows.bytes.max(1)).enumerate() {
        let from = first.wrapping_offset(rows.stride * at.cast_signed());
        // SAFETY: `rows` is of this buffer, which is exported and stays where it is; Python is
        // held, and a thread without it that writes there races as it would with `bytes()`.
        unsafe { ptr::copy_nonoverlapping(from, row.as_mut_ptr(), rows.bytes) };
    }
    all
}

/// Where the memory of an object begins.
pub(crate) fn address_of(from: &Bound<'_, PyAny>) -> PyResult<usize> {
    let kind = from.get_type();
    let found = Outside::of(from)?.map(|outside| outside.address(0));
    found.ok_or_else(|| RequestError::new_err(format!("a {kind}; pass an address or a buffer")))
}

/// Memory of the program's own: an object's description of it, and the reference that keeps it.
#[derive(Debug)]
pub(crate) struct Outside {
    address: usize,
    rows: Rows,
    readonly: bool,
    _keep: Keep,
}

#[derive(Debug)]
enum Keep {
    Buffer { _exported: PyUntypedBuffer },
    Tensor { _object: Py<PyAny> },
}

impl Outside {
    /// The memory behind a buffer, or behind a tensor with its own address. `None` when it is
    /// neither, or the bytes of a row lie apart.
    pub(crate) fn of(from: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Ok(exported) = PyUntypedBuffer::get(from) else { return Self::of_tensor(from) };
        let rows = Rows::of(&exported);
        Ok(rows.map(|rows| Self {
            address: exported.buf_ptr().addr(),
            rows,
            readonly: exported.readonly(),
            _keep: Keep::Buffer { _exported: exported },
        }))
    }

    /// The memory of what speaks as PyTorch's tensors do.
    fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Ok(address) = tensor.call_method0("data_ptr") else { return Ok(None) };
        if tensor.getattr("device")?.getattr("type")?.extract::<String>()? != "cpu" {
            let text = "a buffer is a tensor on a GPU; move it through an arena, as by .cpu()";
            return Err(RequestError::new_err(text));
        }
        let item: usize = tensor.call_method0("element_size")?.extract()?;
        let shape: Vec<usize> = tensor.getattr("shape")?.extract()?;
        let strides: Vec<isize> = tensor.call_method0("stride")?.extract()?;
        let strides: Vec<isize> =
            strides.into_iter().map(|stride| stride * item.cast_signed()).collect();
        Ok(Rows::from_shape(&shape, &strides, item).map(|rows| Self {
            address: address.extract().unwrap_or(0),
            rows,
            readonly: false,
            _keep: Keep::Tensor { _object: tensor.clone().unbind() },
        }))
    }

    pub(crate) fn rows(&self) -> Rows {
        self.rows
    }

    pub(crate) fn is_readonly(&self) -> bool {
        self.readonly
    }

    /// Makes one row of all, if nothing lies between them.
    pub(crate) fn into_one(self) -> Option<Self> {
        let Rows { count, stride, bytes } = self.rows;
        let rows = Rows { count: 1, stride: 0, bytes: count * bytes };
        let dense = count < 2 || stride == bytes.cast_signed();
        dense.then_some(Self { rows, ..self })
    }

    /// Where a row begins.
    pub(crate) fn address(&self, row: usize) -> usize {
        self.address.wrapping_add_signed(self.rows.stride * row.cast_signed())
    }

    /// Copies the first bytes of a row.
    pub(crate) fn load(&self, row: usize, into: &mut [u8]) {
        assert!(row < self.rows.count && into.len() <= self.rows.bytes, "beyond the buffer");
        let from = ptr::with_exposed_provenance::<u8>(self.address(row));
        // SAFETY: within the bounds of the object's export, as just seen; it is kept, and so stays
        // where it is. A concurrent write there puts a mixture, as with any write of a file.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Overwrites the first bytes of a row.
    pub(crate) fn store(&self, row: usize, bytes: &[u8]) {
        assert!(!self.readonly, "checked before");
        assert!(row < self.rows.count && bytes.len() <= self.rows.bytes, "beyond the buffer");
        let into = ptr::with_exposed_provenance_mut::<u8>(self.address(row));
        // SAFETY: as in `load`; and it is writable.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), into, bytes.len()) };
    }
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
    // SAFETY: not negative, and borrowed for the length of this call: the kernel rejects a closed
    // one.
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
    // SAFETY: as of this function.
    unsafe { fill_with(view, owner, (memory.base(), memory.bytes()), (Access::Write, flags)) }
}

/// What the holder of a buffer may do with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Fills a buffer view with these bytes.
///
/// # Safety
/// As of `fill`, with these bytes for the memory.
pub(crate) unsafe fn fill_with(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    (base, bytes): (NonNull<u8>, usize),
    (access, flags): (Access, c_int),
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill"));
    }
    let (owner_pointer, base) = (owner.as_ptr(), base.as_ptr().cast::<c_void>());
    let bytes = ffi::Py_ssize_t::try_from(bytes)?;
    let readonly = (access == Access::Read).into();
    // SAFETY: `view` is the interpreter's; the call takes a reference to `owner`, which keeps the
    // memory until the view is released.
    let outcome =
        unsafe { ffi::PyBuffer_FillInfo(view, owner_pointer, base, bytes, readonly, flags) };
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
struct KeptMemory {
    shape: [i64; 1],
    _memory: Arc<dyn Pinned>,
}

/// `kDLCPU`.
pub(crate) const DLPACK_CPU: i32 = 1;
/// `kDLUInt`.
const DLPACK_UNSIGNED: u8 = 1;

const PLAIN: &CStr = c"dltensor";
const WITH_VERSION: &CStr = c"dltensor_versioned";

fn tensor(memory: &Arc<dyn Pinned>) -> PyResult<(Tensor, *mut KeptMemory)> {
    let shape = [i64::try_from(memory.bytes())?];
    let kept = Box::into_raw(Box::new(KeptMemory { shape, _memory: Arc::clone(memory) }));
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
    drop(unsafe { Box::from_raw(managed.context.cast::<KeptMemory>()) });
}

/// # Safety
/// `managed` came from `versioned_capsule` and is not used again.
unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: made by `Box::into_raw`; consumers call the deleter once.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: its context was made the same way.
    drop(unsafe { Box::from_raw(managed.context.cast::<KeptMemory>()) });
}

/// A capsule that was never consumed still has its name: then its tensor is deleted with it.
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
    // SAFETY: the name is static, the pointer ours; the destructor frees unconsumed tensors.
    let made = unsafe { ffi::PyCapsule_New(pointer, name.as_ptr(), Some(drop_capsule)) };
    // SAFETY: a new reference or null with an exception set. (Without memory for a capsule the
    // tensor leaks: there is no owner to free it for.)
    unsafe { Bound::from_owned_ptr_or_err(py, made) }
}
