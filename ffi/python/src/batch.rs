//! Requests of one call: built, submitted, and for synchronous calls waited for.

use std::sync::Arc;
use std::time::Instant;

use kvrail_client::{Arena, GpuRange, Lease, Queue, Request, SubmitErrorKind, Volume};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::attached::AttachedRegion;
use crate::completion::Completion;
use crate::errors::raised::{RequestError, TimedOutError};
use crate::errors::{from_reason, from_status};
use crate::memory::named;
use crate::numbers::Numbers;
use crate::options::RequestOptions;
use crate::session::Session;
use crate::wait::{deadline, wait_for};

/// What the requests of a batch do.
#[derive(Clone, Debug)]
pub(crate) enum RangeWork {
    Read(RangeMoves),
    Write(RangeMoves),
    Flush,
    Discard { offset: u64, length: u64 },
}

/// Where bytes come from and go to.
#[derive(Clone, Debug)]
pub(crate) struct RangeMoves {
    memory: BatchMemory,
    offsets: Numbers,
    /// First byte in the arena, or in each block.
    positions: Numbers,
    lengths: Numbers,
}

/// Whose bytes.
#[derive(Clone, Debug)]
enum BatchMemory {
    Arena(Arc<Arena>),
    Blocks(Arc<AttachedRegion>, Numbers),
}

/// A range of memory that a request takes along.
enum MemoryRange {
    Arena(Lease),
    Block(GpuRange),
}

impl RangeMoves {
    /// One range.
    pub(crate) fn one(arena: Arc<Arena>, offset: u64, length: u64, position: u64) -> Self {
        let [offsets, positions, lengths] = [offset, position, length].map(Numbers::One);
        Self { memory: BatchMemory::Arena(arena), offsets, positions, lengths }
    }

    /// Blocks of a region, or the same part of each: first byte and bytes.
    pub(crate) fn blocks(
        region: Arc<AttachedRegion>,
        offsets: &Bound<'_, PyAny>,
        blocks: &Bound<'_, PyAny>,
        part: Option<(u64, u64)>,
    ) -> PyResult<Self> {
        let (start, length) = part.unwrap_or((0, region.block_bytes()));
        let offsets = Numbers::read("offsets", offsets)?;
        let memory = BatchMemory::Blocks(region, Numbers::read("blocks", blocks)?);
        let [positions, lengths] = [start, length].map(Numbers::One);
        Ok(Self { memory, offsets, positions, lengths })
    }

    /// One range for each number in the arrays.
    pub(crate) fn many(
        arena: Arc<Arena>,
        offsets: &Bound<'_, PyAny>,
        positions: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        Ok(Self {
            memory: BatchMemory::Arena(arena),
            offsets: Numbers::read("offsets", offsets)?,
            positions: Numbers::read("positions", positions)?,
            lengths: Numbers::read("length", lengths)?,
        })
    }

    /// The memory of the range with this number.
    fn range(&self, index: usize) -> PyResult<MemoryRange> {
        let (position, length) = (self.positions.get(index), self.lengths.get(index));
        match &self.memory {
            BatchMemory::Arena(arena) => named(arena, position, length).map(MemoryRange::Arena),
            BatchMemory::Blocks(region, blocks) => {
                region.range(blocks.get(index), position, length).map(MemoryRange::Block)
            }
        }
    }

    /// How many ranges; all arrays must agree.
    fn count(&self, options: &RequestOptions) -> PyResult<usize> {
        let blocks = match &self.memory {
            BatchMemory::Arena(_) => None,
            BatchMemory::Blocks(_, blocks) => blocks.count(),
        };
        let said = [
            ("blocks", blocks),
            ("offsets", self.offsets.count()),
            ("positions", self.positions.count()),
            ("length", self.lengths.count()),
            ("verify", options.count()),
        ];
        let mut arrays = said.iter().filter_map(|(what, count)| count.map(|count| (what, count)));
        let Some((first, count)) = arrays.next() else { return Ok(1) };
        match arrays.find(|(_, other)| *other != count) {
            None => Ok(count),
            Some((what, other)) => Err(RequestError::new_err(format!(
                "{first} has {count} items and {what} has {other}; pass one for each request, or \
                 one integer for all"
            ))),
        }
    }
}

/// Requests that are submitted together.
#[derive(Debug)]
pub(crate) struct RequestBatch {
    volume: Volume,
    work: RangeWork,
    options: RequestOptions,
    count: usize,
}

impl RequestBatch {
    pub(crate) fn new(
        volume: &Volume,
        work: RangeWork,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let options = RequestOptions::read(options)?;
        let count = match &work {
            RangeWork::Read(moves) | RangeWork::Write(moves) => moves.count(&options)?,
            RangeWork::Flush | RangeWork::Discard { .. } => 1,
        };
        Ok(Self { volume: volume.clone(), work, options, count })
    }

    /// The request with this number.
    fn build(&self, index: usize) -> PyResult<Request> {
        let (volume, moves) = (&self.volume, |moves: &RangeMoves| -> PyResult<_> {
            Ok((moves.offsets.get(index), moves.range(index)?))
        });
        let request = match &self.work {
            RangeWork::Read(all) => match moves(all)? {
                (offset, MemoryRange::Arena(lease)) => Request::read(volume, offset, lease),
                (offset, MemoryRange::Block(range)) => Request::read_gpu(volume, offset, range),
            },
            RangeWork::Write(all) => match moves(all)? {
                (offset, MemoryRange::Arena(lease)) => Request::write(volume, offset, lease),
                (offset, MemoryRange::Block(range)) => Request::write_gpu(volume, offset, range),
            },
            RangeWork::Flush => Request::flush(&self.volume),
            RangeWork::Discard { offset, length } => {
                Request::discard(&self.volume, *offset, *length)
            }
        };
        Ok(self.options.apply(index, request))
    }

