//! Namespaces as Python sees them, with the calls that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kvrail_client::Status;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::ask::ask;
use crate::errors::from_client;
use crate::group::{BlockWork, Group};
use crate::group_of::Owner;
use crate::keys;
use crate::listing::Listing;
use crate::plain::plain;
use crate::queue::{Queue, Target};
use crate::results::{Found, Probed, Results, known};
use crate::run::{Asked, lookup, release, run};
use crate::session::Session;
use crate::view::View;

/// Bytes that a block of unknown length is thought to have at least.
const EXPECTED_BYTES: usize = 64 << 10;

/// Blocks that may be shared: a name and an identity in a store.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Namespace {
    owner: Owner,
    /// Bytes of the last block of unknown length.
    expected_bytes: AtomicUsize,
}

impl Namespace {
    pub(crate) fn new(session: &Arc<Session>, space: kvrail_client::Namespace) -> Self {
        let owner = Owner::new(session, space);
        Self { owner, expected_bytes: AtomicUsize::new(EXPECTED_BYTES) }
    }

    fn run(&self, py: Python<'_>, group: Group) -> PyResult<Results> {
        let results = run(py, self.owner.session(), group)?.into_results();
        results.broken().map_or(Ok(results), Err)
    }

    /// The namespace, while its client is attached; with its presence tables, if they can be had.
    /// The interpreter lock is kept where nothing waits: others would keep it for milliseconds.
    fn shown(&self, py: Python<'_>) -> PyResult<&kvrail_client::Namespace> {
        self.owner.session().client()?;
        let space = self.owner.space();
        if !space.probes_at_once() {
            let space = space.clone();
            ask(py, move || space.fetch_presence(), drop)?;
        }
        Ok(space)
    }

    /// Gets a block of unknown length.
    fn get_bytes<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, owner) = (key.py(), &self.owner);
        let mut room = self.expected_bytes.load(Ordering::Relaxed); // a guess, no more
        loop {
            let group = owner.group_of_one(BlockWork::Get, key, Err(room), options)?;
            let (end, lease) = run(py, owner.session(), group)?.into_one();
            let bytes = usize::try_from(end.bytes)?;
            match (end.status, lease) {
                (Status::Ok, Some(lease)) => {
                    self.expected_bytes.store(bytes.max(EXPECTED_BYTES), Ordering::Relaxed);
                    return Ok(Some(PyBytes::new(py, &lease[..bytes]).into_any()));
                }
                (Status::TooSmall, _) if bytes > room => room = bytes,
                (Status::Miss | Status::DeviceGone, _) => return Ok(None),
                _ => return Err(end.error_of_one()),
            }
        }
    }
}

#[pymethods]
impl Namespace {
    #[getter]
    fn name(&self) -> &str {
        self.owner.space().name()
    }

    #[getter]
    fn identity(&self) -> &str {
        self.owner.space().identity().as_str()
    }

    #[pyo3(signature = (key, buffer, **options))]
    fn put(
        &self,
        key: &Bound<'_, PyAny>,
        buffer: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<&'static str> {
        let group = self.owner.group_of_one(BlockWork::Put, key, Ok(buffer), options)?;
        let (end, _) = run(key.py(), self.owner.session(), group)?.into_one();
        if end.is_answer() { Ok(end.word()) } else { Err(end.error_of_one()) }
    }

