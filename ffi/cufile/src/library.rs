//! The opened driver, registered files and registered GPU memory.
#![expect(unsafe_code, reason = "calls libcufile")]
// UNSAFETY: each value holds the library that made it; what is passed by pointer lives on this
// stack during the call or is owned by the value.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::sync::Arc;

use crate::abi::{CallError, Descriptor, DriverProperties, KIND_FD};
use crate::error::CuFileError;
use crate::status::OpStatus;
use crate::table::FunctionTable;

/// `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE` of the parameters that hold a truth value.
const PARAMETER_ALLOW_COMPAT: u32 = 1;

/// Whether cuFile may bounce through host memory where it cannot go directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compat {
    /// It may; the transfers are reported as `compat`.
    Allowed,
    /// It must not: registering a file it cannot reach directly fails.
    Refused,
}

/// The driver's report of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Version of nvidia-fs; (0, 0) where it is not loaded.
    pub nvidia_fs: (u32, u32),
    /// One bit for each kind of storage it reaches directly (`CUfileDriverStatusFlags`).
    pub status_flags: u32,
    /// One bit for each feature (`CUfileFeatureFlags`).
    pub feature_flags: u32,
    /// Most entries of a batch.
    pub batch_entries_max: u32,
    /// Most bytes handed to the storage at once.
    pub direct_io_bytes_max: u64,
}

impl Properties {
    /// Local NVMe through nvidia-fs or PCI peer-to-peer (bits 4 and 11).
    const NVME: u32 = 1 << 4 | 1 << 11;

    /// Whether local NVMe is reached without a bounce through host memory.
    #[must_use]
    pub const fn reaches_nvme(&self) -> bool {
        self.status_flags & Self::NVME != 0
    }
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// File to GPU memory.
    Read,
    /// GPU memory to file.
    Write,
}

/// libcufile with its driver open.
#[derive(Debug)]
pub struct CuFile {
    pub(crate) table: FunctionTable,
}

/// Turns a returned status into a result.
pub(crate) fn check(call: &'static str, error: CallError) -> Result<(), CuFileError> {
    match OpStatus(error.op) {
        OpStatus::SUCCESS => Ok(()),
        status => Err(CuFileError::Call { call, status, cuda: error.cuda }),
    }
}

impl CuFile {
    /// Loads the library and opens its driver. Once per process; needs a CUDA context that is
    /// current on this thread for the GPUs it is to see.
    ///
    /// # Errors
    /// `CuFileError` when the library or a function is missing or the driver cannot be opened.
    pub fn open(compat: Compat) -> Result<Arc<Self>, CuFileError> {
        let table = FunctionTable::load()?;
        let allowed = compat == Compat::Allowed;
        // SAFETY: plain values; allowed before the driver is open.
        let set = unsafe { (table.set_bool)(PARAMETER_ALLOW_COMPAT, allowed) };
        check("cuFileSetParameterBool", set)?;
        // SAFETY: no arguments; the table's library is loaded for good.
        check("cuFileDriverOpen", unsafe { (table.driver_open)() })?;
        Ok(Arc::new(Self { table }))
    }

