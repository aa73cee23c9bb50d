//! The read-only admin commands, through the controller's character device.
#![expect(unsafe_code, reason = "the admin ioctl writes to the memory it is pointed to")]
// UNSAFETY: one ioctl, which ends before it returns; its buffer is borrowed for as long.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use thiserror::Error;

use crate::identify::{AdminData, RawController, RawEndurance, RawHealth, RawNamespace};
use crate::selector::NSID_ALL;

/// `struct nvme_passthru_cmd` of linux/nvme_ioctl.h.
#[derive(Debug, Default)]
#[repr(C)]
struct Passthrough {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    /// 0 is the driver's own, 60 s; the driver resets a controller that is late, so none is set.
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<Passthrough>() == 72);

/// `NVME_IOCTL_ADMIN_CMD` of linux/nvme_ioctl.h: `_IOWR('N', 0x41, struct nvme_passthru_cmd)`.
const ADMIN: Opcode = opcode::read_write::<Passthrough>(b'N', 0x41);

/// Admin opcodes (NVM Express base specification, `enum nvme_admin_opcode` of linux/nvme.h).
const IDENTIFY: u8 = 0x06;
const GET_LOG_PAGE: u8 = 0x02;
/// CNS values of Identify.
const CNS_NAMESPACE: u32 = 0;
const CNS_CONTROLLER: u32 = 1;
/// The log page, in bits 7:0 of dword 10; bits 31:16 take the dwords to return, less one.
const LOG_HEALTH: u32 = 2;
/// Its group stands in bits 31:16 of dword 11.
const LOG_ENDURANCE: u32 = 9;

/// Why a drive's answer was not had.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum AdminError {
    #[error("{node} cannot be opened ({errno}){}", advice(*errno))]
    Open { node: String, errno: Errno },
    #[error("the kernel refuses the command ({errno}){}", advice(*errno))]
    Refused { errno: Errno },
    #[error("the drive answers with status {status:#x}")]
    Status { status: u32 },
}

fn advice(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS | Errno::PERM => "; run as root, or with CAP_SYS_ADMIN and read permission",
        Errno::NOTTY | Errno::OPNOTSUPP => "; it is no NVMe controller",
        Errno::NOENT => "; make it, or give the container this device node",
        _ => "",
    }
}

/// An open controller.
#[derive(Debug)]
pub(crate) struct Admin(OwnedFd);

impl Admin {
    pub(crate) fn open(node: &Path) -> Result<Self, AdminError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let opened = open(node, flags, Mode::empty()).map(Self);
        opened.map_err(|errno| AdminError::Open { node: node.display().to_string(), errno })
    }

    pub(crate) fn controller(&self) -> Result<Box<RawController>, AdminError> {
        self.ask(Passthrough { opcode: IDENTIFY, cdw10: CNS_CONTROLLER, ..Default::default() })
    }

    pub(crate) fn namespace(&self, nsid: u32) -> Result<Box<RawNamespace>, AdminError> {
        self.ask(Passthrough { opcode: IDENTIFY, nsid, cdw10: CNS_NAMESPACE, ..Default::default() })
    }

    pub(crate) fn health(&self) -> Result<Box<RawHealth>, AdminError> {
        let cdw10 = log_page::<RawHealth>(LOG_HEALTH);
        self.ask(Passthrough { opcode: GET_LOG_PAGE, nsid: NSID_ALL, cdw10, ..Default::default() })
    }

    pub(crate) fn endurance(&self, group: u16) -> Result<Box<RawEndurance>, AdminError> {
        let cdw10 = log_page::<RawEndurance>(LOG_ENDURANCE);
        let cdw11 = u32::from(group) << 16;
        self.ask(Passthrough { opcode: GET_LOG_PAGE, cdw10, cdw11, ..Default::default() })
    }

    fn ask<T: AdminData>(&self, command: Passthrough) -> Result<Box<T>, AdminError> {
        let mut answer = Box::new(T::new_zeroed());
        let bytes = answer.as_mut_bytes();
        let command = Passthrough {
            address: bytes.as_mut_ptr().expose_provenance() as u64,
            data_bytes: u32::try_from(bytes.len()).expect("answers are small"),
            ..command
        };
        // SAFETY: the commands made above only read: the kernel writes `data_bytes` bytes to the
        // answer, which is borrowed mutably here, and nothing after the call has returned.
        let status = unsafe { ioctl(&self.0, AdminCommand(command)) };
        match status {
            Ok(0) => Ok(answer),
            Ok(status) => Err(AdminError::Status { status }),
            Err(errno) => Err(AdminError::Refused { errno }),
        }
    }
}

/// Dword 10 of a command that reads a page of this size.
fn log_page<T>(page: u32) -> u32 {
    let dwords = u32::try_from(size_of::<T>() / 4).expect("pages are small");
    (dwords - 1) << 16 | page
}

/// The ioctl: what it returns is the drive's status.
struct AdminCommand(Passthrough);

// SAFETY: the opcode belongs to `Passthrough`, which it is given a pointer to; the kernel writes
// nothing into it but `result`.
unsafe impl Ioctl for AdminCommand {
    type Output = u32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        ADMIN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(status: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(status).map_err(|_| Errno::IO)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ADMIN, Admin, AdminError};

    #[test]
    fn the_ioctl_has_the_number_of_the_header() {
        // _IOWR('N', 0x41, 72 bytes) by asm-generic/ioctl.h.
        assert_eq!(u64::from(ADMIN), 3 << 30 | 72 << 16 | 0x4e << 8 | 0x41);
    }

    #[test]
    fn what_is_no_controller_is_named() {
        let error = Admin::open(Path::new("/nonexistent/nvme0")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/nvme0") && error.contains("device node"), "{error}");
        let null = Admin::open(Path::new("/dev/null")).unwrap();
        let error = null.controller().err().unwrap();
        assert!(matches!(error, AdminError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("no NVMe controller"), "{error}");
    }
}
