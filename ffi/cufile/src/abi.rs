//! The C layouts that cuFile's calls take, written from the public API reference.
//!
//! `scripts/dev cufile-layout` compares every size and offset below with an installed header.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::mem::{offset_of, size_of};

/// `CUfileError_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct CallError {
    pub(crate) op: c_int,
    pub(crate) cuda: c_int,
}

/// `CUfileDescr_t` of a Linux descriptor.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) kind: c_uint,
    /// The union behind it is aligned like the pointer it may hold.
    pub(crate) padding: c_uint,
    /// The union's member for Linux.
    pub(crate) fd: c_int,
    pub(crate) union_rest: c_int,
    pub(crate) fs_ops: *const c_void,
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
pub(crate) const KIND_FD: c_uint = 1;

/// `CUfileIOParams_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IoParams {
    pub(crate) mode: c_uint,
    pub(crate) buffer: *mut c_void,
    pub(crate) file_offset: i64,
    pub(crate) buffer_offset: i64,
    pub(crate) bytes: usize,
    pub(crate) file: *mut c_void,
    pub(crate) opcode: c_uint,
    pub(crate) cookie: *mut c_void,
}

/// `CUFILE_BATCH`.
pub(crate) const MODE_BATCH: c_uint = 1;
/// `CUFILE_READ`.
pub(crate) const OPCODE_READ: c_uint = 0;
/// `CUFILE_WRITE`.
pub(crate) const OPCODE_WRITE: c_uint = 1;

/// `CUfileIOEvents_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IoEvent {
    pub(crate) cookie: *mut c_void,
    pub(crate) status: c_uint,
    /// Bytes moved, or a negative error.
    pub(crate) result: usize,
}

/// `struct timespec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Timespec {
    pub(crate) seconds: c_long,
    pub(crate) nanoseconds: c_long,
}

/// `CUfileDrvProps_t`, with room behind it for what newer versions append.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct DriverProperties {
    pub(crate) major: c_uint,
    pub(crate) minor: c_uint,
    pub(crate) poll_threshold_bytes: usize,
    pub(crate) direct_io_bytes_max: usize,
    pub(crate) status_flags: c_uint,
    pub(crate) control_flags: c_uint,
    pub(crate) feature_flags: c_uint,
    pub(crate) device_cache_kib_max: c_uint,
    pub(crate) buffer_cache_kib: c_uint,
    pub(crate) pinned_kib_max: c_uint,
    pub(crate) batch_entries_max: c_uint,
    pub(crate) batch_timeout_ms_max: c_uint,
    pub(crate) appended: [u64; 16],
}

const _: () = {
    assert!(size_of::<CallError>() == 8 && offset_of!(CallError, cuda) == 4);
    assert!(size_of::<Descriptor>() == 24);
    assert!(offset_of!(Descriptor, fd) == 8 && offset_of!(Descriptor, fs_ops) == 16);
    assert!(size_of::<IoParams>() == 64);
    assert!(offset_of!(IoParams, buffer) == 8 && offset_of!(IoParams, file_offset) == 16);
    assert!(offset_of!(IoParams, buffer_offset) == 24 && offset_of!(IoParams, bytes) == 32);
    assert!(offset_of!(IoParams, file) == 40 && offset_of!(IoParams, opcode) == 48);
    assert!(offset_of!(IoParams, cookie) == 56);
    assert!(size_of::<IoEvent>() == 24);
    assert!(offset_of!(IoEvent, status) == 8 && offset_of!(IoEvent, result) == 16);
    assert!(size_of::<DriverProperties>() - size_of::<[u64; 16]>() == 56);
    assert!(offset_of!(DriverProperties, status_flags) == 24);
    assert!(offset_of!(DriverProperties, feature_flags) == 32);
    assert!(offset_of!(DriverProperties, batch_entries_max) == 48);
};
