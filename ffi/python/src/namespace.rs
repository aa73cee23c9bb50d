//! Namespaces as Python sees them, with the calls that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvrail_client::{BlockKey, Lease, Status};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::from_client;
use crate::group::{Group, Work};
use crate::keys;
use crate::manner::{ALWAYS, Manner, OF_DROPS, OF_PUTS};
use crate::places::{Places, Use};
use crate::plain::plain;
use crate::results::{End, Found, Results};
use crate::run::{Asked, lookup, release, run};
use crate::session::Session;
use crate::wait::ask;

/// Bytes that a block of unknown length is thought to have at least.
const EXPECTED_BYTES: usize = 64 << 10;

/// Blocks that may be shared: a name and an identity in a store.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Namespace {
    session: Arc<Session>,
    space: kvrail_client::Namespace,
    /// Bytes of the last block of unknown length.
    expected_bytes: AtomicUsize,
}

impl Namespace {
    pub(crate) fn new(session: &Arc<Session>, space: kvrail_client::Namespace) -> Self {
        Self {
            session: Arc::clone(session),
            space,
            expected_bytes: AtomicUsize::new(EXPECTED_BYTES),
        }
    }

    /// What memory is checked against: what is done with it, and the unit of places.
    fn how(&self, used: Use) -> (Use, u32) {
        (used, self.space.store().volume().geometry().memory_alignment)
    }

    /// The groups of calls for many blocks; checks what can be checked without the sidecar.
    pub(crate) fn group(
        &self,
        work: Work,
        keys: &Bound<'_, PyAny>,
        buffers: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Group> {
        let keys = keys::read(keys)?;
        let (used, known) = match work {
            Work::Put => (Use::Read, OF_PUTS),
            Work::Get => (Use::Fill, ALWAYS),
            Work::Drop => (Use::Read, OF_DROPS),
        };
        let manner = Manner::read(options, known, keys.len())?;
        let places = match buffers {
            Some(buffers) => Places::read(&self.session, buffers, keys.len(), self.how(used))?,
            None => Places::none(),
        };
        let group = Group::new(&self.space, work, manner, keys, places);
        group.check()?;
        Ok(group)
    }

    fn run(&self, py: Python<'_>, group: Group) -> PyResult<Results> {
        let results = run(py, &self.session, group)?.into_results();
        results.broken().map_or(Ok(results), Err)
    }

    /// The end of a request for one block, if it is an answer.
    fn run_one(&self, py: Python<'_>, group: Group) -> PyResult<(End, Option<Lease>)> {
        let (end, lease) = run(py, &self.session, group)?.into_one();
        if end.is_answer() || end.status == Status::DeviceGone {
            return Ok((end, lease));
        }
        Err(end.error("the block", vec![(0, end.word())]))
    }

    /// Gets a block of unknown length.
    fn get_bytes<'py>(
        &self,
        py: Python<'py>,
        key: BlockKey,
        manner: &Manner,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut room = self.expected_bytes.load(Ordering::Relaxed); // a guess, no more
        loop {
            let places = Places::room(room);
            let group = Group::new(&self.space, Work::Get, manner.clone(), vec![key], places);
            let (end, lease) = run(py, &self.session, group)?.into_one();
            let bytes = usize::try_from(end.bytes)?;
            match (end.status, lease) {
                (Status::Ok, Some(lease)) => {
                    self.expected_bytes.store(bytes.max(EXPECTED_BYTES), Ordering::Relaxed);
                    return Ok(Some(PyBytes::new(py, &lease[..bytes]).into_any()));
                }
                (Status::TooSmall, _) if bytes > room => room = bytes,
                (Status::Miss | Status::DeviceGone, _) => return Ok(None),
                _ => return Err(end.error("the block", vec![(0, end.word())])),
            }
        }
    }
}

#[pymethods]
impl Namespace {
    #[getter]
    fn name(&self) -> &str {
        self.space.name()
    }

    #[getter]
    fn identity(&self) -> &str {
        self.space.identity().as_str()
    }

    #[pyo3(signature = (key, buffer, **options))]
    fn put(
        &self,
        key: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<&'static str> {
        let manner = Manner::read(options, OF_PUTS, 1)?;
        let keys = vec![keys::read_one(key)?];
        let places = Places::read_one(&self.session, buffer, self.how(Use::Read))?;
        let group = Group::new(&self.space, Work::Put, manner, keys, places);
        group.check()?;
        Ok(self.run_one(key.py(), group)?.0.word())
    }

    #[pyo3(signature = (key, buffer=None, **options))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        buffer: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, manner) = (key.py(), Manner::read(options, ALWAYS, 1)?);
        let key = keys::read_one(key)?;
        let Some(buffer) = buffer else { return self.get_bytes(py, key, &manner) };
        let places = Places::read_one(&self.session, buffer, self.how(Use::Fill))?;
        let group = Group::new(&self.space, Work::Get, manner, vec![key], places);
        let (end, _) = self.run_one(py, group)?;
        let length = (end.status == Status::Ok).then_some(end.bytes);
        Ok(length.map(|bytes| bytes.into_pyobject(py)).transpose()?.map(Bound::into_any))
    }

    #[pyo3(signature = (keys, buffers, **options))]
    fn put_many(
        &self,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Results> {
        self.run(keys.py(), self.group(Work::Put, keys, Some(buffers), options)?)
    }

    #[pyo3(signature = (keys, buffers, **options))]
    fn get_many(
        &self,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Results> {
        self.run(keys.py(), self.group(Work::Get, keys, Some(buffers), options)?)
    }

    #[pyo3(signature = (keys, **options))]
    fn drop(
        &self,
        keys: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Results> {
        self.run(keys.py(), self.group(Work::Drop, keys, None, options)?)
    }

    #[pyo3(signature = (keys, *, hold=0.0, prefix_only=false, timeout=None))]
    fn lookup(
        &self,
        keys: &Bound<'_, PyAny>,
        hold: f64,
        prefix_only: bool,
        timeout: Option<f64>,
    ) -> PyResult<Found> {
        let asked = Asked::new(hold, prefix_only, timeout)?;
        let (py, keys) = (keys.py(), keys::read(keys)?);
        lookup(py, &self.session, (&self.space, &keys), asked).map(Found::new)
    }

    #[pyo3(signature = (keys, *, timeout=None))]
    fn release(&self, keys: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let asked = Asked::new(0.0, false, timeout)?;
        let (py, keys) = (keys.py(), keys::read(keys)?);
        release(py, &self.session, (&self.space, &keys), asked.timeout())
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.session.client()?;
        let space = self.space.clone();
        ask(py, move || space.clear(), drop)?.map_err(from_client)
    }

    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.session.client()?;
        let space = self.space.clone();
        plain(py, &ask(py, move || space.usage(), drop)?.map_err(from_client)?)
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Namespace {:?} of {:?}>", self.name(), self.space.store().volume().name())
    }
}
