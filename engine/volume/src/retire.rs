//! Takes a member out of a store for good, while the store is not being served.

use std::path::PathBuf;

use kvrail_store::Members;
use uuid::Uuid;

use crate::claim::{Claim, DirectIo};
use crate::error::{Reason, VolumeError};
use crate::label::Label;
use crate::name::VolumeName;
use crate::open::{Volume, check_distinct, labelled};
use crate::present::is_absence;
use crate::relabel::relabel;
use crate::set::Set;

/// Takes members, by their numbers, out of the store `name`; `paths` are those that stay, in any
/// order; those that are not there are passed over. Returns the store open without them. A drive
/// that was retired is refused from then on; its number is given to the next one that is added.
/// Repeated after it was cut short, it goes on.
///
/// # Errors
/// `VolumeError` names the member that is in use or of another volume, or the remaining ones that
/// are missing; nothing was written then. `Reason::Io` when a label cannot be written.
pub fn retire(
    name: &VolumeName,
    paths: &[PathBuf],
    numbers: &[u16],
    direct: DirectIo,
) -> Result<Volume, VolumeError> {
    check_distinct(paths)?;
    let refuse = |reason| VolumeError::new(format!("volume {name}"), reason);
    let mut pairs = Vec::with_capacity(paths.len());
    for path in paths {
        let found = Claim::open(path, direct)
            .and_then(|claim| labelled(&claim).map(|label| (claim, label)));
        match found {
            Ok(pair) => pairs.push(pair),
            // The dead one, most likely; others that are to stay are missed below.
            Err(error) if is_absence(&error.reason) => {}
            Err(error) => return Err(error),
        }
    }
    if pairs.is_empty() {
        return Err(refuse(Reason::MemberCount { count: 0 }));
    }
    let mut set = Set::of(pairs, Some(name))?;
    let label = set.label().clone();
    if label.purpose.store().is_none() {
        return Err(refuse(Reason::Raw));
    }
    let slots = label.member_uuids.len();
    if let Some(&index) = numbers.iter().find(|index| usize::from(**index) >= slots) {
        return Err(refuse(Reason::NoMember { index }));
    }
    let gone = numbers.iter().fold(Members::NONE, |all, number| all.with(*number));
    set.check_missing(gone)?;
    set.members.retain(|(_, label)| !gone.has(label.member_index));
    if set.members.is_empty() {
        return Err(refuse(Reason::NoneLeft));
    }
    let after = without(&label, gone);
    for (_, label) in &mut set.members {
        *label = label.with_members_of(&after);
    }
    let pairs = set.fitting()?;
    pairs.iter().try_for_each(|(claim, label)| relabel(claim, label))?;
    Ok(Volume::assemble(pairs))
}

/// A label without some members; the same where it has none of them.
fn without(label: &Label, gone: Members) -> Label {
    if label.members().without(gone) == label.members() {
        return label.clone();
    }
    let mut after = Label { changes: label.changes + 1, ..label.clone() };
    for number in gone.iter() {
        after.member_uuids[usize::from(number)] = Uuid::nil();
    }
    after
}
