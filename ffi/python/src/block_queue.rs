//! Queues of a namespace as Python sees them: groups are submitted now and fetched later.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use kvrail_client::{Armed, ClientError, Status};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ask::{SLICE, ask};
use crate::closable::Closable;
use crate::errors::from_client;
use crate::errors::raised::QueueBusyError;
use crate::flight::{Answer, Flight, Outcome, Question};
use crate::group::{Group, Work};
use crate::group_of::Owner;
use crate::keys;
use crate::options::{duration, seconds};
use crate::results::{Found, Results};
use crate::run::{Asked, refresh, renew};
use crate::wait::{deadline, pause};

/// The end of a group or lookup.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct GroupEnd {
    ticket: u32,
    results: Option<Py<Results>>,
    found: Option<PyResult<Py<Found>>>,
}

#[pymethods]
impl GroupEnd {
    #[getter]
    fn ticket(&self) -> u32 {
        self.ticket
    }

    #[getter]
    fn results(&self, py: Python<'_>) -> Option<Py<Results>> {
        self.results.as_ref().map(|results| results.clone_ref(py))
    }

    #[getter]
    fn found(&self, py: Python<'_>) -> PyResult<Option<Py<Found>>> {
        let Some(found) = &self.found else { return Ok(None) };
        found.as_ref().map(|found| Some(found.clone_ref(py))).map_err(|error| error.clone_ref(py))
    }

    fn __repr__(&self) -> String {
        let kind = if self.found.is_some() { "lookup" } else { "group" };
        format!("<kvrail.GroupEnd of {kind} {}>", self.ticket)
    }
}

impl GroupEnd {
    fn new(py: Python<'_>, (ticket, outcome): (u32, Outcome)) -> PyResult<Self> {
        let (mut results, mut found) = (None, None);
        match outcome {
            Outcome::Results(all) => results = Some(Py::new(py, all)?),
            Outcome::Found(all) => found = Some(all.and_then(|all| Py::new(py, all))),
        }
        Ok(Self { ticket, results, found })
    }
}

/// One thread's way to a namespace.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct BlockQueue {
    owner: Owner,
    cell: Arc<Closable<Mutex<Flight>>>,
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

/// Keeps what a lookup came to. Of a namespace that was cleared, it is asked anew, once.
fn take_answer(
    py: Python<'_>,
    flight: &mut Flight,
    (ticket, question, outcome): Answer,
) -> PyResult<()> {
    let outcome = match outcome {
        Err(ClientError::Denied { status: Status::Stale, .. }) if !question.again => {
            refresh(py, &question.space)?;
            match flight.look_up_again(ticket, Question { again: true, ..question }) {
                Ok(()) => return Ok(()),
                Err(error) => Err(error),
            }
        }
        outcome => outcome,
    };
    flight.keep(ticket, Outcome::Found(outcome.map(Found::new).map_err(from_client)));
    Ok(())
}

impl BlockQueue {
    pub(crate) fn open(py: Python<'_>, owner: Owner, depth: usize) -> PyResult<Self> {
        let client = owner.session().client()?;
        let queue = ask(py, move || client.open_queue(depth), drop)?.map_err(from_client)?;
        let cell = owner.session().add("queue", Mutex::new(Flight::new(queue)));
        Ok(Self { owner, cell })
    }

    fn get(&self) -> PyResult<Arc<Mutex<Flight>>> {
        self.owner.session().birth().check()?;
        self.cell.get()
    }

    fn submit(&self, py: Python<'_>, group: Group) -> PyResult<u32> {
        if group.timeout().is_some() {
            let text = "timeout is for calls that wait: give it to wait()";
            return Err(PyTypeError::new_err(text));
        }
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        let client = self.owner.session().client()?;
        held.bounce().reserve(py, &client, group.longest_to_copy())?;
        let flight = &mut *held;
        Ok(py.detach(|| flight.submit(group)))
    }

