//! Which of some labelled members make one volume.
//!
//! Members of a store come and go, and their labels are written one after the other. So labels may
//! differ in the list of members: the label with the most changes counts.

use std::path::{Path, PathBuf};

use kvrail_store::Members;

use crate::claim::Claim;
use crate::error::{Reason, VolumeError};
use crate::fit::check_fit;
use crate::label::Label;
use crate::name::VolumeName;

/// Members of one volume, in the order of their numbers.
#[derive(Debug)]
pub(crate) struct Set<C = Claim> {
    /// Their labels have the list of members that counts, whatever is on the medium.
    pub(crate) members: Vec<(C, Label)>,
    /// The retired members.
    pub(crate) retired: Vec<(C, Label)>,
}

/// What a set is made of: claims, or paths of members that somebody else has claimed.
pub(crate) trait Located {
    /// Where it is.
    fn path(&self) -> &Path;
}

impl Located for Claim {
    fn path(&self) -> &Path {
        Self::path(self)
    }
}

impl Located for &Claim {
    fn path(&self) -> &Path {
        Claim::path(self)
    }
}

impl Located for PathBuf {
    fn path(&self) -> &Path {
        self
    }
}

impl<C: Located> Set<C> {
    /// Puts labelled members, at least one, together.
    ///
    /// # Errors
    /// `VolumeError` names the member that is of another volume, another name, has another shape,
    /// or the number of another one.
    pub(crate) fn of(
        pairs: Vec<(C, Label)>,
        expected_name: Option<&VolumeName>,
    ) -> Result<Self, VolumeError> {
        let first = &pairs[0].1;
        pairs.iter().try_for_each(|(claim, label)| {
            check_one(claim.path(), label, (first, expected_name))
        })?;
        let newest = pairs.iter().map(|(_, label)| label).max_by_key(|label| label.changes);
        let newest = newest.expect("at least one").clone();
        let mut set = Self { members: Vec::new(), retired: Vec::new() };
        for (claim, label) in pairs {
            let path = claim.path();
            let named = newest.member_uuids.get(usize::from(label.member_index));
            if named == Some(&label.member_uuid()) {
                let number = label.member_index;
                set.check_number(number, path)?;
                let same =
                    label.changes != newest.changes || label == label.with_members_of(&newest);
                if !same {
                    let what = "list of members";
                    return Err(VolumeError::at(path, Reason::Disagree { what }));
                }
                let label = label.with_members_of(&newest);
                set.members.push((claim, label));
            } else if label.changes < newest.changes {
                set.retired.push((claim, label));
            } else {
                let what = "list of members";
                return Err(VolumeError::at(path, Reason::Disagree { what }));
            }
        }
        set.members.sort_by_key(|(_, label)| label.member_index);
        Ok(set)
    }

    fn check_number(&self, index: u16, path: &Path) -> Result<(), VolumeError> {
        match self.members.iter().find(|(_, label)| label.member_index == index) {
            None => Ok(()),
            Some((other, _)) => {
                let other = other.path().to_owned();
                Err(VolumeError::at(path, Reason::SameIndex { index, other }))
            }
        }
    }

    /// The common content of all labels. There is always one: the newest names itself.
    pub(crate) fn label(&self) -> &Label {
        &self.members[0].1
    }

    /// Those that are here.
    pub(crate) fn present(&self) -> Members {
        self.members.iter().fold(Members::NONE, |all, (_, label)| all.with(label.member_index))
    }

    /// Those that are not.
    pub(crate) fn missing(&self) -> Members {
        self.label().members().without(self.present())
    }

    /// Refuses retired members, and a set that lacks some.
    pub(crate) fn check_whole(&self) -> Result<(), VolumeError> {
        if let Some((claim, label)) = self.retired.first() {
            return Err(VolumeError::at(claim.path(), retired(label)));
        }
        self.check_missing(Members::NONE)
    }

    /// Refuses a set that lacks others than these.
    pub(crate) fn check_missing(&self, but: Members) -> Result<(), VolumeError> {
        let missing: Vec<u16> = self.missing().without(but).iter().collect();
        if missing.is_empty() {
            return Ok(());
        }
        let (label, count) = (self.label(), self.label().member_count());
        let subject = format!("volume {}", label.volume_name);
        Err(VolumeError::new(subject, Reason::Incomplete { missing, count }))
    }
}

impl Set {
    /// The members, after a look at whether they are still what they were labelled as.
    pub(crate) fn fitting(mut self) -> Result<Vec<(Claim, Label)>, VolumeError> {
        self.members.iter_mut().try_for_each(|(claim, label)| check_fit(claim, label))?;
        Ok(self.members)
    }
}

/// Why a member that was retired is none.
pub(crate) fn retired(label: &Label) -> Reason {
    Reason::Retired { volume: label.volume_name.to_string(), index: label.member_index }
}

fn check_one(
    path: &Path,
    label: &Label,
    (first, expected_name): (&Label, Option<&VolumeName>),
) -> Result<(), VolumeError> {
    let refuse = |reason| Err(VolumeError::at(path, reason));
    if let Some(expected) = expected_name.filter(|&name| *name != label.volume_name) {
        let (expected, found) = (expected.to_string(), label.volume_name.to_string());
        return refuse(Reason::OtherName { expected, found });
    }
    if label.volume_uuid != first.volume_uuid {
        return refuse(Reason::Mixed { first: describe(first), found: describe(label) });
    }
    match disagreement(first, label) {
        Some(what) => refuse(Reason::Disagree { what }),
        None => Ok(()),
    }
}

fn describe(label: &Label) -> String {
    format!("{} ({})", label.volume_name, label.volume_uuid)
}

/// A value in which two members of one volume differ and must not.
fn disagreement(first: &Label, other: &Label) -> Option<&'static str> {
    let checks = [
        (first.volume_name == other.volume_name, "volume name"),
        (first.stripe_bytes == other.stripe_bytes, "stripe"),
        (first.member_bytes == other.member_bytes, "member size"),
        (first.logical_block == other.logical_block, "logical block"),
        (first.data_offset == other.data_offset, "data offset"),
        (first.created_unix_ns == other.created_unix_ns, "time of creation"),
        (first.purpose == other.purpose, "purpose"),
    ];
    checks.into_iter().find(|(agree, _)| !agree).map(|(_, what)| what)
}
