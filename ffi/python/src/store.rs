//! Stores as Python sees them: where namespaces are opened, shown, cleared and removed.

use std::sync::Arc;

use kvrail_client::{Absent, Identity};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::ask::ask;
use crate::errors::raised::NamespaceError;
use crate::errors::{from_client, from_opening};
use crate::listing::Events;
use crate::namespace::Namespace;
use crate::plain::plain;
use crate::session::Session;

/// A store of the sidecar.
#[pyclass(frozen, module = "kvrail")]
#[derive(Debug)]
pub(crate) struct Store {
    session: Arc<Session>,
    store: kvrail_client::Store,
}

impl Store {
    pub(crate) fn new(session: &Arc<Session>, store: kvrail_client::Store) -> Self {
        Self { session: Arc::clone(session), store }
    }

    /// The store, while its client is attached.
    fn get(&self) -> PyResult<kvrail_client::Store> {
        self.session.client()?;
        Ok(self.store.clone())
    }
}

/// The document of a mapping, or of JSON.
fn identity(from: &Bound<'_, PyAny>) -> PyResult<Identity> {
    let text = if from.is_instance_of::<PyString>() {
        from.extract::<String>()
    } else {
        let fields = from.py().get_type::<pyo3::types::PyDict>().call1((from,));
        fields
            .and_then(|fields| from.py().import("json")?.call_method1("dumps", (fields,)))
            .and_then(|text| text.extract())
    };
    let text = text.map_err(|error| {
        NamespaceError::new_err(format!(
            "the identity cannot be written as JSON ({error}); pass a dict of text and numbers"
        ))
    })?;
    Identity::parse(&text).map_err(|error| from_client(error.into()))
}

#[pymethods]
impl Store {
    #[getter]
    fn name(&self) -> &str {
        self.store.volume().name()
    }

    #[getter]
    fn block_bytes_max(&self) -> u32 {
        self.store.block_bytes_max()
    }

    #[getter]
    fn memory_alignment(&self) -> u32 {
        self.store.volume().geometry().memory_alignment
    }

    #[getter]
    fn members(&self) -> u16 {
        self.store.volume().geometry().members
    }

    #[pyo3(signature = (name, identity, *, create=true))]
    fn namespace(
        &self,
        py: Python<'_>,
        name: String,
        identity: &Bound<'_, PyAny>,
        create: bool,
    ) -> PyResult<Namespace> {
        let (store, identity) = (self.get()?, self::identity(identity)?);
        let absent = if create { Absent::Create } else { Absent::Fail };
        let opened = ask(py, move || store.open(&name, &identity, absent), drop)?;
        Ok(Namespace::new(&self.session, opened.map_err(from_opening)?))
    }

    fn namespaces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let store = self.get()?;
        plain(py, &ask(py, move || store.namespaces(), drop)?.map_err(from_client)?)
    }

    fn events(&self, py: Python<'_>) -> PyResult<Events> {
        let store = self.get()?;
        ask(py, move || store.events(), drop)?.map(Events::new).map_err(from_client)
    }

    fn clear(&self, py: Python<'_>, name: String) -> PyResult<()> {
        let store = self.get()?;
        ask(py, move || store.clear(&name), drop)?.map(drop).map_err(from_client)
    }

    fn remove(&self, py: Python<'_>, name: String) -> PyResult<()> {
        let store = self.get()?;
        ask(py, move || store.remove(&name), drop)?.map_err(from_client)
    }

    fn __repr__(&self) -> String {
        format!("<kvrail.Store {:?}>", self.name())
    }
}
