//! Memory that plays a GPU's, exported and opened as CUDA's is.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use kvrail_memory::{PageSize, Region, load, store};

use crate::contract::OwnMemory;
use crate::error::GpuError;
use crate::handle::GpuHandle;

/// Own memory.
#[derive(Debug)]
pub(super) struct StandinMemory {
    region: Arc<Region>,
    legacy: bool,
}

impl StandinMemory {
    pub(super) fn new(bytes: u64, legacy: bool) -> Result<Self, GpuError> {
        let bytes = usize::try_from(bytes).expect("64-bit machine");
        let region = Region::create("kvrail-stand-in", bytes, PageSize::Base)?;
        Ok(Self { region: Arc::new(region), legacy })
    }
}

impl OwnMemory for StandinMemory {
    fn bytes(&self) -> u64 {
        self.region.bytes() as u64
    }

    fn export(&self) -> Result<GpuHandle, GpuError> {
        let bytes = self.bytes();
        if self.legacy {
            let path = format!("{}/{}", std::process::id(), self.region.fd().as_raw_fd());
            let mut handle = [0; 64];
            handle[..path.len()].copy_from_slice(path.as_bytes());
            return Ok(GpuHandle::LegacyIpc { handle, offset: 0, bytes });
        }
        let fd = self.region.fd().try_clone_to_owned().map_err(|error| refused(0, &error))?;
        Ok(GpuHandle::Vmm { fd, bytes })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        store(&*self.region, usize::try_from(offset).expect("64-bit machine"), bytes);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), GpuError> {
        load(&*self.region, usize::try_from(offset).expect("64-bit machine"), bytes);
        Ok(())
    }
}

fn refused(index: usize, why: &dyn std::fmt::Display) -> GpuError {
    GpuError::Handle { index, reason: why.to_string() }
}

/// An opened handle: the memory, and where in it the client's part begins.
pub(super) fn open(handle: GpuHandle, index: usize) -> Result<(Arc<Region>, u64, u64), GpuError> {
    let (fd, offset, bytes) = match handle {
        GpuHandle::Vmm { fd, bytes } => (fd, 0, bytes),
        GpuHandle::LegacyIpc { handle, offset, bytes } => (find(&handle, index)?, offset, bytes),
    };
    let stat = rustix::fs::fstat(fd.as_fd()).map_err(|errno| refused(index, &errno))?;
    let whole = u64::try_from(stat.st_size).unwrap_or(0);
    if offset.checked_add(bytes).is_none_or(|end| end > whole) {
        let reason =
            format!("{bytes} bytes at offset {offset} leave the allocation of {whole} bytes");
        return Err(GpuError::Handle { index, reason });
    }
    let region = Region::import(fd, whole).map_err(|error| refused(index, &error))?;
    Ok((Arc::new(region), offset, bytes))
}

/// The exporter's descriptor, while it lives.
fn find(handle: &[u8; 64], index: usize) -> Result<OwnedFd, GpuError> {
    let gone = || GpuError::Handle {
        index,
        reason: "not a handle of a living process on this GPU".to_owned(),
    };
    let text = handle.split(|byte| *byte == 0).next().unwrap_or_default();
    let (process, descriptor) =
        std::str::from_utf8(text).ok().and_then(|text| text.split_once('/')).ok_or_else(gone)?;
    let number = |text: &str| text.parse::<u32>().map_err(|_| gone());
    let path = format!("/proc/{}/fd/{}", number(process)?, number(descriptor)?);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|_| gone())?;
    Ok(file.into())
}
