//! A batch handle: entries go in together, each comes back once with its own status.
#![expect(unsafe_code, reason = "calls libcufile")]
// UNSAFETY: parameter and event arrays are owned by the batch and outlive every call; each entry
// holds its file and buffer until the library reported its end; a batch with open entries leaks.

use std::ffi::{c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use crate::abi::{IoEvent, IoParams, MODE_BATCH, OPCODE_READ, OPCODE_WRITE, Timespec};
use crate::error::CuFileError;
use crate::library::{Buffer, CuFile, File, TransferDirection, check, signed};
use crate::status::BatchStatus;

/// One transfer of a batch.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Which way.
    pub direction: TransferDirection,
    /// The file.
    pub file: Arc<File>,
    /// First byte in the file.
    pub file_offset: u64,
    /// The GPU memory.
    pub buffer: Arc<Buffer>,
    /// First byte in it.
    pub buffer_offset: u64,
    /// Bytes to move.
    pub bytes: u32,
}

/// How one entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its place in the slice that was submitted.
    pub index: u32,
    /// Its end; always final.
    pub status: BatchStatus,
    /// Bytes moved, or a negative error number.
    pub result: i64,
}

/// A batch handle with room for a fixed number of entries, used again when all have ended.
pub struct TransferBatch {
    library: Arc<CuFile>,
    handle: *mut c_void,
    params: Box<[IoParams]>,
    events: Box<[IoEvent]>,
    held: Box<[Option<Held>]>,
    open: u32,
    state: BatchState,
}

/// Files and buffers that an open entry keeps alive.
type Held = (Arc<File>, Arc<Buffer>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchState {
    Usable,
    /// A call failed: the library may still use the entries.
    Retired,
}

impl TransferBatch {
    /// Sets a handle up; slow, so done at start.
    ///
    /// # Errors
    /// The library's.
    pub fn new(library: &Arc<CuFile>, entries: u32) -> Result<Self, CuFileError> {
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is written before the call returns.
        let got = unsafe { (library.table.batch_set_up)(&raw mut handle, entries) };
        check("cuFileBatchIOSetUp", got)?;
        let places = entries as usize;
        let blank = IoParams {
            mode: MODE_BATCH,
            buffer: ptr::null_mut(),
            file_offset: 0,
            buffer_offset: 0,
            bytes: 0,
            file: ptr::null_mut(),
            opcode: OPCODE_READ,
            cookie: ptr::null_mut(),
        };
        let event = IoEvent { cookie: ptr::null_mut(), status: 0, result: 0 };
        Ok(Self {
            library: Arc::clone(library),
            handle,
            params: vec![blank; places].into(),
            events: vec![event; places].into(),
            held: (0..places).map(|_| None).collect(),
            open: 0,
            state: BatchState::Usable,
        })
    }

    /// Entries it takes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.params.len()
    }

    /// Entries submitted that have not ended yet.
    #[must_use]
    pub fn open(&self) -> u32 {
        self.open
    }

    /// Whether it can take entries: all earlier ones ended, and no call failed.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.open == 0 && self.state == BatchState::Usable
    }

    /// Whether a call failed; it is never used again.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.state == BatchState::Retired
    }

    /// Hands all entries to the library.
    ///
    /// # Errors
    /// The library's; it took none of the entries then, and the batch is retired.
    ///
    /// # Panics
    /// If it is not ready, the entries do not fit, or a range leaves its buffer.
    pub fn submit(&mut self, entries: &[Entry]) -> Result<(), CuFileError> {
        assert!(self.is_ready(), "a batch is used again only after every entry has ended");
        assert!(entries.len() <= self.capacity() && !entries.is_empty(), "{}", entries.len());
        for (index, entry) in entries.iter().enumerate() {
            entry.buffer.check(entry.buffer_offset, entry.bytes as usize);
            self.params[index] = IoParams {
                mode: MODE_BATCH,
                buffer: entry.buffer.base,
                file_offset: signed(entry.file_offset),
                buffer_offset: signed(entry.buffer_offset),
                bytes: entry.bytes as usize,
                file: entry.file.handle,
                opcode: match entry.direction {
                    TransferDirection::Read => OPCODE_READ,
                    TransferDirection::Write => OPCODE_WRITE,
                },
                cookie: ptr::without_provenance_mut(index + 1),
            };
            self.held[index] = Some((Arc::clone(&entry.file), Arc::clone(&entry.buffer)));
        }
        let count = c_uint::try_from(entries.len()).expect("as few as the capacity");
        let params = self.params.as_mut_ptr();
        // SAFETY: the parameters live in this value, which leaks while entries are open; files and
        // buffers they name are held in `held`, the ranges were checked against the buffers.
        let got = unsafe { (self.library.table.batch_submit)(self.handle, count, params, 0) };
        check("cuFileBatchIOSubmit", got).inspect_err(|_| self.state = BatchState::Retired)?;
        self.open = count;
        Ok(())
    }

    /// Polls once, without waiting, for ended entries.
    ///
    /// # Errors
    /// The library's. The batch is then retired: its open entries stay open, because their states
    /// are unknown.
    ///
    /// # Panics
    /// If the library reports an entry it was not given, or one twice.
    pub fn reap(&mut self, mut report: impl FnMut(Report)) -> Result<(), CuFileError> {
        if self.open == 0 {
            return Ok(());
        }
        let mut count = self.open;
        let mut at_once = Timespec { seconds: 0, nanoseconds: 0 };
        let events = self.events.as_mut_ptr();
        // SAFETY: the event array has room for every entry of the batch and lives in this value;
        // count and time are on this stack and not kept.
        let got = unsafe {
            (self.library.table.batch_status)(
                self.handle,
                0,
                &raw mut count,
                events,
                &raw mut at_once,
            )
        };
        check("cuFileBatchIOGetStatus", got).inspect_err(|_| self.state = BatchState::Retired)?;
        for place in 0..(count as usize).min(self.events.len()) {
            let event = self.events[place];
            let status = BatchStatus(event.status);
            if !status.is_final() {
                continue;
            }
            let index = event.cookie.addr().wrapping_sub(1);
            let held = self.held.get_mut(index).and_then(Option::take);
            assert!(held.is_some(), "cuFile reports entry {index}, which is not open");
            self.open -= 1;
            report(Report {
                index: u32::try_from(index).expect("below the capacity"),
                status,
                result: event.result.cast_signed() as i64,
            });
        }
        Ok(())
    }
}

impl fmt::Debug for TransferBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("capacity", &self.capacity())
            .field("open", &self.open)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

// SAFETY: a batch is used by one thread at a time; its pointers are the library's names and the
// arrays it owns.
unsafe impl Send for TransferBatch {}

impl Drop for TransferBatch {
    fn drop(&mut self) {
        if self.open == 0 && self.state == BatchState::Usable {
            // SAFETY: no entry is open, so the library holds nothing of it.
            unsafe { (self.library.table.batch_destroy)(self.handle) }
            return;
        }
        // Hardware may still write: arrays, files, buffers and the handle stay for good.
        std::mem::forget(std::mem::take(&mut self.held));
        std::mem::forget(std::mem::take(&mut self.params));
        std::mem::forget(std::mem::take(&mut self.events));
        std::mem::forget(Arc::clone(&self.library));
    }
}