    /// Submits requests from number `from` on, until all are, the queue is full, or one cannot be;
    /// returns the first ticket and how many there are. Tickets follow each other. Fails only if
    /// the very first one cannot be.
    pub(crate) fn submit(
        &self,
        py: Python<'_>,
        queue: &mut Queue,
        from: usize,
    ) -> PyResult<(Option<u64>, usize)> {
        let (mut first, mut submitted) = (None, 0);
        let mut outcome = Ok(());
        for index in from..self.count {
            let staged = self.build(index).and_then(|request| {
                match queue.stage(request).map_err(|refused| refused.reason) {
                    Ok(ticket) => Ok(Some(ticket.0)),
                    Err(SubmitErrorKind::Full { .. }) => Ok(None),
                    Err(reason) => Err(from_reason(reason)),
                }
            });
            match staged {
                Ok(Some(ticket)) => first = first.or(Some(ticket)),
                Ok(None) => break,
                Err(_) if submitted > 0 => break,
                Err(error) => {
                    outcome = Err(self.numbered(py, error, index));
                    break;
                }
            }
            submitted += 1;
        }
        queue.publish();
        outcome.map(|()| (first, submitted))
    }

    /// Says which request of a batch an error is about.
    fn numbered(&self, py: Python<'_>, error: PyErr, index: usize) -> PyErr {
        if self.count > 1 {
            let note =
                format!("in request {index} of {}; those before it were submitted", self.count);
            // The error is worth more than a failure to comment on it.
            let _noted = error.value(py).call_method1("add_note", (note,));
        }
        error
    }

    /// Submits all requests, waits for all, and returns their ends in order.
    pub(crate) fn run(&self, py: Python<'_>, session: &Session) -> PyResult<Vec<Completion>> {
        let mut queue = session.borrow_queue(py)?;
        let outcome = BatchRun::new(self).drive(py, (&mut queue, session));
        session.return_queue(queue);
        outcome
    }
}

/// A batch while it is waited for. The queue may still bring ends of calls that were interrupted.
struct BatchRun<'a> {
    batch: &'a RequestBatch,
    first: Option<u64>,
    submitted: usize,
    ended: usize,
    ends: Vec<Option<Completion>>,
    until: Option<Instant>,
}

impl<'a> BatchRun<'a> {
    fn new(batch: &'a RequestBatch) -> Self {
        let ends = (0..batch.count).map(|_| None).collect();
        let until = deadline(batch.options.timeout);
        Self { batch, first: None, submitted: 0, ended: 0, ends, until }
    }

    fn drive(
        mut self,
        py: Python<'_>,
        (queue, session): (&mut Queue, &Session),
    ) -> PyResult<Vec<Completion>> {
        let (mut refused, mut done) = (Ok(()), Vec::new());
        loop {
            if refused.is_ok() && self.submitted < self.batch.count {
                match self.batch.submit(py, queue, self.submitted) {
                    Ok((first, count)) => {
                        self.first = self.first.or(first);
                        self.submitted += count;
                    }
                    Err(error) => refused = Err(error),
                }
            }
            let all = self.submitted == self.batch.count || refused.is_err();
            if all && self.ended == self.submitted {
                break;
            }
            let wanted = if all { self.submitted - self.ended } else { 1 };
            wait_for(py, (queue, session), wanted, &mut done, self.until)?;
            done.drain(..).for_each(|done| self.take(done));
            let over = self.until.is_some_and(|until| until <= Instant::now());
            if over && self.ended < self.batch.count {
                return Err(self.too_late());
            }
        }
        refused?;
        self.verdict()
    }

    fn take(&mut self, done: kvrail_client::Completed) {
        let place = self.first.and_then(|first| done.ticket.0.checked_sub(first));
        let place = place.and_then(|place| usize::try_from(place).ok());
        if let Some(place) = place.filter(|_| !done.is_notice()) {
            self.ends[place] = Some(done.into());
            self.ended += 1;
        }
    }

    fn too_late(&self) -> PyErr {
        TimedOutError::new_err(format!(
            "{} of {} requests ended in time, {} are in flight: leave their memory alone until \
             the arena is closed",
            self.ended,
            self.batch.count,
            self.submitted - self.ended
        ))
    }

    /// All ends, if all are good.
    fn verdict(self) -> PyResult<Vec<Completion>> {
        let ends: Vec<Completion> = self.ends.into_iter().flatten().collect();
        let bad = ends.iter().enumerate().filter_map(|(at, end)| Some((at, end.failure()?)));
        let failed: Vec<_> = bad.collect();
        let Some((index, status)) = failed.first().copied() else { return Ok(ends) };
        let text = format!(
            "{} of {} requests failed; the first is number {index}: {status}: {}",
            failed.len(),
            ends.len(),
            status.meaning()
        );
        let failed = failed.into_iter().map(|(at, status)| (at, status.name())).collect();
        Err(from_status(status, text, failed))
    }
}
