//! The result of `auto` on a device, for a process that opens it again at once, and for devices
//! that are like it.

use serde::{Deserialize, Serialize};

use super::calibration::measured_bytes_per_second;
use super::rule::admit;
use crate::any_device::AnyDevice;
use crate::contract::Description;
use crate::system::cores;
use crate::uring::{ModeName, UringOptions};

/// End of the reason where no mode was tried again.
const EARLIER: &str = " (found by the process before this one)";

/// The same where no mode was tried but on a device that is alike, with its name between.
const ALIKE: (&str, &str) = (" (found by ", ", which is alike)");

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
            reason: as_tried(reason).to_owned(),
            bytes_per_second: description.bytes_per_second,
        })
    }

    /// Whether a kernel thread polls in it, on a core of its own.
    pub(super) fn has_kernel_thread(&self) -> bool {
        self.mode.has_kernel_thread()
    }

    /// Opens the device on which the process before this one found it; `None` where it works no
    /// more.
    pub(super) fn open_again(&self, options: &UringOptions) -> Option<AnyDevice> {
        self.open(EARLIER, self.bytes_per_second, options)
    }

    /// Opens a device that is like the one with this name, where it was found; `None` where it
    /// reads nothing. The rate is this device's own: it may be fuller, or have other users.
    pub(super) fn open_alike(&self, name: &str, options: &UringOptions) -> Option<AnyDevice> {
        let rate = measured_bytes_per_second(self.mode, options)?;
        self.open(&format!("{}{name}{}", ALIKE.0, ALIKE.1), Some(rate), options)
    }

    fn open(&self, found: &str, rate: Option<u64>, options: &UringOptions) -> Option<AnyDevice> {
        admit(self.mode, cores).ok()?;
        let reason = format!("{}{found}", self.reason);
        let again = UringOptions { reason, bytes_per_second: rate, ..options.duplicate().ok()? };
        AnyDevice::open_in(self.mode, again).ok()
    }
}

/// A reason without where it was found.
fn as_tried(reason: &str) -> &str {
    let earlier = reason.strip_suffix(EARLIER);
    let alike = || Some(reason.strip_suffix(ALIKE.1)?.rsplit_once(ALIKE.0)?.0);
    earlier.or_else(alike).unwrap_or(reason)
}

#[cfg(test)]
pub(super) mod tests {
    use super::{ChosenMode, as_tried};
    use crate::uring::ModeName;

    pub(in crate::auto) fn found(mode: ModeName) -> ChosenMode {
        ChosenMode { mode, reason: format!("auto: {mode}: of old"), bytes_per_second: Some(1) }
    }

    #[test]
    fn a_reason_is_handed_on_without_where_it_was_found() {
        let tried = "auto: iopoll: the only mode left; sqpoll refused (no queues)";
        for found in [
            "",
            " (found by the process before this one)",
            " (found by /dev/nvme0n1, which is alike)",
            " (found by /a folder (found by me)/f, which is alike)",
        ] {
            let shown = format!("{tried}{found}");
            assert!(as_tried(&shown).starts_with(tried), "{shown}");
            assert!(!as_tried(&shown).ends_with("alike)"), "{shown}");
        }
        let shown = format!("{tried} (found by /dev/nvme0n1, which is alike)");
        assert_eq!(as_tried(&shown), tried);
    }

    #[test]
    fn what_was_found_is_written_and_read() {
        let found = found(ModeName::Iopoll);
        let written = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<ChosenMode>(&written).unwrap(), found);
    }
}
