//! cuFile for one GPU: registered memory, registered files, batch handles.
#![expect(unsafe_code, reason = "registers GPU memory with cuFile")]
// UNSAFETY: the memory's mapping goes into the registered buffer as what it keeps.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kvrail_cufile::{
    Buffer, CuFile, Entry, File, OpStatus, Properties, TransferBatch, TransferDirection,
};

use super::batches::CuFileBatch;
use super::context::PrimaryContext;
use super::import::OpenedMemory;
use crate::contract::{BatchIo, DirectGpu, DirectPath, FileIndex, Registered};
use crate::error::GpuError;
use crate::udev;

/// Bytes of the first read.
const FIRST_BYTES: u32 = 4096;

/// Longest wait for it; what is wrong with a library that takes longer shows when it is used.
const FIRST_TIME: Duration = Duration::from_secs(2);

/// cuFile with the files registered so far.
#[derive(Debug)]
pub(super) struct CuFileGpu {
    context: Arc<PrimaryContext>,
    library: Arc<CuFile>,
    properties: Properties,
    files: Mutex<Vec<Arc<File>>>,
}

impl CuFileGpu {
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        library: Arc<CuFile>,
    ) -> Result<Self, GpuError> {
        let properties = library.properties()?;
        let (context, files) = (Arc::clone(context), Mutex::new(Vec::new()));
        Ok(Self { context, library, properties, files })
    }

    pub(super) fn library(&self) -> &Arc<CuFile> {
        &self.library
    }

    /// Registers all of an opened memory.
    pub(super) fn register_memory(&self, memory: &Arc<OpenedMemory>) -> Result<Buffer, GpuError> {
        self.context.enter()?;
        let bytes = usize::try_from(memory.bytes).expect("64-bit machine");
        let keep = Arc::clone(memory);
        // SAFETY: the memory stays mapped while the `Arc` given along lives.
        Ok(unsafe { self.library.register_buffer(memory.address, bytes, keep) }?)
    }

    /// Reads a little, once in the life of the library: its first batch starts threads and blocks
    /// for 25 ms, which would be a poller's time otherwise.
    fn begin(&self, file: &Arc<File>) -> Result<(), GpuError> {
        let memory = Arc::new(OpenedMemory::allocate(&self.context, u64::from(FIRST_BYTES))?);
        let entry = Entry {
            direction: TransferDirection::Read,
            file: Arc::clone(file),
            file_offset: 0,
            buffer: Arc::new(self.register_memory(&memory)?),
            buffer_offset: 0,
            bytes: FIRST_BYTES,
        };
        let mut batch = TransferBatch::new(&self.library, 1)?;
        batch.submit(&[entry])?;
        let deadline = Instant::now() + FIRST_TIME;
        while batch.open() > 0 && Instant::now() < deadline {
            batch.reap(|_| ())?;
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn path(&self) -> (DirectPath, String) {
        let Properties { nvidia_fs, status_flags, .. } = self.properties;
        let (major, minor) = nvidia_fs;
        if self.properties.reaches_nvme() {
            let reason = format!("cuFile reaches NVMe directly (flags {status_flags:#x})");
            return (DirectPath::Direct, reason);
        }
        let reason = match major {
            0 => "nvidia-fs is not loaded and PCI peer-to-peer is not offered".to_owned(),
            _ => format!("nvidia-fs {major}.{minor} does not reach NVMe (flags {status_flags:#x})"),
        };
        (DirectPath::Compat, reason)
    }
}

impl DirectGpu for CuFileGpu {
    fn register(&self, file: OwnedFd, name: &str) -> Result<Registered, GpuError> {
        self.context.enter()?;
        let missing_entry = udev::missing_entry(&file);
        let registered = self.library.register_file(file).map_err(|error| {
            let no_entry = error.status() == Some(OpStatus::HANDLE_NOT_REGISTERED);
            match missing_entry.filter(|_| no_entry) {
                Some(entry) => GpuError::NoUdevEntry { device: name.to_owned(), entry },
                None => GpuError::CuFile(error),
            }
        })?;
        let registered = Arc::new(registered);
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.is_empty() {
            self.begin(&registered)?;
        }
        files.push(registered);
        let file = FileIndex(u16::try_from(files.len() - 1).expect("few devices"));
        let (path, reason) = self.path();
        Ok(Registered { file, path, reason })
    }

    fn batch(&self, entries: u32) -> Result<Box<dyn BatchIo>, GpuError> {
        self.context.enter()?;
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Box::new(CuFileBatch::new(&self.context, &self.library, files, entries)?))
    }
}
