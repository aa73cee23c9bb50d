//! Options of a request beyond place and length: Python's keyword arguments.

use std::time::Duration;

use kvrail_client::{Class, Request};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::raised::RequestError;
use crate::numbers::Numbers;

/// Keyword arguments of reads and writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestOptions {
    class: Class,
    durable: Option<()>,
    checksum: Option<()>,
    /// CRC-64/NVME that the bytes must have.
    verify: Option<Numbers>,
    deadline: Option<Duration>,
    /// How long the call may wait; by default for ever.
    pub(crate) timeout: Option<Duration>,
    pub(crate) tag: u64,
}

impl RequestOptions {
    pub(crate) fn read(given: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut options = Self::default();
        for (key, value) in given.into_iter().flatten() {
            let key: String = key.extract()?;
            match &*key {
                _ if value.is_none() => known(&key)?,
                "priority" => options.class = class(&value)?,
                "durable" => options.durable = value.extract::<bool>()?.then_some(()),
                "checksum" => options.checksum = value.extract::<bool>()?.then_some(()),
                "verify" => options.verify = Some(Numbers::read("verify", &value)?),
                "deadline" => options.deadline = Some(seconds("deadline", &value)?),
                "timeout" => options.timeout = Some(seconds("timeout", &value)?),
                "tag" => options.tag = value.extract()?,
                _ => known(&key)?,
            }
        }
        Ok(options)
    }

    /// The request with number `index` of a batch, with all of it.
    pub(crate) fn apply(&self, index: usize, request: Request) -> Request {
        let mut request = request.class(self.class).tag(self.tag);
        if self.durable.is_some() {
            request = request.durable();
        }
        if self.checksum.is_some() {
            request = request.checksum();
        }
        if let Some(verify) = &self.verify {
            request = request.verify(verify.get(index));
        }
        if let Some(deadline) = self.deadline {
            request = request.deadline(deadline);
        }
        request
    }

    /// The number of requests they are for, if they have one.
    pub(crate) fn count(&self) -> Option<usize> {
        self.verify.as_ref().and_then(Numbers::count)
    }
}

fn known(key: &str) -> PyResult<()> {
    const KEYS: [&str; 7] =
        ["priority", "durable", "checksum", "verify", "deadline", "timeout", "tag"];
    if KEYS.contains(&key) {
        return Ok(());
    }
    let text = format!("{key:?} is no option of a request; there are {}", KEYS.join(", "));
    Err(PyTypeError::new_err(text))
}

/// Order of requests at a busy device.
pub(crate) fn class(value: &Bound<'_, PyAny>) -> PyResult<Class> {
    let name: String = value.extract()?;
    match &*name {
        "demand" => Ok(Class::Demand),
        "prefetch" => Ok(Class::Prefetch),
        "background" => Ok(Class::Background),
        _ => Err(RequestError::new_err(format!(
            "priority is {name:?}; it must be \"demand\", \"prefetch\" or \"background\""
        ))),
    }
}

/// A time in seconds.
pub(crate) fn seconds(what: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    duration(what, value.extract()?)
}

/// A time in seconds.
pub(crate) fn duration(what: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        RequestError::new_err(format!(
            "{what} is {seconds:?}; it must be 0 to {} seconds, or be left out",
            u64::MAX
        ))
    })
}