    /// Takes what has ended.
    fn take(&self, py: Python<'_>, flight: &mut Flight) -> PyResult<()> {
        let (ended, answers) = py.detach(|| flight.poll());
        for (ticket, group) in ended {
            self.owner.session().count_copied(group.copied_bytes());
            let stale = group.is_stale().then(|| group.space().clone());
            flight.keep(ticket, Outcome::Results(group.into_results()));
            if let Some(space) = stale {
                refresh(py, &space)?;
            }
        }
        answers.into_iter().try_for_each(|answer| take_answer(py, flight, answer))?;
        if flight.cleared().next().is_some() {
            flight.cleared().try_for_each(|group| renew(py, group))?;
            py.detach(|| flight.stage());
        }
        Ok(())
    }
}

#[pymethods]
impl BlockQueue {
    #[pyo3(signature = (keys, buffers, **options))]
    fn submit_put(
        &self,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u32> {
        let group = self.owner.group(Work::Put, keys, Some(buffers), options)?;
        self.submit(keys.py(), group)
    }

    #[pyo3(signature = (keys, buffers, **options))]
    fn submit_get(
        &self,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u32> {
        let group = self.owner.group(Work::Get, keys, Some(buffers), options)?;
        self.submit(keys.py(), group)
    }

    #[pyo3(signature = (keys, **options))]
    fn submit_drop(
        &self,
        keys: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<u32> {
        self.submit(keys.py(), self.owner.group(Work::Drop, keys, None, options)?)
    }

    #[pyo3(signature = (keys, *, hold=0.0, prefix_only=false, touch=false, timeout=None))]
    fn submit_lookup(
        &self,
        keys: &Bound<'_, PyAny>,
        hold: f64,
        prefix_only: bool,
        touch: bool,
        timeout: Option<f64>,
    ) -> PyResult<u32> {
        let asked = Asked::new(hold, (prefix_only, touch), timeout)?;
        let (py, keys) = (keys.py(), keys::read(keys)?);
        let (how, until) = (asked.how(), deadline(asked.timeout()));
        let space = self.owner.space().clone();
        let question = Question { space, keys, how, until, again: false };
        let queue = self.get()?;
        let mut held = self::hold(&queue)?;
        let flight = &mut *held;
        py.detach(|| flight.look_up(question)).map_err(from_client)
    }

    #[pyo3(signature = (most=None))]
    fn poll(&self, py: Python<'_>, most: Option<usize>) -> PyResult<Vec<GroupEnd>> {
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        self.take(py, &mut held)?;
        held.hand_out(most).into_iter().map(|end| GroupEnd::new(py, end)).collect()
    }

    #[pyo3(signature = (count=1, timeout=None))]
    fn wait(
        &self,
        py: Python<'_>,
        count: usize,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<GroupEnd>> {
        let until = deadline(timeout.map(|timeout| seconds("timeout", timeout)).transpose()?);
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        loop {
            self.take(py, &mut held)?;
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let all = held.ended() >= count || held.ended() == held.outstanding();
            if all || left.is_some_and(|left| left.is_zero()) {
                break;
            }
            let (slice, flight) = (left.map_or(SLICE, |left| left.min(SLICE)), &mut *held);
            py.detach(|| flight.wait(slice)).map_err(from_client)?;
            pause(py, self.owner.session())?;
        }
        held.hand_out(None).into_iter().map(|end| GroupEnd::new(py, end)).collect()
    }

    fn arm(&self) -> PyResult<bool> {
        let queue = self.get()?;
        let mut held = hold(&queue)?;
        Ok(held.ended() > 0 || held.queue_mut().arm() == Armed::Ready)
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
        Ok(held.outstanding())
    }

    #[getter]
    fn closed(&self) -> bool {
        self.cell.is_closed()
    }

    #[pyo3(signature = (timeout=5.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        self.owner.session().birth().check()?;
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

    fn __repr__(&self) -> String {
        let state = if self.closed() { "closed" } else { "open" };
        format!("<kvrail.BlockQueue of {:?}, {state}>", self.owner.space().name())
    }
}