    /// The file the functions are from.
    #[must_use]
    pub fn library(&self) -> &'static str {
        self.table.library
    }

    /// The library's version in its own form: 1,000 times major plus 10 times minor.
    ///
    /// # Errors
    /// The library's.
    pub fn version(&self) -> Result<u32, CuFileError> {
        let mut version: c_int = 0;
        // SAFETY: the number lives on this stack and is written before the call returns.
        check("cuFileGetVersion", unsafe { (self.table.version)(&raw mut version) })?;
        Ok(version.unsigned_abs())
    }

    /// The driver's report of itself.
    ///
    /// # Errors
    /// The library's.
    pub fn properties(&self) -> Result<Properties, CuFileError> {
        let mut raw = DriverProperties::default();
        // SAFETY: the structure lives on this stack, with room for fields appended later.
        let got = unsafe { (self.table.driver_properties)(&raw mut raw) };
        check("cuFileDriverGetProperties", got)?;
        Ok(Properties {
            nvidia_fs: (raw.major, raw.minor),
            status_flags: raw.status_flags,
            feature_flags: raw.feature_flags,
            batch_entries_max: raw.batch_entries_max,
            direct_io_bytes_max: (raw.direct_io_bytes_max as u64).saturating_mul(1024),
        })
    }

    /// Registers an open file or block device, best opened with O_DIRECT.
    ///
    /// # Errors
    /// The library's; 5027 often means that udev's database has no entry for the device.
    pub fn register_file(self: &Arc<Self>, fd: OwnedFd) -> Result<File, CuFileError> {
        let (number, mut handle) = (fd.as_raw_fd(), ptr::null_mut());
        let mut descriptor = Descriptor {
            kind: KIND_FD,
            padding: 0,
            fd: number,
            union_rest: 0,
            fs_ops: ptr::null(),
        };
        // SAFETY: handle and descriptor live on this stack; the descriptor's number stays open as
        // long as the value that is returned.
        let got = unsafe { (self.table.handle_register)(&raw mut handle, &raw mut descriptor) };
        check("cuFileHandleRegister", got)?;
        Ok(File { handle, library: Arc::clone(self), _fd: fd })
    }

    /// Registers GPU memory; `keep` must live while the memory is used.
    ///
    /// # Safety
    /// `address` must be the first of `bytes` bytes of GPU memory that stay mapped in this process
    /// while `keep` lives.
    ///
    /// # Errors
    /// The library's.
    pub unsafe fn register_buffer(
        self: &Arc<Self>,
        address: u64,
        bytes: usize,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Result<Buffer, CuFileError> {
        let base = ptr::without_provenance_mut(usize::try_from(address).expect("64-bit machine"));
        // SAFETY: the caller's promise; `keep` goes into the value that is returned.
        let got = unsafe { (self.table.buffer_register)(base, bytes, 0) };
        check("cuFileBufRegister", got)?;
        Ok(Buffer { base, bytes, library: Arc::clone(self), _keep: keep })
    }

    /// One blocking read or write, for comparisons: nothing on a poller calls it.
    ///
    /// # Errors
    /// A cuFile status, or INTERNAL_ERROR with the negative number the call returned.
    pub fn transfer(
        &self,
        direction: TransferDirection,
        (file, file_offset): (&File, u64),
        (buffer, buffer_offset): (&Buffer, u64),
        bytes: usize,
    ) -> Result<usize, CuFileError> {
        buffer.check(buffer_offset, bytes);
        let (at, inside) = (signed(file_offset), signed(buffer_offset));
        let moved = match direction {
            // SAFETY: file and buffer are registered while they are borrowed here; the range lies
            // within the buffer, checked above.
            TransferDirection::Read => unsafe {
                (self.table.read)(file.handle, buffer.base, bytes, at, inside)
            },
            // SAFETY: as for the read.
            TransferDirection::Write => unsafe {
                (self.table.write)(file.handle, buffer.base, bytes, at, inside)
            },
        };
        usize::try_from(moved).map_err(|_| CuFileError::Call {
            call: if direction == TransferDirection::Read { "cuFileRead" } else { "cuFileWrite" },
            status: OpStatus(i32::try_from(-moved).unwrap_or(OpStatus::INTERNAL_ERROR.0)),
            cuda: 0,
        })
    }
}

impl Drop for CuFile {
    fn drop(&mut self) {
        // SAFETY: every file, buffer and batch holds this value, so none is left.
        let _closed = unsafe { (self.table.driver_close)() };
    }
}

/// A registered file.
pub struct File {
    pub(crate) handle: *mut c_void,
    library: Arc<CuFile>,
    _fd: OwnedFd,
}

/// Registered GPU memory.
pub struct Buffer {
    pub(crate) base: *mut c_void,
    bytes: usize,
    library: Arc<CuFile>,
    _keep: Arc<dyn Any + Send + Sync>,
}

impl Buffer {
    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Panics unless the range lies within the buffer.
    pub(crate) fn check(&self, offset: u64, bytes: usize) {
        let end = offset.checked_add(bytes as u64);
        let whole = self.bytes;
        assert!(
            end.is_some_and(|end| end <= whole as u64),
            "a transfer of {bytes} bytes at offset {offset} leaves the buffer of {whole} bytes"
        );
    }
}

/// Offsets come from checked ranges far below the sign bit.
pub(crate) fn signed(offset: u64) -> i64 {
    i64::try_from(offset).expect("offsets of files and buffers are below 2^63")
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

// SAFETY: a handle is a name for the library, which may be called from any thread.
unsafe impl Send for File {}
// SAFETY: as for Send; `&File` gives out the name only.
unsafe impl Sync for File {}
// SAFETY: the base is a GPU address, a name for the library; the host never follows it.
unsafe impl Send for Buffer {}
// SAFETY: as for Send.
unsafe impl Sync for Buffer {}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: batches hold what their open entries name, so no I/O is in flight on it.
        unsafe { (self.library.table.handle_deregister)(self.handle) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: as for the file; the memory is still mapped, `_keep` goes after this.
        let _gone = unsafe { (self.library.table.buffer_deregister)(self.base) };
    }
}
