//! The result of `auto` on a device, for a process that opens it again at once.

use serde::{Deserialize, Serialize};

use super::rule::admit;
use crate::any_device::{AnyDevice, ModeChoice};
use crate::contract::Description;
use crate::error::DeviceError;
use crate::system::cores;
use crate::uring::{ModeName, UringOptions};

/// End of the reason where no mode was tried again.
const EARLIER: &str = " (found by the process before this one)";

/// The mode that `auto` took, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenMode {
    mode: ModeName,
    reason: String,
    bytes_per_second: Option<u64>,
}

impl ChosenMode {
    /// Of a device that `auto` opened; `None` where it has no ring.
    #[must_use]
    pub fn of(description: &Description) -> Option<Self> {
        let reason = &description.reason;
        Some(Self {
            mode: description.mode.parse().ok()?,
            reason: reason.strip_suffix(EARLIER).unwrap_or(reason).to_owned(),
            bytes_per_second: description.bytes_per_second,
        })
    }
}

impl AnyDevice {
    /// Opens a file or block device in the mode found, and as `auto` does where that one works no
    /// more; the description names the choice.
    ///
    /// # Errors
    /// `DeviceError` with the likely cause and the remedy.
    pub fn open_found(found: &ChosenMode, options: UringOptions) -> Result<Self, DeviceError> {
        if admit(found.mode, cores).is_ok() {
            let reason = format!("{}{EARLIER}", found.reason);
            let bytes_per_second = found.bytes_per_second;
            let again = UringOptions { reason, bytes_per_second, ..options.duplicate()? };
            if let Ok(device) = Self::open_in(found.mode, again) {
                return Ok(device);
            }
        }
        Self::open(ModeChoice::Auto, options)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use tempfile::NamedTempFile;

    use super::{ChosenMode, EARLIER};
    use crate::any_device::{AnyDevice, ModeChoice};
    use crate::contract::{Description, Device, DirectIo};
    use crate::uring::{ModeName, UringOptions};

    fn options(file: &NamedTempFile) -> UringOptions {
        let fd = OwnedFd::from(file.reopen().unwrap());
        UringOptions { direct: DirectIo::Optional, ..UringOptions::new("/a/file", fd) }
    }

    fn file() -> NamedTempFile {
        let file = NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        file
    }

    #[test]
    fn what_was_found_is_taken_as_often_as_it_is_handed_on() {
        let file = file();
        let first = AnyDevice::open(ModeChoice::Auto, options(&file)).unwrap();
        let found = ChosenMode::of(first.description()).unwrap();
        let written = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<ChosenMode>(&written).unwrap(), found);
        let again = AnyDevice::open_found(&found, options(&file)).unwrap();
        let Description { mode, reason, bytes_per_second, .. } = again.description();
        assert_eq!(mode, "interrupt");
        assert_eq!(*reason, format!("{}{EARLIER}", first.description().reason));
        assert_eq!(*bytes_per_second, first.description().bytes_per_second);
        assert_eq!(ChosenMode::of(again.description()), Some(found));
    }

    /// A namespace's mode, for what is a file now.
    #[test]
    fn a_mode_that_works_no_more_is_not_insisted_on() {
        let mode = ModeName::PassthroughIopoll;
        let found = ChosenMode { mode, reason: "auto: of old".into(), bytes_per_second: Some(1) };
        let device = AnyDevice::open_found(&found, options(&file())).unwrap();
        let Description { mode, reason, .. } = device.description();
        assert_eq!(mode, "interrupt");
        assert!(reason.starts_with("auto: interrupt: ") && !reason.contains(EARLIER), "{reason}");
    }
}
