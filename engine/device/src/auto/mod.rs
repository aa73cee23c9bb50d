//! Picks the ring mode by trying: `calibration` opens the device in every mode that works here and
//! times reads, `rule` says which mode the numbers speak for. Reads only, never writes.

mod calibration;
mod rule;

pub use calibration::{Calibration, Rate, Trial, TrialResult, calibrate};

use crate::error::DeviceError;
use crate::mechanism::Mechanism;
use crate::system::cores;
use crate::uring::UringOptions;

/// Opens the device in the mode found best.
pub(crate) fn open(options: UringOptions) -> Result<Mechanism, DeviceError> {
    // Where one mode works there is nothing to compare.
    let calibration = calibration::run(&options, cores(), 2);
    let bytes_per_second = calibration::bytes_per_second(&calibration, &options);
    let reason = format!("auto: {}", calibration.reason);
    Mechanism::open_in(calibration.chosen, UringOptions { reason, bytes_per_second, ..options })
}
