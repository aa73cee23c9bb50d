//! Opening a store without the members that are not there.
//!
//! A lost drive costs its keys and nothing else, so the others start without it. Each start needs
//! more than half of the members: any two starts then have one in common, which remembers the
//! missing ones, so that a member that comes back is distinguishable from one that was present all
//! the time.

use std::mem;
use std::path::{Path, PathBuf};

use kvrail_store::{Members, SuperError};
use rustix::io::Errno;

use crate::claim::{Claim, DirectIo};
use crate::content::Damage;
use crate::error::{Reason, VolumeError};
use crate::fit::check_fit;
use crate::label::Label;
use crate::name::VolumeName;
use crate::open::{Volume, check_distinct, labelled};
use crate::purpose::Purpose;
use crate::set::{Set, retired};
use crate::shard::{check_super, supers};

/// The volume to serve.
#[derive(Clone, Debug)]
pub struct VolumeToOpen<'a> {
    /// Where its members are.
    pub members: &'a [PathBuf],
    /// How many more are configured and were not even found.
    pub unfound: usize,
    /// The name that its labels must have.
    pub name: &'a VolumeName,
    /// How members are opened.
    pub direct: DirectIo,
}

/// A volume, as far as it is there.
#[derive(Debug)]
pub struct Present {
    /// The volume.
    pub volume: Volume,
    /// Paths that were named and are not among its members, but for those of retired ones.
    pub absent: Vec<PathBuf>,
    /// A sentence on each member that is not there, and on what else an operator should know.
    pub remarks: Vec<String>,
}

/// Claims and checks the members of a volume that are there. Only a store can do without some, and
/// needs more than half of them.
///
/// # Errors
/// As `open`; `Reason::TooFew` where too few are there, `Reason::Incomplete` where one is not
/// named that was served before.
pub fn open_present(wanted: &VolumeToOpen<'_>) -> Result<Present, VolumeError> {
    check_distinct(wanted.members)?;
    let (mut pairs, mut absent, mut torn) = (Vec::new(), Vec::new(), Vec::new());
    for path in wanted.members {
        match readable(path, wanted.direct) {
            Ok((claim, label, damage)) => {
                torn.extend(damage);
                pairs.push((claim, label));
            }
            Err(error) if is_absence(&error.reason) => absent.push(error),
            Err(error) => return Err(error),
        }
    }
    let is_store = pairs.iter().all(|(_, label)| matches!(label.purpose, Purpose::Store(_)));
    if !is_store || pairs.is_empty() {
        return match torn.into_iter().chain(absent).next() {
            Some(error) => Err(error),
            None => whole(pairs, wanted.name).map(Present::whole),
        };
    }
    let mut set = Set::of(pairs, Some(wanted.name))?;
    absent.extend(part_with_lost(&mut set)?);
    let passed = set.retired.iter();
    let passed = passed.map(|(claim, label)| VolumeError::at(claim.path(), retired(label)));
    let mut remarks: Vec<String> = passed.chain(absent).map(|error| error.to_string()).collect();
    let named = remarks.len() - set.retired.len() + wanted.unfound;
    remarks.extend(torn.iter().map(ToString::to_string));
    let retired: Vec<_> = set.retired.iter().map(|(claim, _)| claim.path().to_owned()).collect();
    let volume = Volume::assemble(set.fitting()?);
    let here =
        |path: &&PathBuf| volume.members.iter().any(|member| member.path() == path.as_path());
    let absent = wanted.members.iter().filter(|path| !here(path) && !retired.contains(path));
    let absent = absent.cloned().collect();
    let never = check_present(&volume, named, &remarks)?;
    for number in volume.expected.without(volume.present).iter() {
        let why = if never.has(number) {
            "it was never served; add it to the members"
        } else {
            "the others have its keys now, and it will be empty when it is back"
        };
        remarks.push(format!("volume {}: member {number} is not there: {why}", volume.name));
    }
    Ok(Present { volume, absent, remarks })
}

impl Present {
    fn whole(volume: Volume) -> Self {
        Self { volume, absent: Vec::new(), remarks: Vec::new() }
    }
}

