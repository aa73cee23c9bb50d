//! Direct I/O: jobs become entries of batches, one for each run of memory; batches are filled per
//! tick and reaped by status. Every entry's state and byte count is looked at; a handle whose call
//! failed is retired; nothing is ever cancelled, because a cancel is no end.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use kvrail_device::{SlotId, Slots};
use kvrail_ring::Status;

use super::launches::OwnedJob;
use crate::contract::{BatchIo, DirectEnd, DirectEntry, DirectGpu, DirectPath, Fault};
use crate::error::GpuError;
use crate::health::Counters;
use crate::port::{JOBS_MAX, Work};

/// Entries of one batch. cuFile takes 128; half of them fill a handle soon enough.
const ENTRIES_MAX: usize = 64;

/// Batches at once.
const BATCHES_MAX: usize = 8;

/// Bytes of one entry: one bounce buffer of cuFile's own pool.
const ENTRY_BYTES_MAX: u64 = 1 << 20;

/// Open entries of all batches together where cuFile bounces: its pool has 64 buffers by default,
/// and a batch that finds none can hang for good.
const COMPAT_ENTRIES_MAX: usize = 64;

/// A job of direct I/O.
#[derive(Debug)]
struct DirectTransfer {
    owned: OwnedJob,
    /// Bytes that entries were made for.
    fed: u32,
    /// Entries in flight.
    open: u32,
    failed: Option<Status>,
}

/// One handle and what its entries belong to.
#[derive(Debug)]
struct BatchHandle {
    batch: Box<dyn BatchIo>,
    /// Transfer and bytes of each entry, by its place.
    entries: ArrayVec<(SlotId, u32), ENTRIES_MAX>,
}

/// The pool of handles, made once.
#[derive(Debug)]
pub struct BatchPool {
    handles: Vec<BatchHandle>,
    transfers: Slots<DirectTransfer>,
    /// Transfers with bytes no entry was made for yet.
    unfed: VecDeque<SlotId>,
    open: usize,
    open_max: usize,
}

impl BatchPool {
    /// Makes the handles; files must be registered before.
    ///
    /// # Errors
    /// The library's.
    pub fn new(gpu: &dyn DirectGpu, path: DirectPath) -> Result<Self, GpuError> {
        let entries = u32::try_from(ENTRIES_MAX).expect("64");
        let handles = (0..BATCHES_MAX)
            .map(|_| Ok(BatchHandle { batch: gpu.batch(entries)?, entries: ArrayVec::new() }))
            .collect::<Result<Vec<_>, GpuError>>()?;
        let open_max = match path {
            DirectPath::Direct => ENTRIES_MAX * BATCHES_MAX,
            DirectPath::Compat => COMPAT_ENTRIES_MAX,
        };
        let unfed = VecDeque::with_capacity(JOBS_MAX as usize);
        Ok(Self { handles, transfers: Slots::new(JOBS_MAX), unfed, open: 0, open_max })
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.transfers.claimed() == 0
    }

    /// Whether any handle is left that no call failed on.
    pub(super) fn is_usable(&self) -> bool {
        self.handles.iter().any(|handle| !handle.batch.is_retired())
    }

    /// Gives out every job of which nothing is in flight: no handle is left to carry it.
    pub(super) fn abandon(&mut self, ended: &mut dyn FnMut(OwnedJob, Status)) {
        while let Some(id) = self.unfed.pop_front() {
            let transfer = self.transfers.get_mut(id).expect("unfed ones are in flight");
            transfer.fed = transfer.owned.1.length;
            transfer.failed = Some(Status::GpuError);
            if transfer.open == 0 {
                let transfer = self.transfers.release(id).expect("just seen");
                ended(transfer.owned, Status::GpuError);
            }
        }
    }

    /// Takes a job; gives it back when there are too many.
    pub(super) fn push(&mut self, owned: OwnedJob) -> Result<(), OwnedJob> {
        let transfer = DirectTransfer { owned, fed: 0, open: 0, failed: None };
        let id = self.transfers.claim(transfer).map_err(|transfer| transfer.owned)?;
        self.unfed.push_back(id);
        Ok(())
    }

    /// Brings back what ended; returns how many entries, and the first failure of a handle.
    pub(super) fn reap(
        &mut self,
        counters: &Counters,
        ended: &mut dyn FnMut(OwnedJob, Status),
    ) -> (u64, Option<Fault>) {
        let (mut count, mut fault) = (0, None);
        for at in 0..self.handles.len() {
            let Self { handles, transfers, unfed, .. } = self;
            let BatchHandle { batch, entries } = &mut handles[at];
            if batch.open() == 0 {
                continue;
            }
            let mut seen = 0;
            let mut settle = |end: DirectEnd| {
                let (id, bytes) = entries[end.index as usize];
                let status = judge(end, bytes);
                if status == Status::Ok {
                    counters.direct(bytes);
                }
                seen += 1;
                if let Some((owned, status)) = settle(transfers, unfed, id, status) {
                    ended(owned, status);
                }
            };
            // A failed handle keeps its open entries open: nothing is known about them, and memory
            // whose fate is not known is not handed back.
            fault = fault.or(batch.reap(&mut settle).err());
            self.open -= seen;
            count += seen as u64;
        }
        (count, fault)
    }

