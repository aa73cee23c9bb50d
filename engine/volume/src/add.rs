//! Adds a member to a store that is not being served.
//!
//! The new member is made first: its bytes, its store, its label. Then the labels of the others are
//! written one after the other. After an interruption at any point, the newest label present
//! defines the members. A new member that no other label names becomes a member once it is served
//! with them.

use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::PathBuf;

use kvrail_store::MEMBERS_MAX;
use uuid::Uuid;

use crate::alignment::MemberKind;
use crate::claim::{Claim, DirectIo};
use crate::content::Content;
use crate::create::{Fill, MemberContent, Overwrite, allocate, check_space, write_label};
use crate::error::{Reason, VolumeError};
use crate::fill::{FillJob, FillProgress, FillStop, fill};
use crate::label::{GUARD_BYTES, LABEL_BYTES, Label};
use crate::name::VolumeName;
use crate::open::{Volume, check_distinct, labelled};
use crate::purpose::StoreShape;
use crate::relabel::relabel;
use crate::set::{Located, Set};
use crate::shard::{self, MemberPlace, supers};
use crate::staged::StagedMembers;

/// A member to be added.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// The store's name.
    pub name: VolumeName,
    /// All members that it has, in any order.
    pub members: Vec<PathBuf>,
    /// The device or file to be added. A file that does not exist is made.
    pub path: PathBuf,
    /// The initial fill.
    pub fill: Fill,
    /// Content that may be overwritten.
    pub overwrite: Overwrite,
    /// How members are opened.
    pub direct: DirectIo,
}

/// Adds a member to a store, and returns the store open with all of them. Repeated after it was
/// cut short, it goes on where it was.
///
/// # Errors
/// `VolumeError` names the member and the reason. A failure before the first label of the others is
/// written leaves the store as it was, and the new member as `create` leaves it.
pub fn add(
    new: &NewMember,
    progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
) -> Result<Volume, VolumeError> {
    let claimed = |path: &PathBuf| {
        let claim = Claim::open(path, new.direct)?;
        let label = labelled(&claim)?;
        Ok((claim, label))
    };
    let (set, staged, made) = new.make_beside(claimed, generation, progress)?;
    let claim = staged.commit()?.pop().expect("one was staged");
    let mut pairs = set.members;
    pairs.push((claim, made.clone()));
    let whole = Set::of(pairs, Some(&new.name))?;
    whole.check_whole()?;
    let pairs = whole.fitting()?;
    pairs.iter().try_for_each(|(claim, label)| relabel(claim, label))?;
    Ok(Volume::assemble(pairs))
}

/// Whether a member was made for this store, or is one of it already.
fn is_half_added(found: &Label, label: &Label) -> bool {
    let of = |list: &Label| list.member_uuids.get(usize::from(found.member_index)).copied();
    let named = of(label) == Some(found.member_uuid());
    let free = of(label).is_none_or(|uuid| uuid.is_nil());
    let next = free && found.changes == label.changes + 1;
    found.volume_uuid == label.volume_uuid && (named || next)
}

impl NewMember {
    fn refuse(&self, reason: Reason) -> VolumeError {
        VolumeError::new(format!("volume {}", self.name), reason)
    }

    /// Makes the new member for a store whose other members are found in this way, and are of that
    /// generation; one that is half added is taken as it is.
    pub(crate) fn make_beside<C: Located>(
        &self,
        other: impl Fn(&PathBuf) -> Result<(C, Label), VolumeError>,
        generation: impl FnOnce(&Set<C>, StoreShape) -> Result<u64, VolumeError>,
        progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
    ) -> Result<(Set<C>, StagedMembers, Label), VolumeError> {
        let others = self.members.iter().filter(|path| **path != self.path);
        let all: Vec<PathBuf> = others.chain([&self.path]).cloned().collect();
        check_distinct(&all)?;
        let pairs = all[..all.len() - 1].iter().map(other).collect::<Result<Vec<_>, _>>()?;
        if pairs.is_empty() {
            return Err(self.refuse(Reason::MemberCount { count: 0 }));
        }
        let set = Set::of(pairs, Some(&self.name))?;
        let label = set.label().clone();
        let Some(shape) = label.purpose.store() else { return Err(self.refuse(Reason::Raw)) };
        let mut staged = StagedMembers::default();
        staged.take(&self.path, self.direct)?;
        let made = match staged.claims()[0].content()? {
            Content::Ours(found) if is_half_added(&found, &label) => found,
            _ => {
                set.check_whole()?;
                let whole = (generation(&set, shape)?, &label, shape);
                self.make(whole, &mut staged, progress)?
            }
        };
        Ok((set, staged, made))
    }

