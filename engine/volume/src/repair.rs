//! Restoring a label of which one copy is damaged.

use std::path::PathBuf;

use rustix::fs::fsync;
use rustix::io::Errno;

use crate::bytes::{AlignedBytes, write_at};
use crate::claim::{Claim, DirectIo};
use crate::content::{Content, Damage};
use crate::error::{Reason, VolumeError};
use crate::label::{COPIES_AT, COPY_BYTES, Label};
use crate::name::VolumeName;
use crate::open::{check_distinct, labelled};

/// The repair of a member's label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Nothing: it was whole.
    Whole,
    /// One copy was written again; the text describes its damage.
    Restored(String),
}

/// Writes the damaged copy of the members' labels again, from the copy that is whole. The data
/// behind is not checked: the cause of the label's damage may have damaged it too.
///
/// # Errors
/// `VolumeError` names the first member that is in use, not of the volume `name`, or damaged in
/// more than one copy; nothing was written then. `Reason::Io` when a write failed.
pub fn repair(name: &VolumeName, members: &[PathBuf]) -> Result<Vec<Repair>, VolumeError> {
    check_distinct(members)?;
    let mut found = Vec::with_capacity(members.len());
    for path in members {
        // As for wiping: three blocks of metadata go the way that every file system has.
        let claim = Claim::open(path, DirectIo::Optional)?;
        let (label, lost) = match claim.content()? {
            Content::Damaged(Damage { what, surviving: Some(label), lost_copy: Some(copy) }) => {
                (*label, Some((copy, what)))
            }
            _ => (labelled(&claim)?, None),
        };
        if label.volume_name != *name {
            let (expected, found) = (name.to_string(), label.volume_name.to_string());
            return Err(VolumeError::at(path, Reason::OtherName { expected, found }));
        }
        found.push((claim, label, lost));
    }
    found.into_iter().map(|(claim, label, lost)| restore(&claim, &label, lost)).collect()
}

/// Only the damaged copy is written, so that an interruption leaves the other one.
fn restore(
    claim: &Claim,
    label: &Label,
    lost: Option<(usize, String)>,
) -> Result<Repair, VolumeError> {
    let Some((copy, what)) = lost else { return Ok(Repair::Whole) };
    let failed = |errno| claim.failed("restoring its label", errno);
    let at = COPIES_AT[copy];
    let bytes = AlignedBytes::copy_of(&label.encode()[at..at + COPY_BYTES]);
    write_at(claim, &bytes, at as u64).and_then(|()| fsync(claim)).map_err(failed)?;
    match claim.content()? {
        Content::Ours(read) if read == *label => Ok(Repair::Restored(what)),
        // The label differs when it is read back.
        _ => Err(failed(Errno::IO)),
    }
}
