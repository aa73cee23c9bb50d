//! Groups out of Python's arguments: which namespace of which client they are for.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::call_options::{ALWAYS, CallOptions, OF_DROPS, OF_GETS, OF_PUTS};
use crate::group::{BlockWork, Group};
use crate::keys;
use crate::places::{Places, Use};
use crate::session::Session;

/// A namespace and the client that opened it.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    session: Arc<Session>,
    space: kvrail_client::Namespace,
}

impl Owner {
    pub(crate) fn new(session: &Arc<Session>, space: kvrail_client::Namespace) -> Self {
        Self { session: Arc::clone(session), space }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn space(&self) -> &kvrail_client::Namespace {
        &self.space
    }

    /// The namespace, while its client is attached.
    pub(crate) fn get(&self) -> PyResult<kvrail_client::Namespace> {
        self.session.client()?;
        Ok(self.space.clone())
    }

    /// A group for many blocks; checks what can be checked without the sidecar.
    pub(crate) fn group(
        &self,
        work: BlockWork,
        keys: &Bound<'_, PyAny>,
        buffers: Option<&Bound<'_, PyAny>>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Group> {
        let keys = keys::read(keys)?;
        let options = CallOptions::read(options, known(work), keys.len())?;
        let places = match buffers {
            Some(buffers) => Places::read(&self.session, buffers, keys.len(), self.how(work))?,
            None => Places::none(),
        };
        Group::new(&self.space, work, options, keys, places).checked()
    }

    /// A group for one block; without a buffer there is room for so many bytes.
    pub(crate) fn group_of_one(
        &self,
        work: BlockWork,
        key: &Bound<'_, PyAny>,
        buffer: Result<&Bound<'_, PyAny>, usize>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Group> {
        let keys = vec![keys::read_one(key)?];
        let known = if work == BlockWork::Get { ALWAYS } else { known(work) };
        let options = CallOptions::read(options, known, 1)?;
        let places = match buffer {
            Ok(buffer) => Places::read_one(&self.session, buffer, self.how(work))?,
            Err(bytes) => Places::room(bytes),
        };
        Group::new(&self.space, work, options, keys, places).checked()
    }

    /// What memory is checked against: what is done with it, and the unit of places.
    fn how(&self, work: BlockWork) -> (Use, u32) {
        let used = if work == BlockWork::Get { Use::Fill } else { Use::Read };
        (used, self.space.store().volume().geometry().memory_alignment)
    }
}

fn known(work: BlockWork) -> &'static [&'static str] {
    match work {
        BlockWork::Put => OF_PUTS,
        BlockWork::Get => OF_GETS,
        BlockWork::Drop => OF_DROPS,
    }
}
