//! A replacement for a device that was taken away, in the contract's terms.

use std::any::Any;
use std::fmt;

/// A device that may go on where another one ended, made by the mechanism that takes it. After
/// `Device::replace` it holds what the device had before.
pub struct Replacement(Box<dyn Any + Send>);

impl Replacement {
    /// One for devices that take this.
    pub fn new(of: impl Any + Send) -> Self {
        Self(Box::new(of))
    }

    /// The value that a mechanism put in, for that mechanism.
    pub(crate) fn get_mut<T: Any>(&mut self) -> Option<&mut T> {
        self.0.downcast_mut()
    }
}

impl fmt::Debug for Replacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replacement").finish_non_exhaustive()
    }
}
