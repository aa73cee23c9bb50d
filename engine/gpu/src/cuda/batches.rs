//! A cuFile batch handle as the contract has it.

use std::sync::Arc;

use kvrail_cufile::{BatchStatus, CuFile, Entry, File, TransferBatch, TransferDirection};

use super::context::PrimaryContext;
use crate::contract::{BatchIo, DirectEnd, DirectEntry, DirectFailure, DirectWay, Fault};
use crate::error::GpuError;
use crate::region::Backing;

/// One handle, with the files that were registered when it was made.
#[derive(Debug)]
pub(super) struct CuFileBatch {
    context: Arc<PrimaryContext>,
    files: Vec<Arc<File>>,
    batch: TransferBatch,
    entries: Vec<Entry>,
}

impl CuFileBatch {
    pub(super) fn new(
        context: &Arc<PrimaryContext>,
        library: &Arc<CuFile>,
        files: Vec<Arc<File>>,
        entries: u32,
    ) -> Result<Self, GpuError> {
        let batch = TransferBatch::new(library, entries)?;
        let entries = Vec::with_capacity(entries as usize);
        Ok(Self { context: Arc::clone(context), files, batch, entries })
    }
}

impl BatchIo for CuFileBatch {
    fn is_ready(&self) -> bool {
        self.batch.is_ready()
    }

    fn is_retired(&self) -> bool {
        self.batch.is_retired()
    }

    fn open(&self) -> u32 {
        self.batch.open()
    }

    fn submit(&mut self, entries: &[DirectEntry<'_>]) -> Result<(), Fault> {
        self.context.enter().map_err(|error| Fault(error.to_string()))?;
        self.entries.clear();
        for entry in entries {
            let memory = &entry.region.memories()[usize::from(entry.memory)];
            let Backing::Gpu(Some(buffer)) = &memory.backing else {
                panic!("a region of a GPU with cuFile is registered with it");
            };
            self.entries.push(Entry {
                direction: match entry.way {
                    DirectWay::Read => TransferDirection::Read,
                    DirectWay::Write => TransferDirection::Write,
                },
                file: Arc::clone(&self.files[usize::from(entry.file.0)]),
                file_offset: entry.file_offset,
                buffer: Arc::clone(buffer),
                buffer_offset: entry.offset,
                bytes: entry.bytes,
            });
        }
        let submitted = self.batch.submit(&self.entries);
        self.entries.clear();
        submitted.map_err(|error| Fault(error.to_string()))
    }

    fn reap(&mut self, ended: &mut dyn FnMut(DirectEnd)) -> Result<(), Fault> {
        let outcome = |status: BatchStatus, result: i64| match u64::try_from(result) {
            Ok(bytes) if status == BatchStatus::COMPLETE => Ok(bytes),
            _ => Err(DirectFailure { state: status.0, result }),
        };
        let reaped = self.batch.reap(|report| {
            let outcome = outcome(report.status, report.result);
            ended(DirectEnd { index: report.index, outcome });
        });
        reaped.map_err(|error| Fault(error.to_string()))
    }
}
