//! Takes a member out of a store for good: of a store that is not served, or of one that this
//! process serves.

use std::path::PathBuf;

use kvrail_store::Members;
use uuid::Uuid;

use crate::claim::{Claim, DirectIo};
use crate::error::{Reason, VolumeError};
use crate::label::Label;
use crate::name::VolumeName;
use crate::open::{Member, Volume, check_distinct, labelled};
use crate::present::is_absence;
use crate::relabel::relabel;
use crate::set::{Located, Set};

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
    let set = without_some(Set::of(pairs, Some(name))?, (numbers, Members::NONE))?;
    let pairs = set.fitting()?;
    pairs.iter().try_for_each(|(claim, label)| relabel(claim, label))?;
    Ok(Volume::assemble(pairs))
}

/// The same while this process serves the store: `stay` are all members that it has but for those
/// to be taken out, and those in `waiting`, which were added while it is served. Returns the
/// numbers of all members from now on. Those that stay are served on meanwhile: no byte of a label
/// is a block's.
///
/// # Errors
/// As for `retire`. After `Reason::Io` some labels may have the change, and it is in force at the
/// next start; repeated, it goes on.
pub fn retire_served(
    name: &VolumeName,
    stay: &[&Member],
    numbers: &[u16],
    waiting: Members,
) -> Result<Members, VolumeError> {
    let mut pairs = Vec::with_capacity(stay.len());
    for member in stay {
        match labelled(&member.claim) {
            Ok(label) => pairs.push((&member.claim, label)),
            // It is lost, and missed below.
            Err(error) if is_absence(&error.reason) => {}
            Err(error) => return Err(error),
        }
    }
    if pairs.is_empty() {
        return Err(VolumeError::new(format!("volume {name}"), Reason::NoneLeft));
    }
    let set = without_some(Set::of(pairs, Some(name))?, (numbers, waiting))?;
    set.members.iter().try_for_each(|(claim, label)| relabel(claim, label))?;
    Ok(set.label().members())
}

/// The members that stay, with the labels that they are to have.
fn without_some<C: Located>(
    mut set: Set<C>,
    (numbers, elsewhere): (&[u16], Members),
) -> Result<Set<C>, VolumeError> {
    let label = set.label().clone();
    let refuse = |reason| Err(VolumeError::new(format!("volume {}", label.volume_name), reason));
    if label.purpose.store().is_none() {
        return refuse(Reason::Raw);
    }
    let slots = label.member_uuids.len();
    if let Some(&index) = numbers.iter().find(|index| usize::from(**index) >= slots) {
        return refuse(Reason::NoMember { index });
    }
    let gone = numbers.iter().fold(Members::NONE, |all, number| all.with(*number));
    set.check_missing(gone.and(elsewhere))?;
    set.members.retain(|(_, label)| !gone.has(label.member_index));
    if set.members.is_empty() {
        return refuse(Reason::NoneLeft);
    }
    let after = without(&label, gone);
    for (_, label) in &mut set.members {
        *label = label.with_members_of(&after);
    }
    Ok(set)
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
