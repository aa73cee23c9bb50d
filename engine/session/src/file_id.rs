//! Which file lies at a path.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

/// Which file lies at a path: numbers are used again, so the time when it was made is part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId(u64, u64, Option<SystemTime>);

impl FileId {
    pub(crate) fn at(path: &Path) -> Option<Self> {
        path.symlink_metadata().ok().map(|metadata| Self::of(&metadata))
    }

    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino(), metadata.created().ok())
    }
}
