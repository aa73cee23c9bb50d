//! Picks the ring mode by trying: `calibration` opens the device in every mode that works here and
//! times reads, `rule` chooses a mode by the numbers, `found` is the result that a process hands on
//! to its successor. `known` has the results of this process, for the devices that are alike by
//! `likeness`. Reads only, never writes.

mod calibration;
mod found;
mod known;
mod likeness;
mod rule;
mod trial;

pub use calibration::{Calibration, calibrate};
pub use found::ChosenMode;
pub use known::KnownModes;
pub use trial::{Trial, TrialRate, TrialResult};

use crate::any_device::{AnyDevice, ModeChoice};
use crate::error::DeviceError;
use crate::system::cores;
use crate::uring::UringOptions;

/// Opens the device in the mode found best.
fn open(options: UringOptions) -> Result<AnyDevice, DeviceError> {
    // Where one mode works there is nothing to compare.
    let calibration = calibration::run(&options, cores(), 2);
    let bytes_per_second = calibration::bytes_per_second(&calibration, &options);
    let reason = format!("auto: {}", calibration.reason);
    AnyDevice::open_in(calibration.chosen, UringOptions { reason, bytes_per_second, ..options })
}

impl AnyDevice {
    /// Opens a file or block device in the mode chosen. With `Auto` this takes up to 0.3 s more;
    /// the description has the result.
    ///
    /// # Errors
    /// `DeviceError` with the likely cause and the remedy.
    pub fn open(choice: ModeChoice, options: UringOptions) -> Result<Self, DeviceError> {
        match choice {
            ModeChoice::Auto => open(options),
            ModeChoice::Fixed(mode) => Self::open_in(mode, options),
        }
    }
}