    /// Fills and submits batches; returns how many entries, and the first failure of a handle.
    pub(super) fn feed(&mut self, ended: &mut dyn FnMut(OwnedJob, Status)) -> (u64, Option<Fault>) {
        let (mut count, mut fault) = (0, None);
        for at in 0..self.handles.len() {
            if self.unfed.is_empty() || self.open >= self.open_max {
                break;
            }
            if !self.handles[at].batch.is_ready() {
                continue;
            }
            let chosen = self.choose(at);
            let submitted = self.submit(at);
            count += chosen as u64;
            if let Err(error) = submitted {
                // The library took none of them.
                for index in 0..chosen {
                    let (id, _) = self.handles[at].entries[index];
                    let over = settle(&mut self.transfers, &mut self.unfed, id, Status::IoError);
                    over.into_iter().for_each(|(owned, status)| ended(owned, status));
                }
                fault = fault.or(Some(error));
            } else {
                self.open += chosen;
            }
        }
        (count, fault)
    }

    /// Notes the entries of the next batch: transfers in turn, each run cut to a bounce buffer.
    fn choose(&mut self, at: usize) -> usize {
        let room = (self.open_max - self.open).min(ENTRIES_MAX);
        let entries = &mut self.handles[at].entries;
        entries.clear();
        while let Some(id) = self.unfed.front().copied() {
            let transfer = self.transfers.get_mut(id).expect("unfed ones are in flight");
            let length = transfer.owned.1.length;
            while transfer.fed < length && entries.len() < room {
                let bytes = next_run(transfer).2;
                entries.push((id, bytes));
                transfer.fed += bytes;
                transfer.open += 1;
            }
            if transfer.fed < length {
                break;
            }
            self.unfed.pop_front();
        }
        entries.len()
    }

    /// Submits what was chosen: walks the same runs again, now with references to regions.
    fn submit(&mut self, at: usize) -> Result<(), Fault> {
        let Self { handles, transfers, .. } = self;
        let BatchHandle { batch, entries } = &mut handles[at];
        let mut list: ArrayVec<DirectEntry<'_>, ENTRIES_MAX> = ArrayVec::new();
        for (index, (id, bytes)) in entries.iter().enumerate() {
            let transfer = transfers.get(*id).expect("chosen just now");
            // Where this entry begins: what was fed, less it and the later ones of this transfer.
            let later = entries[index..].iter().filter(|(other, _)| other == id);
            let from = transfer.fed - later.map(|(_, bytes)| bytes).sum::<u32>();
            list.push(entry(transfer, from, *bytes));
        }
        batch.submit(&list)
    }
}

/// The run that the next byte lies in: memory, offset and bytes, at most one bounce buffer.
fn next_run(transfer: &DirectTransfer) -> (u16, u64, u32) {
    run_at(transfer, transfer.fed)
}

fn run_at(transfer: &DirectTransfer, from: u32) -> (u16, u64, u32) {
    let job = &transfer.owned.1;
    let rest = job.length - from;
    let mut runs = job.region.layout().runs(job.block, job.start + u64::from(from), rest);
    let run = runs.next().expect("bytes are left");
    let bytes = u32::try_from(run.bytes.min(ENTRY_BYTES_MAX)).expect("at most 1 MiB");
    (run.memory, run.offset, bytes)
}

fn entry(transfer: &DirectTransfer, from: u32, bytes: u32) -> DirectEntry<'_> {
    let job = &transfer.owned.1;
    let Work::Direct { way, file, offset } = job.work else { panic!("only direct jobs are here") };
    let (memory, place, _) = run_at(transfer, from);
    DirectEntry {
        way,
        file,
        file_offset: offset + u64::from(from),
        region: &job.region,
        memory,
        offset: place,
        bytes,
    }
}

/// Status of an entry's end. A short count is an error: it does not identify the missing bytes.
fn judge(end: DirectEnd, bytes: u32) -> Status {
    match end.outcome {
        Ok(moved) if moved == u64::from(bytes) => Status::Ok,
        Ok(_) | Err(_) => Status::IoError,
    }
}

/// Counts an entry out; gives the job out when it is over.
fn settle(
    transfers: &mut Slots<DirectTransfer>,
    unfed: &mut VecDeque<SlotId>,
    id: SlotId,
    status: Status,
) -> Option<(OwnedJob, Status)> {
    let transfer = transfers.get_mut(id).expect("invariant 1: an entry ended twice");
    transfer.open -= 1;
    if status != Status::Ok {
        transfer.failed.get_or_insert(status);
        if transfer.fed < transfer.owned.1.length {
            // The rest is not begun any more.
            transfer.fed = transfer.owned.1.length;
            unfed.retain(|other| *other != id);
        }
    }
    if transfer.open > 0 || transfer.fed < transfer.owned.1.length {
        return None;
    }
    let transfer = transfers.release(id).expect("just seen");
    Some((transfer.owned, transfer.failed.unwrap_or(Status::Ok)))
}
