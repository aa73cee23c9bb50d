//! Queues as Python sees them: submit now, fetch the ends later, in a loop or an event loop.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use kvrail_client::{Armed, ClientError, Namespace, Status, Volume};
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyRange, PyType};

use crate::arena::Arena;
use crate::ask::{SLICE, ask};
use crate::batch::{RangeMoves, RangeWork, RequestBatch};
use crate::closable::Closable;
use crate::completion::Completion;
use crate::errors::from_client;
use crate::errors::raised::{KvrailError, QueueBusyError, QueueFullError};
use crate::flight::{EndedLookup, Flight, FlightEnd, Question};
use crate::gpu::GpuRegion;
use crate::group::{BlockWork, Group};
use crate::group_end::GroupEnd;
use crate::group_of::Owner;
use crate::keys;
use crate::options::{duration, seconds};
use crate::results::Found;
use crate::run::{Asked, refresh};
use crate::session::Session;
use crate::wait::{deadline, pause};

/// One thread's way to a volume or a namespace.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Queue {
    session: Arc<Session>,
    cell: Arc<Closable<Mutex<Flight>>>,
    target: Target,
}

/// What the requests of a queue are for.
#[derive(Debug)]
pub(crate) enum Target {
    /// Its ranges.
    Volume(Volume),
    /// Its blocks.
    Namespace(Owner),
}

/// The queue for this thread; an error while another one has it.
fn hold(flight: &Mutex<Flight>) -> PyResult<MutexGuard<'_, Flight>> {
    flight.try_lock().or_else(|taken| match taken {
        TryLockError::Poisoned(held) => Ok(held.into_inner()),
        TryLockError::WouldBlock => {
            let text = "another thread uses this queue now; open one for each thread";
            Err(QueueBusyError::new_err(text))
        }
    })
}

/// Opens a namespace again for a call that found it cleared. The call ends with the error where
/// that fails; what a signal's handler raises is the caller's, for whom it is kept.
fn reopen(py: Python<'_>, space: &Namespace, raised: &mut PyResult<()>) -> PyResult<()> {
    match refresh(py, space) {
        Err(error) if !error.is_instance_of::<KvrailError>(py) => {
            *raised = Err(error);
            Ok(())
        }
        outcome => outcome,
    }
}

/// Keeps what a lookup came to. Of a namespace that was cleared, it is asked once more.
fn take_answer(
    py: Python<'_>,
    flight: &mut Flight,
    (ticket, question, outcome): EndedLookup,
    raised: &mut PyResult<()>,
) {
    let outcome = match outcome {
        Err(ClientError::Denied { status: Status::Stale, .. }) if !question.again => {
            let reopened = reopen(py, &question.space, raised);
            let question = Question { again: true, ..question };
            let asked =
                reopened.and_then(|()| flight.look_up_again(ticket, question).map_err(from_client));
            let Err(error) = asked else { return };
            Err(error)
        }
        outcome => outcome.map(Found::new).map_err(from_client),
    };
    flight.keep(FlightEnd::Lookup(ticket, outcome));
}

/// Up to `most` ends, as Python's objects.
fn hand_out<'py>(
    py: Python<'py>,
    flight: &mut Flight,
    most: Option<usize>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let object = |end| match end {
        FlightEnd::Range(done) => Completion::from(done).into_bound_py_any(py),
        FlightEnd::Group(ticket, results) => {
            GroupEnd::of_group(py, ticket, results).into_bound_py_any(py)
        }
        FlightEnd::Lookup(ticket, found) => {
            GroupEnd::of_lookup(py, ticket, found).into_bound_py_any(py)
        }
    };
    flight.hand_out(most).into_iter().map(object).collect()
}

impl Queue {
    pub(crate) fn open(
        py: Python<'_>,
        session: &Arc<Session>,
        target: Target,
        depth: usize,
    ) -> PyResult<Self> {
        let client = session.client()?;
        let queue = ask(py, move || client.open_queue(depth), drop)?.map_err(from_client)?;
        let cell = session.add("queue", Mutex::new(Flight::new(queue)));
        Ok(Self { session: Arc::clone(session), cell, target })
    }

    fn get(&self) -> PyResult<Arc<Mutex<Flight>>> {
        self.session.birth().check()?;
        self.cell.get()
    }

