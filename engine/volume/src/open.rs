//! Opening a volume: every member claimed, every label read, the set checked before anything else.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use kvrail_ring::Geometry;
use kvrail_store::{MEMBERS_MAX, Members};
use uuid::Uuid;

use crate::alignment::Alignment;
use crate::claim::{Claim, DirectIo};
use crate::content::Content;
use crate::error::{Reason, VolumeError};
use crate::identity::identity_of;
use crate::label::Label;
use crate::name::VolumeName;
use crate::purpose::Purpose;
use crate::set::Set;

/// An open volume: its members are claimed until it is dropped.
#[derive(Debug)]
pub struct Volume {
    /// Its name.
    pub name: VolumeName,
    /// Its identity.
    pub uuid: Uuid,
    /// Its shape, with this host's memory alignment.
    pub geometry: Geometry,
    /// Its purpose.
    pub purpose: Purpose,
    /// Its members in the order of their numbers: those that are there.
    pub members: Vec<Member>,
    /// Their numbers.
    pub present: Members,
    /// The numbers of all members that it has.
    pub expected: Members,
}

/// A member of an open volume.
#[derive(Debug)]
pub struct Member {
    /// Its identity.
    pub uuid: Uuid,
    /// The hold on it.
    pub claim: Claim,
}

impl Member {
    /// The path it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.claim.path()
    }
}

impl AsFd for Member {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.claim.as_fd()
    }
}

impl Volume {
    /// Puts claims and their labels, in the order of the numbers, together.
    pub(crate) fn assemble(pairs: Vec<(Claim, Label)>) -> Self {
        let alignment = pairs.iter().map(|(claim, _)| claim.alignment()).reduce(Alignment::join);
        let memory = alignment.expect("a volume has a member").memory;
        let first = pairs[0].1.clone();
        let present = pairs.iter().fold(Members::NONE, |all, it| all.with(it.1.member_index));
        let geometry = Geometry { members: present.count(), ..first.geometry(memory) };
        let members =
            pairs.into_iter().map(|(claim, label)| Member { uuid: label.member_uuid(), claim });
        Self {
            uuid: first.volume_uuid,
            geometry,
            purpose: first.purpose,
            members: members.collect(),
            present,
            expected: first.members(),
            name: first.volume_name,
        }
    }
}

/// Claims and checks all members of one volume, in any order.
///
/// # Errors
/// `VolumeError` names the member and why it was refused: in use, no label, a damaged or foreign
/// one, of another volume, or (`expected_name`) not the volume the caller means. Nothing stays
/// claimed then, and nothing was written.
pub fn open(
    members: &[PathBuf],
    expected_name: Option<&VolumeName>,
    direct: DirectIo,
) -> Result<Volume, VolumeError> {
    let count = members.len();
    if count == 0 || count > usize::from(MEMBERS_MAX) {
        let subject = expected_name.map_or_else(|| "a volume".into(), |n| format!("volume {n}"));
        return Err(VolumeError::new(subject, Reason::MemberCount { count }));
    }
    check_distinct(members)?;
    let mut pairs = Vec::with_capacity(count);
    for path in members {
        let claim = Claim::open(path, direct)?;
        let label = labelled(&claim)?;
        pairs.push((claim, label));
    }
    let set = Set::of(pairs, expected_name)?;
    set.check_whole()?;
    Ok(Volume::assemble(set.fitting()?))
}

/// Refuses two paths to one device or file. A path that does not exist is only compared by name.
pub(crate) fn check_distinct(members: &[PathBuf]) -> Result<(), VolumeError> {
    let identities: Vec<_> = members.iter().map(|path| identity_of(path)).collect();
    for (index, path) in members.iter().enumerate() {
        let same = (0..index).find(|&earlier| {
            members[earlier] == *path
                || (identities[index].is_some() && identities[earlier] == identities[index])
        });
        if let Some(earlier) = same {
            let other = members[earlier].clone();
            return Err(VolumeError::at(path, Reason::Duplicate { other }));
        }
    }
    Ok(())
}

/// The whole label of a claimed member.
pub(crate) fn labelled(claim: &Claim) -> Result<Label, VolumeError> {
    label_of(claim.path(), claim.content()?)
}

/// The whole label in what was found at a path.
pub(crate) fn label_of(path: &Path, content: Content) -> Result<Label, VolumeError> {
    let reason = match content {
        Content::Ours(label) => return Ok(label),
        Content::Blank => Reason::Blank,
        Content::Damaged(damage) => Reason::Damaged { damage },
        Content::OtherVersion { found } => Reason::OtherVersion { found },
        Content::Foreign { signature } => Reason::Foreign { signature },
        Content::Unknown { offset } => Reason::Unknown { offset },
    };
    Err(VolumeError::at(path, reason))
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::ops::ControlFlow;
    use std::os::unix::fs::FileExt;

    use super::open;
    use crate::claim::DirectIo;
    use crate::create::{Fill, NewVolume, Overwrite, create};
    use crate::cut::VolumeLayout;
    use crate::label::GUARD_BYTES;
    use crate::open::labelled;

    /// Before files had a block behind their data they were exactly as long as it.
    #[test]
    fn a_file_without_a_block_behind_its_data_gets_it_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("member");
        let new = NewVolume {
            name: "kv0".parse().unwrap(),
            members: vec![path.clone()],
            capacity_bytes: Some(1 << 20),
            layout: VolumeLayout::Raw { stripe_bytes: 64 << 10 },
            fill: Fill::Nothing,
            overwrite: Overwrite::Nothing,
            direct: DirectIo::Off,
        };
        let made = create(&new, &mut |_| ControlFlow::Continue(())).unwrap();
        let mut label = labelled(&made.members[0].claim).unwrap();
        drop(made);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let length = || file.metadata().unwrap().len();
        assert_eq!(length(), label.data_end() + GUARD_BYTES);
        let reopen = || open(&new.members, None, DirectIo::Off);

        file.set_len(label.data_end()).unwrap();
        let refused = reopen().unwrap_err().to_string();
        assert!(refused.contains("was truncated"), "{refused}");

        label.device_bytes = label.data_end();
        file.write_all_at(&label.encode(), 0).unwrap();
        reopen().unwrap();
        assert_eq!(length(), label.data_end() + GUARD_BYTES);
        for bytes in [label.data_end() - 1, label.data_end() + 1] {
            file.set_len(bytes).unwrap();
            let refused = reopen().unwrap_err().to_string();
            assert!(refused.contains("was truncated"), "{refused}");
        }
    }
}
