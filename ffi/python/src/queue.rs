//! Queues as Python sees them: submit now, fetch the ends later, in a loop or an event loop.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use kvrail_client::{Armed, Completed, Volume};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyRange};

use crate::arena::Arena;
use crate::ask::ask;
use crate::batch::{Batch, Moves, Work};
use crate::closable::Closable;
use crate::completion::Completion;
use crate::errors::from_client;
use crate::errors::raised::{QueueBusyError, QueueFullError};
use crate::gpu::GpuRegion;
use crate::held::Held;
use crate::options::seconds;
use crate::session::Session;
use crate::wait::{deadline, wait_for};

/// One thread's way to a volume.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Queue {
    session: Arc<Session>,
    cell: Arc<Closable<Mutex<Held>>>,
    volume: Volume,
}

/// The queue for this thread; an error while another one has it.
fn hold(queue: &Mutex<Held>) -> PyResult<MutexGuard<'_, Held>> {
    queue.try_lock().or_else(|taken| match taken {
        TryLockError::Poisoned(held) => Ok(held.into_inner()),
        TryLockError::WouldBlock => {
            let text = "another thread uses this queue now; open one for each thread";
            Err(QueueBusyError::new_err(text))
        }
    })
}

/// Up to `most` of the ends.
fn hand_out(done: &mut Vec<Completed>, most: Option<usize>) -> Vec<Completion> {
    let count = most.unwrap_or(usize::MAX).min(done.len());
    done.drain(..count).map(Completion::from).collect()
}

impl Queue {
    pub(crate) fn new(
        session: &Arc<Session>,
        cell: Arc<Closable<Mutex<Held>>>,
        volume: Volume,
    ) -> Self {
        Self { session: Arc::clone(session), cell, volume }
    }

    fn get(&self) -> PyResult<Arc<Mutex<Held>>> {
        self.session.birth().check()?;
        self.cell.get()
    }

    /// Submits what fits; first ticket and how many.
    fn submit(
        &self,
        py: Python<'_>,
        work: Work,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<(Option<u64>, usize)> {
        let batch = Batch::new(&self.volume, work, options)?;
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        batch.submit(py, &mut held.queue, 0)
    }

    fn submit_one(
        &self,
        py: Python<'_>,
        work: Work,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let (first, _) = self.submit(py, work, options)?;
        first.ok_or_else(|| QueueFullError::new_err("the queue is full; poll it, then try again"))
    }

    fn submit_many<'py>(
        &self,
        py: Python<'py>,
        work: Work,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyRange>> {
        let (first, count) = self.submit(py, work, options)?;
        let first = isize::try_from(first.unwrap_or(0))?;
        PyRange::new(py, first, first + isize::try_from(count)?)
    }
}

#[pymethods]
impl Queue {
    #[pyo3(signature = (arena, offset, length, position=0, **options))]
    fn read(
        &self,
        arena: &Bound<'_, Arena>,
        offset: u64,
        length: u64,
        position: u64,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let moves = Moves::one(arena.get().get()?, offset, length, position);
        self.submit_one(arena.py(), Work::Read(moves), options)
    }

    #[pyo3(signature = (arena, offset, length, position=0, **options))]
    fn write(
        &self,
        arena: &Bound<'_, Arena>,
        offset: u64,
        length: u64,
        position: u64,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let moves = Moves::one(arena.get().get()?, offset, length, position);
        self.submit_one(arena.py(), Work::Write(moves), options)
    }

    #[pyo3(signature = (arena, offsets, positions, length, **options))]
    fn read_many<'py>(
        &self,
        arena: &Bound<'py, Arena>,
        offsets: &Bound<'py, PyAny>,
        positions: &Bound<'py, PyAny>,
        length: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyRange>> {
        let moves = Moves::many(arena.get().get()?, offsets, positions, length)?;
        self.submit_many(arena.py(), Work::Read(moves), options)
    }

