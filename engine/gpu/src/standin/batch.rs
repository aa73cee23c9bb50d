//! Batches of the stand-in: entries run when their state is read.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_memory::{Region, load, store};
use rustix::io::{Errno, pread, pwrite};

use super::plan::{GpuControl, GpuFault};
use crate::contract::{BatchIo, DirectEnd, DirectEntry, DirectFailure, DirectWay, Fault};
use crate::region::Backing;

#[derive(Debug)]
struct BatchEntry {
    way: DirectWay,
    file: Arc<OwnedFd>,
    file_offset: u64,
    memory: Arc<Region>,
    offset: usize,
    bytes: usize,
    fault: Option<GpuFault>,
}

#[derive(Debug, PartialEq, Eq)]
enum BatchEntryState {
    Usable,
    Retired,
}

/// One batch.
#[derive(Debug)]
pub(super) struct HostBatch {
    files: Vec<Arc<OwnedFd>>,
    entries: Vec<Option<BatchEntry>>,
    control: Arc<GpuControl>,
    state: BatchEntryState,
}

impl HostBatch {
    pub(super) fn new(files: Vec<Arc<OwnedFd>>, entries: u32, control: Arc<GpuControl>) -> Self {
        let entries = Vec::with_capacity(entries as usize);
        Self { files, entries, control, state: BatchEntryState::Usable }
    }
}

impl BatchEntry {
    fn run(&self, bytes: usize) -> Result<u64, Errno> {
        let mut buffer = vec![0; bytes];
        let mut done = 0;
        if self.way == DirectWay::Write {
            load(&*self.memory, self.offset, &mut buffer);
        }
        while done < bytes {
            let at = self.file_offset + done as u64;
            let moved = match self.way {
                DirectWay::Read => pread(&self.file, &mut buffer[done..], at)?,
                DirectWay::Write => pwrite(&self.file, &buffer[done..], at)?,
            };
            if moved == 0 {
                break;
            }
            done += moved;
        }
        if self.way == DirectWay::Read {
            store(&*self.memory, self.offset, &buffer[..done]);
        }
        Ok(done as u64)
    }

    fn end(&self) -> Result<u64, DirectFailure> {
        let failed = |result| DirectFailure { state: 0x40, result };
        match self.fault {
            Some(GpuFault::Entry) => Err(failed(-5)),
            Some(GpuFault::Short) => self.run(self.bytes / 2).map_err(|_| failed(-5)),
            _ => self.run(self.bytes).map_err(|errno| failed(-i64::from(errno.raw_os_error()))),
        }
    }
}

impl BatchIo for HostBatch {
    fn is_ready(&self) -> bool {
        self.open() == 0 && self.state == BatchEntryState::Usable
    }

    fn is_retired(&self) -> bool {
        self.state == BatchEntryState::Retired
    }

    fn open(&self) -> u32 {
        u32::try_from(self.entries.iter().flatten().count()).expect("few")
    }

    fn submit(&mut self, entries: &[DirectEntry<'_>]) -> Result<(), Fault> {
        let faults = [GpuFault::Submit, GpuFault::Short, GpuFault::Entry, GpuFault::HungBatch];
        let fault = self.control.take(&faults);
        if fault == Some(GpuFault::Submit) {
            self.state = BatchEntryState::Retired;
            return Err(Fault("the stand-in refuses a batch by order".to_owned()));
        }
        self.entries.clear();
        for (index, it) in entries.iter().enumerate() {
            let memory = &it.region.memories()[usize::from(it.memory)];
            let Backing::Host(region) = &memory.backing else {
                panic!("a region of the stand-in is host memory");
            };
            let hung = fault == Some(GpuFault::HungBatch);
            self.entries.push(Some(BatchEntry {
                way: it.way,
                file: Arc::clone(&self.files[usize::from(it.file.0)]),
                file_offset: it.file_offset,
                memory: Arc::clone(region),
                offset: usize::try_from(memory.address + it.offset).expect("64-bit machine"),
                bytes: it.bytes as usize,
                fault: fault.filter(|_| hung || index == 0),
            }));
        }
        Ok(())
    }

    fn reap(&mut self, ended: &mut dyn FnMut(DirectEnd)) -> Result<(), Fault> {
        if self.open() == 0 || self.state == BatchEntryState::Retired {
            return Ok(());
        }
        if self.control.take(&[GpuFault::Status]).is_some() {
            self.state = BatchEntryState::Retired;
            return Err(Fault("the stand-in hides a batch's status by order".to_owned()));
        }
        // Last first: nothing promises an order.
        for (index, place) in self.entries.iter_mut().enumerate().rev() {
            let hung = |entry: &BatchEntry| entry.fault == Some(GpuFault::HungBatch);
            if place.as_ref().is_some_and(|place| hung(place) && !self.control.is_released()) {
                continue;
            }
            if let Some(entry) = place.take() {
                let index = u32::try_from(index).expect("few");
                ended(DirectEnd { index, outcome: entry.end() });
            }
        }
        Ok(())
    }
}
