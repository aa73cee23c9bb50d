//! NVMe's status of a failed command, by number, name and our own status. Numbers and names are
//! those of the NVM Express base and NVM command set specifications.

use std::fmt;

use kvrail_ring::Status;
use kvrail_ring::Status::{Corrupt, DeviceDegraded, DeviceGone, IoError, NoSpace, Unsupported};

/// Do Not Retry: the drive expects the same of another try.
const DNR: u16 = 1 << 14;

/// Status code type (3 bits) and status code (8 bits).
const CODE: u16 = 0x7ff;

/// Status code type above, status code below; the name; what it means to a client.
const TABLE: &[(u16, &str, Status)] = &[
    (0x001, "invalid opcode", Unsupported),
    (0x002, "invalid field in command", IoError),
    (0x004, "data transfer error", IoError),
    (0x005, "aborted, power loss", DeviceDegraded),
    (0x006, "internal error", IoError),
    (0x007, "abort requested", IoError),
    (0x008, "aborted, submission queue deleted", IoError),
    (0x00b, "invalid namespace or format", DeviceGone),
    (0x013, "invalid PRP offset", IoError),
    (0x01c, "sanitize failed", DeviceDegraded),
    (0x01d, "sanitize in progress", DeviceDegraded),
    (0x020, "namespace is write protected", Unsupported),
    (0x021, "command interrupted", IoError),
    (0x022, "transient transport error", IoError),
    (0x080, "LBA out of range", IoError),
    (0x081, "capacity exceeded", NoSpace),
    (0x082, "namespace not ready", DeviceDegraded),
    (0x083, "reservation conflict", IoError),
    (0x084, "format in progress", DeviceDegraded),
    (0x180, "conflicting attributes", IoError),
    (0x181, "invalid protection information", IoError),
    (0x182, "attempted write to read only range", Unsupported),
    (0x183, "command size limit exceeded", IoError),
    (0x280, "write fault", IoError),
    (0x281, "unrecovered read error", IoError),
    (0x282, "end-to-end guard check error", Corrupt),
    (0x283, "end-to-end application tag check error", Corrupt),
    (0x284, "end-to-end reference tag check error", Corrupt),
    (0x285, "compare failure", IoError),
    (0x286, "access denied", IoError),
    (0x287, "deallocated or unwritten logical block", IoError),
    (0x300, "internal path error", IoError),
    (0x301, "asymmetric access persistent loss", DeviceGone),
    (0x302, "asymmetric access inaccessible", DeviceDegraded),
    (0x303, "asymmetric access transition", DeviceDegraded),
    (0x360, "controller pathing error", IoError),
    (0x370, "host pathing error", IoError),
    (0x371, "command aborted by host", IoError),
];

/// Drives' statuses for a missing namespace: Invalid Field in Command for one that is not attached,
/// Invalid Namespace or Format for an unknown number.
const NO_NAMESPACE: [u16; 2] = [0x002, 0x00b];

/// The status field of a completed command, without its phase bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeStatus(u16);

impl NvmeStatus {
    /// From the positive result of a passed through command.
    #[must_use]
    pub fn of_result(result: i32) -> Self {
        let bits = result & 0x7fff;
        Self(u16::try_from(bits).expect("15 bits"))
    }

    fn known(self) -> Option<&'static (u16, &'static str, Status)> {
        TABLE.iter().find(|(code, _, _)| *code == self.0 & CODE)
    }

    /// The status for a client. Any status outside of the table is an I/O error.
    #[must_use]
    pub fn status(self) -> Status {
        self.known().map_or(IoError, |(_, _, status)| *status)
    }

    /// Whether a read or write would be answered like this if the drive had no such namespace.
    #[cold]
    pub(crate) fn may_mean_no_namespace(self) -> bool {
        NO_NAMESPACE.contains(&(self.0 & CODE))
    }

    /// Another try may succeed unless the drive sets "do not retry". The kernel's driver repeats
    /// block requests, but not passed through commands.
    #[cold]
    pub(crate) fn is_transient(self) -> bool {
        self.0 & DNR == 0
    }
}

impl fmt::Display for NvmeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.0 & CODE;
        match self.known() {
            Some((_, name, _)) => write!(f, "{name} ({code:#05x})"),
            None if code >> 8 == 7 => write!(f, "vendor specific status ({code:#05x})"),
            None => write!(f, "status not in the table ({code:#05x})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use kvrail_ring::Status;

    use super::{NvmeStatus, TABLE};
    #[test]
    fn the_table_is_in_order_and_has_no_success() {
        assert!(TABLE.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(TABLE.iter().all(|(code, name, status)| {
            *code > 0 && !name.is_empty() && *status != Status::Ok
        }));
    }

    #[test]
    fn statuses_have_a_name_a_meaning_and_another_try() {
        let of = NvmeStatus::of_result;
        assert_eq!(of(0x4281).to_string(), "unrecovered read error (0x281)");
        assert_eq!(of(0x81).status(), Status::NoSpace);
        let means = |result| (of(result).is_transient(), of(result).status());
        assert_eq!(means(0x82), (true, Status::DeviceDegraded));
        assert_eq!(means(0x4080), (false, Status::IoError));
        assert_eq!(means(0x400b), (false, Status::DeviceGone));
        assert!(of(0x47c1).to_string().contains("vendor specific status (0x7c1)"));
        assert_eq!(of(0x40ff).status(), Status::IoError);
        assert!(of(0x40ff).to_string().contains("not in the table (0x0ff)"));
    }
}
