//! Points the rings of a device that was taken away to what came back in its place.

use std::mem::swap;

use rustix::io::Errno;

use crate::error::DeviceError;
use crate::replacement::{Nothing, Replacement};
use crate::uring::device::Uring;
use crate::uring::ring_mode::Mode;
use crate::uring::sqe::Block;
use crate::uring::successor::Successor;

impl<M: Mode> Uring<M> {
    /// Takes the replacement's place in exchange for its own.
    ///
    /// # Errors
    /// `Unfit` while anything is in flight (it belongs to the device that is gone), or when the
    /// kernel refuses.
    pub(super) fn refit(&mut self, with: &mut Replacement) -> Result<(), DeviceError> {
        let path = &self.target.path;
        let open = self.flights.in_flight();
        if open > 0 {
            let what = format!("{open} operations of the device that is gone have not ended");
            return Err(DeviceError::unfit(path, &what, "it is tried again when they have"));
        }
        if let Some(Nothing(file)) = with.get_mut() {
            let refused = |errno: Errno| {
                let what = format!("its ring does not let go of its file ({errno})");
                DeviceError::unfit(path, &what, "restart the sidecar")
            };
            self.ring.close_file().map_err(refused)?;
            self.side.as_mut().map_or(Ok(()), |side| side.close_file()).map_err(refused)?;
            swap(&mut self.target.fd, file);
            return Ok(());
        }
        let Some(with) = with.get_mut::<Successor>() else {
            return Err(DeviceError::unfit(
                path,
                "came back as something else",
                "restart the sidecar",
            ));
        };
        let refused = |errno: Errno| {
            let what = format!("its ring does not take another file ({errno})");
            DeviceError::unfit(path, &what, "restart the sidecar")
        };
        let (wire, file) = with.wire::<M::SqeFormat>();
        self.ring.change_file(wire, file).map_err(refused)?;
        if let Some(side) = &mut self.side {
            let (wire, file) = with.wire::<Block>();
            side.change_file(wire, file).map_err(refused)?;
        }
        swap(&mut self.target, &mut with.target);
        swap(&mut self.removal, &mut with.removal);
        Ok(())
    }
}
