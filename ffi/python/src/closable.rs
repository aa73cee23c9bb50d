//! Something that can be taken away from a Python object while the object lives on.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::ask::SLICE;
use crate::errors::raised::ClosedError;

/// How long calls are waited for that use what is closed: they look after each slice.
const USERS_LEAVE: Duration = SLICE.saturating_mul(20);
/// Time between two looks for them.
const LOOK: Duration = Duration::from_millis(1);

/// A value until it is closed.
#[derive(Debug)]
pub(crate) struct Closable<T> {
    /// What it is, for errors.
    what: &'static str,
    value: RwLock<Option<Arc<T>>>,
}

/// A cell of whatever.
pub(crate) trait AnyClosable: fmt::Debug + Send + Sync {
    /// Closes it with its client. Its value is dropped here, once the calls that use it have seen
    /// that the client is closed: a drop may take seconds.
    fn end(&self);
}

impl<T: fmt::Debug + Send + Sync> AnyClosable for Closable<T> {
    fn end(&self) {
        let Some(value) = self.take() else { return };
        let until = Instant::now() + USERS_LEAVE;
        while Arc::strong_count(&value) > 1 && Instant::now() < until {
            thread::sleep(LOOK);
        }
    }
}

impl<T> Closable<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { what, value: RwLock::new(Some(Arc::new(value))) }
    }

    /// The value; `ClosedError` when it is closed.
    pub(crate) fn get(&self) -> PyResult<Arc<T>> {
        let value = self.value.read().unwrap_or_else(PoisonError::into_inner);
        value.clone().ok_or_else(|| {
            let text = format!("the {} is closed; make another one", self.what);
            ClosedError::new_err(text)
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.value.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Closes it.
    pub(crate) fn take(&self) -> Option<Arc<T>> {
        self.value.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Opens it again, after something went wrong.
    pub(crate) fn put_back(&self, value: Arc<T>) {
        *self.value.write().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }
}
