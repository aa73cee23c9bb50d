//! Opening a volume: every member claimed, every label read, the set checked before anything else.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use kvrail_ring::Geometry;
use uuid::Uuid;

use crate::alignment::Alignment;
use crate::alignment::MemberKind;
use crate::claim::{Claim, DirectIo};
use crate::content::Content;
use crate::error::{Reason, VolumeError};
use crate::identity::identity_of;
use crate::label::{GUARD_BYTES, Label, MEMBERS_MAX};
use crate::name::VolumeName;
use crate::purpose::Purpose;

/// An open volume: its members are claimed until it is dropped.
#[derive(Debug)]
pub struct Volume {
    /// Its name.
    pub name: VolumeName,
    /// Its identity.
    pub uuid: Uuid,
    /// Its shape, with this host's memory alignment.
    pub geometry: Geometry,
    /// What it is for.
    pub purpose: Purpose,
    /// Its members in the order of their indices.
    pub members: Vec<Member>,
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
    /// Puts claims and their labels, in the order of the indices, together.
    pub(crate) fn assemble(claims: Vec<Claim>, labels: Vec<Label>) -> Self {
        let alignment = claims.iter().map(Claim::alignment).reduce(Alignment::join);
        let memory = alignment.expect("a volume has a member").memory;
        let first = &labels[0];
        let (name, uuid) = (first.volume_name.clone(), first.volume_uuid);
        let geometry = first.geometry(memory);
        let pairs = claims.into_iter().zip(&labels);
        let members = pairs.map(|(claim, label)| Member { uuid: label.member_uuid(), claim });
        Self { name, uuid, geometry, purpose: first.purpose, members: members.collect() }
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
    check_set(&pairs, expected_name)?;
    pairs.sort_by_key(|(_, label)| label.member_index);
    for (claim, label) in &mut pairs {
        check_fit(claim, label)?;
    }
    let (claims, labels) = pairs.into_iter().unzip();
    Ok(Volume::assemble(claims, labels))
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
    let reason = match claim.content()? {
        Content::Ours(label) => return Ok(label),
        Content::Blank => Reason::Blank,
        Content::Damaged(damage) => Reason::Damaged { damage },
        Content::OtherVersion { found } => Reason::OtherVersion { found },
        Content::Foreign { signature } => Reason::Foreign { signature },
        Content::Unknown { offset } => Reason::Unknown { offset },
    };
    Err(VolumeError::at(claim.path(), reason))
}

/// One volume, each member once, none missing.
fn check_set(
    pairs: &[(Claim, Label)],
    expected_name: Option<&VolumeName>,
) -> Result<(), VolumeError> {
    let first = &pairs[0].1;
    let mut owners: Vec<Option<&Path>> = vec![None; first.member_uuids.len()];
    for (claim, label) in pairs {
        let refuse = |reason| VolumeError::at(claim.path(), reason);
        if let Some(expected) = expected_name.filter(|&name| *name != label.volume_name) {
            let (expected, found) = (expected.to_string(), label.volume_name.to_string());
            return Err(refuse(Reason::OtherName { expected, found }));
        }
        if label.volume_uuid != first.volume_uuid {
            return Err(refuse(Reason::Mixed { first: describe(first), found: describe(label) }));
        }
        if let Some(what) = disagreement(first, label) {
            return Err(refuse(Reason::Disagree { what }));
        }
        let owner = &mut owners[usize::from(label.member_index)];
        if let Some(other) = *owner {
            let (index, other) = (label.member_index, other.to_owned());
            return Err(refuse(Reason::SameIndex { index, other }));
        }
        *owner = Some(claim.path());
    }
    let missing: Vec<u16> =
        (0..).zip(&owners).filter(|(_, owner)| owner.is_none()).map(|(index, _)| index).collect();
    if !missing.is_empty() {
        let count = first.member_count();
        let subject = format!("volume {}", first.volume_name);
        return Err(VolumeError::new(subject, Reason::Incomplete { missing, count }));
    }
    Ok(())
}

fn describe(label: &Label) -> String {
    format!("{} ({})", label.volume_name, label.volume_uuid)
}

/// What two members of one volume must agree in.
fn disagreement(first: &Label, other: &Label) -> Option<&'static str> {
    let checks = [
        (first.volume_name == other.volume_name, "volume name"),
        (first.member_uuids == other.member_uuids, "list of members"),
        (first.stripe_bytes == other.stripe_bytes, "stripe"),
        (first.member_bytes == other.member_bytes, "member size"),
        (first.logical_block == other.logical_block, "logical block"),
        (first.data_offset == other.data_offset, "data offset"),
        (first.created_unix_ns == other.created_unix_ns, "time of creation"),
        (first.purpose == other.purpose, "purpose"),
    ];
    checks.into_iter().find(|(agree, _)| !agree).map(|(_, what)| what)
}

/// Whether the device is still what it was labelled as. A file gets the block behind its data that
/// it lacks where it was made without one.
pub(crate) fn check_fit(claim: &mut Claim, label: &Label) -> Result<(), VolumeError> {
    let path = claim.path().to_owned();
    let refuse = |reason| Err(VolumeError::at(&path, reason));
    let (have_bytes, data_end) = (claim.bytes(), label.data_end());
    match claim.kind() {
        MemberKind::Block if have_bytes < data_end => {
            return refuse(Reason::Shrunk { have_bytes, need_bytes: data_end });
        }
        MemberKind::File if have_bytes < data_end + GUARD_BYTES => {
            let need_bytes = label.device_bytes.max(data_end + GUARD_BYTES);
            if have_bytes != label.device_bytes {
                return refuse(Reason::Truncated { have_bytes, need_bytes });
            }
            claim.grow(need_bytes)?;
        }
        MemberKind::Block | MemberKind::File => {}
    }
    let (volume_bytes, device_bytes) = (label.logical_block, claim.alignment().logical_block);
    if !volume_bytes.is_multiple_of(device_bytes) {
        return refuse(Reason::Block { volume_bytes, device_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::ops::ControlFlow;
    use std::os::unix::fs::FileExt;

    use super::open;
    use crate::claim::DirectIo;
    use crate::create::{Fill, NewVolume, Overwrite, create};
    use crate::cut::Layout;
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
            layout: Layout::Raw { stripe_bytes: 64 << 10 },
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
