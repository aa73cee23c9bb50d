//! File systems in user space, which no member may lie on, however deep below it. The kernel was
//! seen to report their short transfers as whole, with bytes nobody wrote; and one that does not
//! answer stops whoever submits to it.

use std::path::{Path, PathBuf};

use rustix::fs::statfs;

use crate::error::Reason;
use crate::kernel::{Identity, Kernel, entries, identity_of, parse_device, text};

/// How the kernel marks them, virtiofs too: `FUSE_SUPER_MAGIC` of linux/magic.h.
const MAGIC: u64 = 0x6573_5546;

/// Layers that are looked through: a file on a file system on a loop device on a file, and more.
const LAYERS_MAX: usize = 8;

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
    pub(crate) fn check_user_space(&self, identity: Identity, path: &Path) -> Result<(), Reason> {
        let file = matches!(identity, Identity::File { .. });
        if file && is_user_space(path) {
            return Err(Reason::UserSpace { below: None });
        }
        let (Identity::Block { device } | Identity::File { device, .. }) = identity;
        match self.user_space_below(device, LAYERS_MAX) {
            Some(file) => Err(Reason::UserSpace { below: Some(file) }),
            None => Ok(()),
        }
    }

    /// The file on such a file system that this block device is made of.
    fn user_space_below(&self, device: u64, layers: usize) -> Option<PathBuf> {
        let layers = layers.checked_sub(1)?;
        let own = self.block_directory(device);
        // A partition is made of what its disk is made of.
        let homes = [own.join(".."), own.clone()];
        let backing = homes.iter().find_map(|home| text(&home.join("loop/backing_file")));
        if let Some(file) = backing.map(PathBuf::from) {
            if is_user_space(&file) {
                return Some(file);
            }
            return match identity_of(&file)? {
                Identity::File { device, .. } | Identity::Block { device } => {
                    self.user_space_below(device, layers)
                }
            };
        }
        let below = homes.iter().map(|home| home.join("slaves"));
        let below = below.flat_map(|slaves| {
            entries(&slaves).into_iter().map(move |name| slaves.join(name).join("dev"))
        });
        let mut devices = below.filter_map(|file| parse_device(&text(&file)?));
        devices.find_map(|device| self.user_space_below(device, layers))
    }
}

/// Whether a path leads to one. What cannot be asked is refused elsewhere.
fn is_user_space(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| u64::try_from(found.f_type) == Ok(MAGIC))
}
