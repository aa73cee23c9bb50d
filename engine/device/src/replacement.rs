//! A replacement for a device that was taken away, in the contract's terms.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A device that may go on where another one ended, made by the mechanism that takes it. After
/// `Device::replace` it holds what the device had before.
pub struct Replacement(Box<dyn Any + Send>);

impl Replacement {
    /// One for devices that take this.
    pub fn new(of: impl Any + Send) -> Self {
        Self(Box::new(of))
    }

    /// Nothing: a device that is never to be used again lets go of its file, and this has it then.
    ///
    /// # Errors
    /// The kernel's, when descriptors run out.
    pub fn nothing() -> Result<Self, Errno> {
        Ok(Self::new(Nothing(eventfd(0, EventfdFlags::CLOEXEC)?)))
    }

    /// The value that a mechanism put in, for that mechanism.
    pub(crate) fn get_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.0.downcast_mut()
    }
}

/// A descriptor in the place of a device's own.
pub(crate) struct Nothing(pub(crate) OwnedFd);

impl fmt::Debug for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replacement").finish_non_exhaustive()
    }
}