    #[pyo3(signature = (arena, offsets, positions, length, **options))]
    fn write_many<'py>(
        &self,
        arena: &Bound<'py, Arena>,
        offsets: &Bound<'py, PyAny>,
        positions: &Bound<'py, PyAny>,
        length: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyRange>> {
        let moves = Moves::many(arena.get().get()?, offsets, positions, length)?;
        self.submit_many(arena.py(), Work::Write(moves), options)
    }

    #[pyo3(signature = (region, offsets, blocks, *, part=None, **options))]
    fn read_blocks<'py>(
        &self,
        region: &Bound<'py, GpuRegion>,
        offsets: &Bound<'py, PyAny>,
        blocks: &Bound<'py, PyAny>,
        part: Option<(u64, u64)>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyRange>> {
        let moves = Moves::blocks(region.get().get()?, offsets, blocks, part)?;
        self.submit_many(region.py(), Work::Read(moves), options)
    }

    #[pyo3(signature = (region, offsets, blocks, *, part=None, **options))]
    fn write_blocks<'py>(
        &self,
        region: &Bound<'py, GpuRegion>,
        offsets: &Bound<'py, PyAny>,
        blocks: &Bound<'py, PyAny>,
        part: Option<(u64, u64)>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyRange>> {
        let moves = Moves::blocks(region.get().get()?, offsets, blocks, part)?;
        self.submit_many(region.py(), Work::Write(moves), options)
    }

    #[pyo3(signature = (**options))]
    fn flush(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<u64> {
        self.submit_one(py, Work::Flush, options)
    }

    #[pyo3(signature = (offset, length, **options))]
    fn discard(
        &self,
        py: Python<'_>,
        offset: u64,
        length: u64,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        self.submit_one(py, Work::Discard { offset, length }, options)
    }

    #[pyo3(signature = (most=None))]
    fn poll(&self, most: Option<usize>) -> PyResult<Vec<Completion>> {
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        let Held { queue, done } = &mut *held;
        queue.poll(done);
        Ok(hand_out(done, most))
    }

    #[pyo3(signature = (count=1, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        count: usize,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Completion>> {
        let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        let Held { queue, done } = &mut *held;
        let missing = count.saturating_sub(done.len());
        if missing > 0 {
            wait_for(py, (queue, &self.session), missing, done, deadline(timeout))?;
        }
        Ok(hand_out(done, None))
    }

    fn arm(&self) -> PyResult<bool> {
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        Ok(!held.done.is_empty() || held.queue.arm() == Armed::Ready)
    }

    fn fileno(&self) -> PyResult<i32> {
        let queue = self.get()?;
        let held = hold(&queue)?;
        Ok(held.queue.wait_fd().as_raw_fd())
    }

    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        let queue = self.get()?;
        let held = hold(&queue)?;
        Ok(held.queue.capacity())
    }

    #[getter]
    fn outstanding(&self) -> PyResult<usize> {
        let queue = self.get()?;
        let held = hold(&queue)?;
        Ok(held.queue.outstanding())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.cell.is_closed()
    }

    #[pyo3(signature = (timeout=5.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        self.session.birth().check()?;
        let Some(queue) = self.cell.take() else { return Ok(()) };
        let held = Arc::try_unwrap(queue).map_err(|queue| {
            self.cell.put_back(queue);
            QueueBusyError::new_err("another thread uses this queue now; close it afterwards")
        })?;
        let Held { queue, done } = held.into_inner().unwrap_or_else(PoisonError::into_inner);
        drop(done);
        let timeout = Duration::try_from_secs_f64(timeout).unwrap_or(Duration::ZERO);
        match ask(py, move || queue.close(timeout), drop)? {
            // The sidecar has ended, and with it everything that was in flight.
            Ok(()) | Err(kvrail_client::ClientError::SidecarGone { .. }) => Ok(()),
            Err(error) => Err(from_client(error)),
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py, 5.0)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "open" };
        format!("<kvrail.Queue of {:?}, {state}>", self.volume.name())
    }
}
