//! Removing labels, after making sure that they are ours.

use std::path::PathBuf;

use rustix::fs::fsync;

use crate::bytes::{AlignedBytes, write_at};
use crate::claim::{Claim, DirectIo};
use crate::content::Content;
use crate::error::{Reason, VolumeError};
use crate::label::{LABEL_LENGTH, Label};
use crate::name::VolumeName;
use crate::open::{check_distinct, labelled};

/// Zeros the label area of members of the volume `name`; the data behind stays where it is. Takes
/// members whose label is damaged, as long as one copy of it still shows that they are ours, and
/// passes over blank ones beside others, so that a wipe that was cut short can be repeated. Returns
/// the erased labels.
///
/// # Errors
/// `VolumeError` names the first member that is in use, not ours or of another volume, or blank
/// where all are; nothing was written then. `Reason::Io` when a write failed: members before it are
/// wiped.
pub fn wipe(name: &VolumeName, members: &[PathBuf]) -> Result<Vec<Label>, VolumeError> {
    check_distinct(members)?;
    let mut found = Vec::with_capacity(members.len());
    let mut blank = None;
    for path in members {
        // A label is three blocks of metadata: it goes the way that every file system has.
        let claim = Claim::open(path, DirectIo::Optional)?;
        let label = match ours(&claim) {
            Err(error) if matches!(error.reason, Reason::Blank) => {
                blank.get_or_insert(error);
                continue;
            }
            label => label?,
        };
        if label.volume_name != *name {
            let (expected, found) = (name.to_string(), label.volume_name.to_string());
            return Err(VolumeError::at(path, Reason::OtherName { expected, found }));
        }
        found.push((claim, label));
    }
    if let Some(error) = blank.filter(|_| found.is_empty()) {
        return Err(error);
    }
    let zeros = AlignedBytes::zeroed(LABEL_LENGTH);
    for (claim, _) in &found {
        let outcome = write_at(claim, &zeros, 0).and_then(|()| fsync(claim));
        outcome.map_err(|errno| claim.failed("wiping its label", errno))?;
    }
    Ok(found.into_iter().map(|(_, label)| label).collect())
}

fn ours(claim: &Claim) -> Result<Label, VolumeError> {
    match claim.content()? {
        Content::Damaged(damage) => match damage.surviving.clone() {
            Some(label) => Ok(*label),
            None => Err(VolumeError::at(claim.path(), Reason::Damaged { damage })),
        },
        _ => labelled(claim),
    }
}
