//! One admin command to a controller's character device: Get Log Page, discovery.
#![expect(unsafe_code, reason = "the kernel writes to memory that the command names")]
// UNSAFETY: one ioctl, whose command points into a buffer that is borrowed for the call.

use std::ffi::c_void;
use std::fs::File;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// `struct nvme_passthru_cmd` of `linux/nvme_ioctl.h`.
#[repr(C)]
#[derive(Default)]
struct Command {
    opcode: u8,
    flags: u8,
    reserved: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: u32,
    cdw11: u32,
    cdw12: u32,
    cdw13: u32,
    cdw14: u32,
    cdw15: u32,
    timeout_ms: u32,
    result: u32,
}

/// `NVME_IOCTL_ADMIN_CMD`
const ADMIN: Opcode = opcode::read_write::<Command>(b'N', 0x41);

const GET_LOG_PAGE: u8 = 0x02;
const DISCOVERY: u32 = 0x70;

/// A service that does not answer in this time never will.
const TIMEOUT_MS: u32 = 10_000;

/// Fills `bytes` (whole words of four) from `offset` of the discovery log page on.
pub(crate) fn discovery_log(
    controller: &File,
    offset: u64,
    bytes: &mut [u8],
) -> Result<(), std::io::Error> {
    let length = u32::try_from(bytes.len()).map_err(|_| Errno::OVERFLOW)?;
    // Counted in words of four, from zero.
    let words = (length / 4).checked_sub(1).ok_or(Errno::INVAL)?;
    let half = |value: u64| u32::try_from(value & u64::from(u32::MAX)).unwrap_or_default();
    let mut command = Command {
        opcode: GET_LOG_PAGE,
        addr: bytes.as_mut_ptr() as u64,
        data_len: length,
        cdw10: DISCOVERY | (words & 0xffff) << 16,
        cdw11: words >> 16,
        cdw12: half(offset),
        cdw13: half(offset >> 32),
        timeout_ms: TIMEOUT_MS,
        ..Command::default()
    };
    // SAFETY: the kernel writes `data_len` bytes at `addr` at most, which is the caller's buffer,
    // borrowed exclusively until this returns; the call returns when the command has ended.
    let status = unsafe { ioctl(controller, Admin(&mut command)) }?;
    if status == 0 {
        return Ok(());
    }
    Err(std::io::Error::other(format!("the controller answers with status {status:#x}")))
}

/// The ioctl; what it returns is the controller's status.
struct Admin<'a>(&'a mut Command);

// SAFETY: the opcode is that of `Command`, which is borrowed for as long as the call lasts.
unsafe impl Ioctl for Admin<'_> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        ADMIN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(status: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(status)
    }
}
