//! Adds a member to a store that is being served, from the next start on.
//!
//! Two processes do it. The one that adds makes the new member, as for a store that is not served,
//! and reads the labels of the others without a claim. The one that serves then writes the list
//! with the new member to their labels. An interruption leaves what that of `add` leaves.

use std::ops::ControlFlow;
use std::path::PathBuf;

use kvrail_store::{MEMBERS_MAX, Members};
use uuid::Uuid;

use crate::add::NewMember;
use crate::claim::Claim;
use crate::content::Content;
use crate::error::{Reason, VolumeError};
use crate::fill::FillProgress;
use crate::inspect::inspect;
use crate::label::Label;
use crate::name::VolumeName;
use crate::open::{Member, label_of, labelled};
use crate::relabel::relabel;
use crate::set::Set;
use crate::shard::generation_at;
use crate::staged::StagedMembers;

/// A new member as the others' labels are to list it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedMember {
    /// Its number.
    pub number: u16,
    /// Its identity.
    pub uuid: Uuid,
    /// How many changes of members its label counts.
    pub changes: u64,
}

/// A new member that no label of another one lists yet. Dropped, it is put back as it was.
#[derive(Debug)]
pub struct Joining {
    staged: StagedMembers,
    member: JoinedMember,
    others: Vec<PathBuf>,
}

impl Joining {
    /// What the others' labels are to list.
    #[must_use]
    pub fn member(&self) -> JoinedMember {
        self.member
    }

    /// Whether a label of the others lists it, or cannot be read.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.others.iter().any(|path| match inspect(path).map(|seen| seen.content) {
            Ok(Content::Ours(label)) => label.member_uuids.contains(&self.member.uuid),
            _ => true,
        })
    }

    /// Lets it stay: the labels of the others list it, or may do so.
    ///
    /// # Errors
    /// `Reason::Io` when the name of a new file cannot be made durable.
    pub fn keep(self) -> Result<(), VolumeError> {
        self.staged.commit().map(drop)
    }
}

/// Makes a member for a store whose other members are claimed by the process that serves it.
/// Repeated after it was cut short, it goes on where it was.
///
/// # Errors
/// As for `add`.
pub fn prepare(
    new: &NewMember,
    progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
) -> Result<Joining, VolumeError> {
    let labelled = |path: &PathBuf| Ok((path.clone(), label_of(path, inspect(path)?.content)?));
    let generation = |set: &Set<PathBuf>, _| {
        let at = set.label().data_offset;
        let each = set.members.iter().map(|(path, _)| generation_at(path, at));
        Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(1))
    };
    let (set, staged, made) = new.make_beside(labelled, generation, progress)?;
    // Labels list it next: a power cut must not leave them with a name that is not there.
    staged.sync()?;
    let (number, uuid, changes) = (made.member_index, made.member_uuid(), made.changes);
    let others = set.members.into_iter().map(|(path, _)| path).collect();
    Ok(Joining { staged, member: JoinedMember { number, uuid, changes }, others })
}

/// Lists a new member in the labels of a store's members, all of which this process serves but for
/// those in `waiting`. Returns the numbers of all members from now on. Repeated, it goes on.
///
/// # Errors
/// `VolumeError` names the member that is missing or of another volume; `Reason::Outdated` when the
/// members changed since the new one was made. Nothing was written then. `Reason::Io` when a label
/// cannot be written.
pub fn adopt(
    name: &VolumeName,
    members: &[&Member],
    joined: JoinedMember,
    waiting: Members,
) -> Result<Members, VolumeError> {
    let mut pairs: Vec<(&Claim, Label)> = Vec::with_capacity(members.len());
    for member in members {
        pairs.push((&member.claim, labelled(&member.claim)?));
    }
    if pairs.is_empty() {
        return Err(VolumeError::new(format!("volume {name}"), Reason::MemberCount { count: 0 }));
    }
    let set = Set::of(pairs, Some(name))?;
    let after = with(set.label(), joined)?;
    set.check_missing(waiting.with(joined.number))?;
    let mut labels = set.members.iter().map(|(claim, it)| (claim, it.with_members_of(&after)));
    labels.try_for_each(|(claim, label)| relabel(claim, &label))?;
    Ok(after.members())
}

/// A label with one more member; the same where it has the member.
fn with(label: &Label, joined: JoinedMember) -> Result<Label, VolumeError> {
    let refuse = |reason| Err(VolumeError::new(format!("volume {}", label.volume_name), reason));
    let JoinedMember { number, uuid, changes } = joined;
    let place = usize::from(number);
    if label.member_uuids.get(place) == Some(&uuid) && !uuid.is_nil() {
        return Ok(label.clone());
    }
    if label.purpose.store().is_none() {
        return refuse(Reason::Raw);
    }
    if number >= MEMBERS_MAX {
        return refuse(Reason::MemberCount { count: place + 1 });
    }
    let is_free =
        label.member_uuids.get(place).map_or(place == label.member_uuids.len(), Uuid::is_nil);
    let is_new = !uuid.is_nil() && !label.member_uuids.contains(&uuid);
    if !is_free || !is_new || changes != label.changes + 1 {
        return refuse(Reason::Outdated);
    }
    let mut after = Label { changes, ..label.clone() };
    after.member_uuids.resize(after.member_uuids.len().max(place + 1), Uuid::nil());
    after.member_uuids[place] = uuid;
    Ok(after)
}
