//! File systems in user space, which no member may lie on, however deep below it. The kernel was
//! seen to report their short transfers as whole, with bytes that were never written; and an
//! unresponsive one blocks the thread that submits to it.

use std::path::Path;

use rustix::fs::statfs;

use crate::error::Reason;
use crate::identity::FileIdentity;
use crate::kernel::Kernel;

/// How the kernel marks them, virtiofs too: `FUSE_SUPER_MAGIC` of linux/magic.h.
const MAGIC: u64 = 0x6573_5546;

/// Refuses a new file in a directory of such a file system, before it is made.
pub(crate) fn check_directory(directory: &Path) -> Result<(), Reason> {
    if is_user_space(directory) {
        return Err(Reason::UserSpace { below: None });
    }
    Ok(())
}

impl Kernel {
    /// Refuses a member that lies on such a file system, itself or through loop devices and device
    /// mappers.
    pub(crate) fn check_user_space(
        &self,
        identity: FileIdentity,
        path: &Path,
    ) -> Result<(), Reason> {
        let file = matches!(identity, FileIdentity::File { .. });
        if file && is_user_space(path) {
            return Err(Reason::UserSpace { below: None });
        }
        let (FileIdentity::Block { device } | FileIdentity::File { device, .. }) = identity;
        match self.beneath(device).into_iter().find(|beneath| is_user_space(&beneath.file)) {
            Some(it) => Err(Reason::UserSpace { below: Some(it.file) }),
            None => Ok(()),
        }
    }
}

/// Whether a path leads to one. A path that cannot be examined is refused elsewhere.
fn is_user_space(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| u64::try_from(found.f_type) == Ok(MAGIC))
}