    /// The volume whose ranges its requests are for.
    fn volume(&self) -> PyResult<&Volume> {
        match &self.target {
            Target::Volume(volume) => Ok(volume),
            Target::Namespace(owner) => Err(PyTypeError::new_err(format!(
                "this queue is of namespace {:?}, whose blocks have keys and no offsets; for \
                 ranges open one with Volume.open_queue",
                owner.space().name()
            ))),
        }
    }

    /// The namespace whose blocks its requests are for.
    fn namespace(&self) -> PyResult<&Owner> {
        match &self.target {
            Target::Namespace(owner) => Ok(owner),
            Target::Volume(volume) => Err(PyTypeError::new_err(format!(
                "this queue is of volume {:?}, whose ranges have offsets and no keys; for blocks \
                 open one with Namespace.queue",
                volume.name()
            ))),
        }
    }

    /// Submits what fits; first ticket and how many.
    fn submit_ranges(
        &self,
        py: Python<'_>,
        work: RangeWork,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<(Option<u64>, usize)> {
        let batch = RequestBatch::new(self.volume()?, work, options)?;
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        held.submit_ranges(|queue| batch.submit(py, queue, 0))
    }

    fn submit_one(
        &self,
        py: Python<'_>,
        work: RangeWork,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        let (first, _) = self.submit_ranges(py, work, options)?;
        first.ok_or_else(|| QueueFullError::new_err("the queue is full; poll it, then try again"))
    }

    fn submit_many<'py>(
        &self,
        py: Python<'py>,
        work: RangeWork,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyRange>> {
        let (first, count) = self.submit_ranges(py, work, options)?;
        let first = isize::try_from(first.unwrap_or(0))?;
        PyRange::new(py, first, first + isize::try_from(count)?)
    }

    /// Submits a group; its ticket.
    fn submit(&self, py: Python<'_>, group: Group) -> PyResult<u32> {
        if group.timeout().is_some() {
            let text = "timeout is for calls that wait: give it to wait()";
            return Err(PyTypeError::new_err(text));
        }
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        let client = self.session.client()?;
        held.bounce().reserve(py, &client, group.longest_to_copy())?;
        let flight = &mut *held;
        Ok(py.detach(|| flight.submit(group)))
    }

    /// Takes what has ended. Every end is kept, whatever is raised.
    fn take(&self, py: Python<'_>, flight: &mut Flight) -> PyResult<()> {
        let (ended, answers) = py.detach(|| flight.poll());
        let mut raised = Ok(());
        for (ticket, group) in ended {
            self.session.count_copied(group.copied_bytes());
            let stale = group.is_stale();
            let opened = if stale { reopen(py, group.space(), &mut raised) } else { Ok(()) };
            flight.keep(FlightEnd::Group(ticket, opened.map(|()| group.into_results())));
        }
        answers.into_iter().for_each(|answer| take_answer(py, flight, answer, &mut raised));
        if flight.cleared().next().is_some() {
            for group in flight.cleared() {
                let opened = reopen(py, group.space(), &mut raised);
                group.renew(opened.is_ok()); // where it is not, its end has the reason
            }
            py.detach(|| flight.stage());
        }
        raised
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
        let moves = RangeMoves::one(arena.get().get()?, offset, length, position);
        self.submit_one(arena.py(), RangeWork::Read(moves), options)
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
        let moves = RangeMoves::one(arena.get().get()?, offset, length, position);
        self.submit_one(arena.py(), RangeWork::Write(moves), options)
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
        let moves = RangeMoves::many(arena.get().get()?, offsets, positions, length)?;
        self.submit_many(arena.py(), RangeWork::Read(moves), options)
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
        let moves = RangeMoves::many(arena.get().get()?, offsets, positions, length)?;
        self.submit_many(arena.py(), RangeWork::Write(moves), options)
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
        let moves = RangeMoves::blocks(region.get().get()?, offsets, blocks, part)?;
        self.submit_many(region.py(), RangeWork::Read(moves), options)
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
        let moves = RangeMoves::blocks(region.get().get()?, offsets, blocks, part)?;
        self.submit_many(region.py(), RangeWork::Write(moves), options)
    }

    #[pyo3(signature = (**options))]
    fn flush(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<u64> {
        self.submit_one(py, RangeWork::Flush, options)
    }

    #[pyo3(signature = (offset, length, **options))]
    fn discard(
        &self,
        py: Python<'_>,
        offset: u64,
        length: u64,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u64> {
        self.submit_one(py, RangeWork::Discard { offset, length }, options)
    }

    #[pyo3(signature = (keys, buffers, **options))]
    fn submit_put(
        &self,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u32> {
        let group = self.namespace()?.group(BlockWork::Put, keys, Some(buffers), options)?;
        self.submit(keys.py(), group)
    }

    #[pyo3(signature = (keys, buffers, **options))]
    fn submit_get(
        &self,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u32> {
        let group = self.namespace()?.group(BlockWork::Get, keys, Some(buffers), options)?;
        self.submit(keys.py(), group)
    }

    #[pyo3(signature = (keys, **options))]
    fn submit_drop(
        &self,
        keys: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u32> {
        let group = self.namespace()?.group(BlockWork::Drop, keys, None, options)?;
        self.submit(keys.py(), group)
    }

    #[pyo3(signature = (keys, **options))]
    fn submit_lookup(
        &self,
        keys: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u32> {
        let asked = Asked::read(options)?;
        let (py, keys) = (keys.py(), keys::read(keys)?);
        let (how, until) = (asked.how(), deadline(asked.timeout()));
        let space = self.namespace()?.space().clone();
        let question = Question { space, keys, how, until, again: false };
        let queue = self.get()?;
        let mut held = self::hold(&queue)?;
        let flight = &mut *held;
        py.detach(|| flight.look_up(question)).map_err(from_client)
    }

    #[pyo3(signature = (most=None))]
    fn poll<'py>(&self, py: Python<'py>, most: Option<usize>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        self.take(py, &mut held)?;
        hand_out(py, &mut held, most)
    }

    #[pyo3(signature = (count=1, timeout=None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let until = deadline(timeout.map(|timeout| seconds("timeout", timeout)).transpose()?);
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        loop {
            self.take(py, &mut held)?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let all = held.ended() >= count || held.is_idle();
            if all || left.is_some_and(|left| left.is_zero()) {
                break;
            }
            let (slice, flight) = (left.map_or(SLICE, |left| left.min(SLICE)), &mut *held);
            let missing = count - flight.ended();
            py.detach(|| flight.wait(missing, slice)).map_err(from_client)?;
            pause(py, &self.session)?;
        }
        hand_out(py, &mut held, None)
    }

    fn arm(&self) -> PyResult<bool> {
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        Ok(held.has_news() || held.queue_mut().arm() == Armed::Ready)
    }

    fn fileno(&self) -> PyResult<i32> {
        let queue = self.get()?;
        let held = hold(&queue)?;
        Ok(held.queue().wait_fd().as_raw_fd())
    }

    #[getter]
    fn capacity(&self) -> PyResult<usize> {
        let queue = self.get()?;
        let held = hold(&queue)?;
        Ok(held.queue().capacity())
    }

    #[getter]
    fn outstanding(&self) -> PyResult<usize> {
        let queue = self.get()?;
        let held = hold(&queue)?;
        Ok(match self.target {
            Target::Volume(_) => held.queue().outstanding(),
            Target::Namespace(_) => held.outstanding(),
        })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.cell.is_closed()
    }

    #[pyo3(signature = (timeout=5.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        self.session.birth().check()?;
        let Some(flight) = self.cell.take() else { return Ok(()) };
        let flight = Arc::try_unwrap(flight).map_err(|flight| {
            self.cell.put_back(flight);
            QueueBusyError::new_err("another thread uses this queue now; close it afterwards")
        })?;
        let (queue, kept) =
            flight.into_inner().unwrap_or_else(PoisonError::into_inner).into_queue();
        let timeout = duration("timeout", timeout).unwrap_or(Duration::ZERO);
        let closed = ask(py, move || queue.close(timeout), drop);
        drop(kept); // what was in flight had its memory until now
        match closed? {
            // The sidecar has ended, and with it everything that was in flight.
            Ok(()) | Err(ClientError::SidecarGone { .. }) => Ok(()),
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

    /// For annotations: `Queue[Completion]` or `Queue[GroupEnd]`.
    #[classmethod]
    fn __class_getitem__(cls: &Bound<'_, PyType>, _end: &Bound<'_, PyAny>) -> Py<PyType> {
        cls.clone().unbind()
    }

    fn __repr__(&self) -> String {
        let name = match &self.target {
            Target::Volume(volume) => volume.name(),
            Target::Namespace(owner) => owner.space().name(),
        };
        let state = if self.closed() { "closed" } else { "open" };
        format!("<kvrail.Queue of {name:?}, {state}>")
    }
}