    /// Makes the new member, its label last.
    fn make(
        &self,
        (generation, label, shape): (u64, &Label, StoreShape),
        staged: &mut StagedMembers,
        progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
    ) -> Result<Label, VolumeError> {
        let found = MemberContent::on(&staged.claims()[0])?;
        let path = &self.path;
        found.check(self.overwrite).map_err(|reason| VolumeError::at(path, reason))?;
        let file_bytes = label.data_end() + GUARD_BYTES;
        self.check_shape(&staged.claims()[0], label)?;
        check_space(staged.claims(), file_bytes)?;
        staged.begin_writing();
        let claim = &mut staged.claims_mut()[0];
        allocate(claim, file_bytes, self.fill)?;
        found.erase(claim)?;
        self.write_once(claim, label.data_end(), progress)?;
        let label = self.label(label, claim)?;
        let (index, members) = (label.member_index, label.members());
        let of = (label.volume_uuid, &label.geometry(1));
        shard::make((claim, MemberPlace { index, members, generation }), of, shape)?;
        write_label(claim, &label)?;
        Ok(label)
    }

    fn check_shape(&self, claim: &Claim, label: &Label) -> Result<(), VolumeError> {
        let refuse = |reason| Err(VolumeError::at(&self.path, reason));
        let (volume_bytes, device_bytes) = (label.logical_block, claim.alignment().logical_block);
        if !volume_bytes.is_multiple_of(device_bytes) {
            return refuse(Reason::Block { volume_bytes, device_bytes });
        }
        let (have_bytes, need_bytes) = (claim.bytes(), label.data_end());
        if claim.kind() == MemberKind::Block && have_bytes < need_bytes {
            return refuse(Reason::TooSmall { have_bytes, need_bytes });
        }
        Ok(())
    }

    fn write_once(
        &self,
        claim: &Claim,
        end: u64,
        progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
    ) -> Result<(), VolumeError> {
        let wanted = match self.fill {
            Fill::Everything => true,
            Fill::Files => claim.kind() == MemberKind::File,
            Fill::Nothing => false,
        };
        if !wanted {
            return Ok(());
        }
        let seed = Uuid::new_v4().as_u64_pair().0;
        let job = FillJob { fd: claim.as_fd(), range: LABEL_BYTES..end, seed };
        fill(&[job], progress).map_err(|stopped| match stopped {
            FillStop::ByCaller => self.refuse(Reason::Interrupted),
            FillStop::Failed(_, errno) => claim.failed("writing it", errno),
        })
    }

    /// The new member's label: it gets the first number that is free.
    fn label(&self, label: &Label, claim: &Claim) -> Result<Label, VolumeError> {
        let mut member_uuids = label.member_uuids.clone();
        let free = member_uuids.iter().position(Uuid::is_nil).unwrap_or(member_uuids.len());
        let count = free + 1;
        if free == member_uuids.len() {
            if count > usize::from(MEMBERS_MAX) {
                return Err(self.refuse(Reason::MemberCount { count }));
            }
            member_uuids.push(Uuid::nil());
        }
        member_uuids[free] = Uuid::new_v4();
        Ok(Label {
            member_index: u16::try_from(free).expect("below MEMBERS_MAX"),
            member_uuids,
            changes: label.changes + 1,
            device_bytes: claim.bytes(),
            ..label.clone()
        })
    }
}

/// The generation of a store's members.
fn generation(set: &Set, shape: StoreShape) -> Result<u64, VolumeError> {
    let label = set.label();
    let of = (label.volume_uuid, &label.geometry(1), set.present());
    let here: Vec<&Claim> = set.members.iter().map(|(claim, _)| claim).collect();
    let supers = supers(&here, of, shape)?;
    Ok(supers.iter().map(|member| member.generation).max().unwrap_or(1))
}