    #[pyo3(signature = (key, buffer=None, **options))]
    fn get<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        buffer: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(buffer) = buffer else { return self.get_bytes(key, options) };
        let (py, group) =
            (key.py(), self.owner.group_of_one(BlockWork::Get, key, Ok(buffer), options)?);
        let (end, _) = run(py, self.owner.session(), group)?.into_one();
        match end.status {
            Status::Ok => Ok(Some(end.bytes.into_pyobject(py)?.into_any())),
            Status::Miss | Status::DeviceGone => Ok(None),
            _ => Err(end.error_of_one()),
        }
    }

    fn view(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<View>> {
        let (py, key) = (key.py(), keys::read_one(key)?);
        let (session, space) = (self.owner.session(), self.owner.get()?);
        if !space.store().reads_from_memory() {
            return Ok(None);
        }
        let mut queue = session.borrow_queue(py)?;
        let view = py.detach(|| queue.view(&space, key)); // its first one asks and verifies
        session.return_queue(queue);
        Ok(view.map(View::new))
    }

    /// Blocks in a memory tier, of the keys from the first on until one is not there: each with its
    /// address and the CRC that its bytes must have, for a caller that verifies them. The
    /// interpreter lock is kept: nothing waits.
    #[pyo3(name = "_views")]
    fn views(&self, keys: &Bound<'_, PyAny>) -> PyResult<Vec<(View, usize, u64)>> {
        let (py, keys) = (keys.py(), keys::read(keys)?);
        let (session, space) = (self.owner.session(), self.owner.get()?);
        let mut queue = session.borrow_queue(py)?;
        let all = keys.into_iter().map_while(|key| queue.view_unverified(&space, key));
        let address = |view: &kvrail_client::View| view.as_ptr().expose_provenance();
        let views = all.map(|(view, crc)| (address(&view), view, crc));
        let views = views.map(|(address, view, crc)| (View::new(view), address, crc)).collect();
        session.return_queue(queue);
        Ok(views)
    }

    /// Views that the client may open now.
    #[pyo3(name = "_views_left")]
    fn views_left(&self, py: Python<'_>) -> PyResult<usize> {
        let space = self.owner.get()?;
        py.detach(|| Ok(space.store().views_left())) // the first one asks
    }

    /// The memory tiers as they are mapped here while this object is there: addresses and bytes.
    #[pyo3(name = "_tier_memory")]
    fn tier_memory(&self) -> PyResult<Vec<(usize, usize)>> {
        let memory = self.owner.get()?.store().tier_memory();
        let each = memory.into_iter();
        Ok(each.map(|(base, bytes)| (base.as_ptr().expose_provenance(), bytes)).collect())
    }

    #[pyo3(signature = (keys, buffers, **options))]
    fn put_many(
        &self,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Results> {
        self.run(keys.py(), self.owner.group(BlockWork::Put, keys, Some(buffers), options)?)
    }

    #[pyo3(signature = (keys, buffers, **options))]
    fn get_many(
        &self,
        keys: &Bound<'_, PyAny>,
        buffers: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Results> {
        self.run(keys.py(), self.owner.group(BlockWork::Get, keys, Some(buffers), options)?)
    }

    #[pyo3(signature = (keys, **options))]
    fn drop(
        &self,
        keys: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Results> {
        self.run(keys.py(), self.owner.group(BlockWork::Drop, keys, None, options)?)
    }

    #[pyo3(signature = (keys, **options))]
    fn lookup(
        &self,
        keys: &Bound<'_, PyAny>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Found> {
        let asked = Asked::read(options)?;
        let (py, keys) = (keys.py(), keys::read(keys)?);
        lookup(py, self.owner.session(), (self.owner.space(), &keys), asked).map(Found::new)
    }

    fn probe(&self, key: &Bound<'_, PyAny>) -> PyResult<Option<bool>> {
        let (space, key) = (self.shown(key.py())?, keys::read_one(key)?);
        Ok(known(space.probe(key)))
    }

    fn probe_many(&self, keys: &Bound<'_, PyAny>) -> PyResult<Probed> {
        let (space, keys) = (self.shown(keys.py())?, keys::read(keys)?);
        Ok(Probed::new(space.probe_many(keys).collect()))
    }

    #[pyo3(signature = (keys, *, timeout=None))]
    fn release(&self, keys: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let asked = Asked::plain(timeout)?;
        let (py, keys) = (keys.py(), keys::read(keys)?);
        release(py, self.owner.session(), (self.owner.space(), &keys), asked.timeout())
    }

    #[pyo3(signature = (depth=128))]
    fn queue(&self, py: Python<'_>, depth: usize) -> PyResult<Queue> {
        Queue::open(py, self.owner.session(), Target::Namespace(self.owner.clone()), depth)
    }

    fn list(&self) -> PyResult<Listing> {
        Ok(Listing::new(self.owner.get()?.list()))
    }

    fn explain<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, space, key) = (key.py(), self.owner.get()?, keys::read_one(key)?);
        plain(py, &ask(py, move || space.explain(key), drop)?.map_err(from_client)?)
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        let space = self.owner.get()?;
        ask(py, move || space.clear(), drop)?.map_err(from_client)
    }

    fn usage<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let space = self.owner.get()?;
        plain(py, &ask(py, move || space.usage(), drop)?.map_err(from_client)?)
    }

    fn __repr__(&self) -> String {
        format!(
            "<kvrail.Namespace {:?} of {:?}>",
            self.name(),
            self.owner.space().store().volume().name()
        )
    }
}
