//! What a namespace has and what a store has lost, as Python sees it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kvrail_client::{Event, EventKind, ListedBlock};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::ask::ask;
use crate::errors::from_client;
use crate::errors::raised::QueueBusyError;
use crate::fork::ForkGeneration;
use crate::options::duration;

/// A block that a listing has met.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Block {
    block: ListedBlock,
}

#[pymethods]
impl Block {
    #[getter]
    fn key(&self) -> u128 {
        self.block.key.bits()
    }

    #[getter]
    fn length(&self) -> u32 {
        self.block.length
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.block.metadata)
    }

    #[getter]
    fn depth(&self) -> u16 {
        self.block.depth
    }

    #[getter]
    fn put_unix_s(&self) -> u32 {
        self.block.put_unix_s
    }

    #[getter]
    fn member(&self) -> u16 {
        self.block.member
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Block {} of {} bytes>", self.block.key, self.block.length)
    }
}

/// A wait that is too short to be interrupted.
const SHORT: Duration = Duration::from_millis(250);

/// A value that one call at a time takes away, uses for a request, and brings back.
#[derive(Debug)]
struct Turn<T>(Mutex<Option<T>>);

impl<T: Send + 'static> Turn<T> {
    fn new(value: T) -> Self {
        Self(Mutex::new(Some(value)))
    }

    fn ask<A: Send + 'static>(
        &self,
        py: Python<'_>,
        question: impl FnOnce(&mut T) -> A + Send + 'static,
    ) -> PyResult<A> {
        let mut value = self.take()?;
        let (value, answer) = ask(
            py,
            move || {
                let answer = question(&mut value);
                (value, answer)
            },
            drop,
        )?;
        self.bring_back(value);
        Ok(answer)
    }

    /// As `ask`, for a request that is short enough not to be interrupted: no thread is started.
    fn ask_shortly<A: Send>(
        &self,
        py: Python<'_>,
        question: impl FnOnce(&mut T) -> A + Send,
    ) -> PyResult<A> {
        let mut value = self.take()?;
        let answer = py.detach(|| question(&mut value));
        self.bring_back(value);
        Ok(answer)
    }

    fn take(&self) -> PyResult<T> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| {
            QueueBusyError::new_err("another thread uses it now, or was interrupted; begin anew")
        })
    }

    fn bring_back(&self, value: T) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }
}

/// The blocks of a namespace, one by one.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Listing {
    listing: Turn<kvrail_client::Listing>,
    ready: Mutex<VecDeque<ListedBlock>>,
    birth: ForkGeneration,
}

impl Listing {
    pub(crate) fn new(listing: kvrail_client::Listing) -> Self {
        let (listing, birth) = (Turn::new(listing), ForkGeneration::now());
        Self { listing, ready: Mutex::default(), birth }
    }

    fn pop(&self) -> Option<ListedBlock> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

#[pymethods]
impl Listing {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Block>> {
        self.birth.check()?;
        loop {
            if let Some(block) = self.pop() {
                return Ok(Some(Block { block }));
            }
            let page = self.listing.ask(py, |listing| listing.next_page())?;
            let Some(page) = page.map_err(from_client)? else { return Ok(None) };
            self.ready.lock().unwrap_or_else(PoisonError::into_inner).extend(page.blocks);
        }
    }
}

/// A block that is gone.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Gone {
    event: Event,
}

#[pymethods]
impl Gone {
    #[getter]
    fn key(&self) -> u128 {
        self.event.key.bits()
    }

    #[getter]
    fn uid(&self) -> u64 {
        self.event.uid
    }

    #[getter]
    fn length(&self) -> u32 {
        self.event.length
    }

    #[getter]
    fn why(&self) -> &'static str {
        match self.event.kind {
            EventKind::Evicted => "evicted",
            EventKind::Dropped => "dropped",
            EventKind::Cleared => "cleared",
        }
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.event.metadata)
    }

    #[getter]
    fn position(&self) -> u64 {
        self.event.position
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Gone {}: {}>", self.event.key, self.why())
    }
}

/// What is gone from a store.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Events {
    events: Turn<kvrail_client::Events>,
    birth: ForkGeneration,
}

impl Events {
    pub(crate) fn new(events: kvrail_client::Events) -> Self {
        Self { events: Turn::new(events), birth: ForkGeneration::now() }
    }
}

#[pymethods]
impl Events {
    /// Events that are there, and how many were lost.
    #[pyo3(signature = (*, timeout=None))]
    fn poll(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<(Vec<Gone>, u64)> {
        self.birth.check()?;
        let limit = timeout.map_or(Ok(Duration::MAX), |seconds| duration("timeout", seconds))?;
        let (mut all, mut lost) = (Vec::new(), 0);
        loop {
            let question = move |events: &mut kvrail_client::Events| events.poll_within(limit);
            let asked = if limit <= SHORT {
                self.events.ask_shortly(py, question)
            } else {
                self.events.ask(py, question)
            };
            let batch = asked?.map_err(from_client)?;
            lost += batch.lost;
            all.extend(batch.events.into_iter().map(|event| Gone { event }));
            if !batch.more {
                return Ok((all, lost));
            }
        }
    }
}