/// A member, with its label and what is wrong with that. Of a store's label one copy is enough:
/// each of its structures is checked when it is read, and a crash may have torn the other one.
fn readable(
    path: &Path,
    direct: DirectIo,
) -> Result<(Claim, Label, Option<VolumeError>), VolumeError> {
    let claim = Claim::open(path, direct)?;
    match labelled(&claim) {
        Ok(label) => Ok((claim, label, None)),
        Err(error) => match &error.reason {
            Reason::Damaged {
                damage: Damage { surviving: Some(label), lost_copy: Some(_), .. },
            } if label.purpose.store().is_some() => {
                let label = Label::clone(label);
                Ok((claim, label, Some(error)))
            }
            _ => Err(error),
        },
    }
}

fn whole(pairs: Vec<(Claim, Label)>, name: &VolumeName) -> Result<Volume, VolumeError> {
    if pairs.is_empty() {
        let subject = format!("volume {name}");
        return Err(VolumeError::new(subject, Reason::MemberCount { count: 0 }));
    }
    let set = Set::of(pairs, Some(name))?;
    set.check_whole()?;
    Ok(Volume::assemble(set.fitting()?))
}

/// Whether a member is not there: gone, unreadable, cut off, or something else in its place.
pub(crate) fn is_absence(reason: &Reason) -> bool {
    match reason {
        Reason::Open { errno } => {
            [Errno::NOENT, Errno::NXIO, Errno::NODEV, Errno::IO].contains(errno)
        }
        Reason::Damaged { damage } => damage.lost_copy.is_none(),
        Reason::NoStore { why } => !matches!(why, SuperError::OtherVersion(_)),
        Reason::Io { .. }
        | Reason::Blank
        | Reason::Foreign { .. }
        | Reason::Unknown { .. }
        | Reason::Truncated { .. }
        | Reason::Shrunk { .. } => true,
        _ => false,
    }
}

/// Removes the members that lost bytes or their store, and returns the causes; an error where all
/// did.
fn part_with_lost(set: &mut Set) -> Result<Vec<VolumeError>, VolumeError> {
    let mut errors = Vec::new();
    for (mut claim, label) in mem::take(&mut set.members) {
        let fit = check_fit(&mut claim, &label);
        match fit.and_then(|()| check_super(&claim, &label)) {
            Err(error) if is_absence(&error.reason) => errors.push(error),
            // `fitting` reports all other faults.
            _ => set.members.push((claim, label)),
        }
    }
    if set.members.is_empty() { Err(errors.remove(0)) } else { Ok(errors) }
}

/// Whether enough members are there, and which of the others were never served. `named` were named
/// and are not there.
fn check_present(volume: &Volume, named: usize, absent: &[String]) -> Result<Members, VolumeError> {
    let missing = volume.expected.without(volume.present);
    let Some(shape) = volume.purpose.store().filter(|_| missing != Members::NONE) else {
        return Ok(Members::NONE);
    };
    let here: Vec<&Claim> = volume.members.iter().map(|member| &member.claim).collect();
    let supers = supers(&here, (volume.uuid, &volume.geometry, volume.present), shape)?;
    let served = supers.iter().fold(Members::NONE, |all, it| all.and(it.served));
    let fresh = missing.without(served);
    let known = volume.expected.without(fresh);
    let (present, count) = (volume.present.count(), known.count());
    let refuse = |reason| Err(VolumeError::new(format!("volume {}", volume.name), reason));
    let unnamed: Vec<u16> = missing.without(fresh).iter().skip(named).collect();
    if !unnamed.is_empty() {
        let (missing, count) = (missing.without(fresh).iter().collect(), known.count());
        return refuse(Reason::Incomplete { missing, count });
    }
    if 2 * present <= count {
        return refuse(Reason::TooFew { present, count, absent: absent.to_vec() });
    }
    // One that was missed at two starts is not among the served of the last one either.
    let never = |number: &u16| supers.iter().all(|member| member.left[usize::from(*number)] == 0);
    Ok(fresh.iter().filter(never).fold(Members::NONE, Members::with))
}
