//! Looking at members without claiming them.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, SeekFrom, open, seek};
use serde::Serialize;

use crate::alignment::MemberKind;
use crate::claim::{classify, read_content};
use crate::content::Content;
use crate::error::{Reason, VolumeError};
use crate::holder::Holder;
use crate::identity::FileIdentity;
use crate::kernel::Kernel;

/// Content and holders of a path.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// The path that was looked at.
    pub path: PathBuf,
    /// Block device or file.
    pub kind: MemberKind,
    /// Its length in bytes.
    pub bytes: u64,
    /// Content of its label area.
    pub content: Content,
    /// Partitions of a whole disk, by kernel name.
    pub partitions: Vec<String>,
    /// Its holders now.
    pub holders: Vec<Holder>,
}

/// Reads a device or file without claiming it, so also one in use. The bytes may be changing.
///
/// # Errors
/// `VolumeError` when it cannot be opened for reading, or is neither device nor file.
pub fn inspect(path: &Path) -> Result<Inspection, VolumeError> {
    let kernel = Kernel::default();
    let refuse = |reason| VolumeError::at(path, reason);
    let identity = classify(path).map_err(refuse)?;
    // Before our own descriptor shows up among the users.
    let holders = kernel.holders(identity);
    let (kind, partitions) = match identity {
        FileIdentity::Block { device } => (MemberKind::Block, kernel.partitions(device)),
        FileIdentity::File { .. } => (MemberKind::File, Vec::new()),
    };
    // NONBLOCK: a drive without a medium must not keep us.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let fd = open(path, flags, Mode::empty()).map_err(|errno| refuse(Reason::Open { errno }))?;
    let failed = |step| move |errno| VolumeError::at(path, Reason::Io { step, errno });
    let bytes = seek(&fd, SeekFrom::End(0)).map_err(failed("finding its size"))?;
    let content = read_content(&fd, bytes).map_err(failed("reading its label"))?;
    let partitions = partitions.into_iter().map(|part| part.name).collect();
    Ok(Inspection { path: path.to_owned(), kind, bytes, content, partitions, holders })
}

/// The present holders of a device or file. Opens and reads nothing, so it answers where the device
/// does not.
///
/// # Errors
/// `VolumeError` when the path is neither device nor file.
pub fn holders(path: &Path) -> Result<Vec<Holder>, VolumeError> {
    let identity = classify(path).map_err(|reason| VolumeError::at(path, reason))?;
    Ok(Kernel::default().holders(identity))
}

/// The nodes of all block devices and partitions of this host that have a size.
#[must_use]
pub fn block_devices() -> Vec<PathBuf> {
    Kernel::default().block_nodes()
}
