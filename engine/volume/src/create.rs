//! Making a volume: claim, check, allocate, write once, make its stores, label last.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use kvrail_store::MEMBERS_MAX;
use rustix::fs::{FallocateFlags, fallocate, fstat, fstatvfs, fsync, ftruncate};
use rustix::io::{Errno, retry_on_intr};
use uuid::Uuid;

use crate::alignment::Alignment;
use crate::alignment::MemberKind;
use crate::bytes::{AlignedBytes, write_at};
use crate::claim::{Claim, DirectIo};
use crate::content::Content;
use crate::cut::VolumeLayout;
use crate::error::{Reason, VolumeError};
use crate::fill::{FillJob, FillProgress, FillStop, fill};
use crate::label::{GUARD_BYTES, LABEL_BYTES, Label, STRIPE_BYTES_MAX};
use crate::name::VolumeName;
use crate::open::{Volume, check_distinct};
use crate::purpose::{Purpose, StoreMember, StoreShape};
use crate::shard::{self, MemberPlace};
use crate::signature::HEAD_BYTES;
use crate::staged::StagedMembers;
use crate::survey::{Survey, survey_device, survey_file};

/// Bytes at the end that are erased: the last two labels of a ZFS pool member lie furthest from it.
const ERASED_TAIL_BYTES: u64 = 1 << 20;

/// Unit of a store member's size: its pages.
const STORE_UNIT_BYTES: u64 = 4096;

/// Which members are written once from end to end before they are labelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Files, so that later writes allocate nothing; devices only get their label.
    #[default]
    Files,
    /// Devices too.
    Everything,
    /// None: files are preallocated only.
    Nothing,
}

/// Content that may be overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// Blank members only.
    #[default]
    Nothing,
    /// Also foreign, unknown and unreadable content. A whole kvrail label is never overwritten
    /// (wipe it by its name), and neither is anything in use.
    Foreign,
}

/// A volume to be made.
#[derive(Clone, Debug)]
pub struct NewVolume {
    /// Its name.
    pub name: VolumeName,
    /// Block devices and files, in order. Files that do not exist are made.
    pub members: Vec<PathBuf>,
    /// Usable bytes of the whole volume, rounded up to whole stripes on every member. `None`: the
    /// capacity of the smallest member.
    pub capacity_bytes: Option<u64>,
    /// Its purpose, and its layout.
    pub layout: VolumeLayout,
    /// The initial fill.
    pub fill: Fill,
    /// Content that may be overwritten.
    pub overwrite: Overwrite,
    /// How members are opened.
    pub direct: DirectIo,
}

/// Makes a volume and returns it open. `progress` is called on this thread after every few MiB;
/// it ends the making by returning `Break`.
///
/// # Errors
/// `VolumeError` names the member and the reason. Files made here are removed again, members that
/// were there and have been written are left blank.
pub fn create(
    new: &NewVolume,
    progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
) -> Result<Volume, VolumeError> {
    let count = new.members.len();
    if count == 0 || count > usize::from(MEMBERS_MAX) {
        return Err(new.refuse(Reason::MemberCount { count }));
    }
    check_distinct(&new.members)?;
    let mut staged = StagedMembers::default();
    for path in &new.members {
        staged.take(path, new.direct)?;
    }
    let found = staged.claims().iter().map(MemberContent::on).collect::<Result<Vec<_>, _>>()?;
    for (claim, found) in staged.claims().iter().zip(&found) {
        found.check(new.overwrite).map_err(|reason| VolumeError::at(claim.path(), reason))?;
    }
    let shape = new.shape(staged.claims())?;
    check_space(staged.claims(), shape.file_bytes())?;
    staged.begin_writing();
    for claim in staged.claims_mut() {
        allocate(claim, shape.file_bytes(), new.fill)?;
    }
    for (claim, found) in staged.claims_mut().iter_mut().zip(&found) {
        found.erase(claim)?;
    }
    new.write_once(staged.claims(), shape, progress)?;
    let labels = new.labels(staged.claims(), shape)?;
    if let Purpose::Store(store) = shape.purpose {
        // Stores know nothing of memory's alignment.
        let made = |(claim, label): (&Claim, &Label)| {
            let of = (label.volume_uuid, &label.geometry(1));
            let (index, members) = (label.member_index, label.members());
            shard::make((claim, MemberPlace { index, members, generation: 1 }), of, store)
        };
        staged.claims().iter().zip(&labels).try_for_each(made)?;
    }
    for (claim, label) in staged.claims().iter().zip(&labels) {
        write_label(claim, label)?;
    }
    let pairs = staged.commit()?.into_iter().zip(labels).collect();
    Ok(Volume::assemble(pairs))
}

/// The values that are the same on all members.
#[derive(Clone, Copy, Debug)]
struct VolumeShape {
    logical_block: u32,
    member_bytes: u64,
    stripe_bytes: u64,
    purpose: Purpose,
}

impl VolumeShape {
    fn data_end(self) -> u64 {
        LABEL_BYTES + self.member_bytes
    }

    fn file_bytes(self) -> u64 {
        self.data_end() + GUARD_BYTES
    }
}

impl NewVolume {
    fn refuse(&self, reason: Reason) -> VolumeError {
        VolumeError::new(format!("volume {}", self.name), reason)
    }

    fn shape(&self, claims: &[Claim]) -> Result<VolumeShape, VolumeError> {
        let alignment = claims.iter().map(Claim::alignment).reduce(Alignment::join);
        let logical_block = alignment.map_or(0, |alignment| alignment.logical_block);
        let stripe_bytes = match self.layout {
            VolumeLayout::Raw { stripe_bytes } => stripe_bytes,
            VolumeLayout::Store { .. } => u64::from(logical_block).max(STORE_UNIT_BYTES),
        };
        let fits = (1..=STRIPE_BYTES_MAX).contains(&stripe_bytes)
            && stripe_bytes.is_multiple_of(u64::from(logical_block));
        if !fits {
            return Err(self.refuse(Reason::BadStripe { stripe_bytes, logical_block }));
        }
        let member_bytes = match self.capacity_bytes {
            Some(bytes) => self.share_of(bytes, stripe_bytes, claims)?,
            None => self.smallest(stripe_bytes, claims)?,
        };
        let purpose = match self.layout {
            VolumeLayout::Raw { .. } => Purpose::Raw,
            VolumeLayout::Store { segment_bytes, block_mean } => {
                let member = StoreMember::new(member_bytes, logical_block);
                let shape = StoreShape::choose(member, segment_bytes, block_mean);
                Purpose::Store(shape.map_err(|reason| self.refuse(reason))?)
            }
        };
        Ok(VolumeShape { logical_block, member_bytes, stripe_bytes, purpose })
    }

    /// Each member's share of a wanted capacity, in whole stripes.
    fn share_of(
        &self,
        bytes: u64,
        stripe_bytes: u64,
        claims: &[Claim],
    ) -> Result<u64, VolumeError> {
        let members = claims.len() as u64;
        let share = bytes.div_ceil(members).checked_next_multiple_of(stripe_bytes);
        let share = share.filter(|share| {
            let all = share
                .checked_add(LABEL_BYTES + GUARD_BYTES)
                .and_then(|all| all.checked_mul(members));
            // File offsets are signed in the kernel.
            all.is_some_and(|all| all <= i64::MAX as u64)
        });
        let Some(share) = share.filter(|&share| share > 0) else {
            return Err(self.refuse(Reason::BadSize { bytes }));
        };
        let need_bytes = share + LABEL_BYTES;
        for claim in claims.iter().filter(|claim| claim.kind() == MemberKind::Block) {
            let have_bytes = claim.bytes();
            if have_bytes < need_bytes {
                return Err(VolumeError::at(
                    claim.path(),
                    Reason::TooSmall { have_bytes, need_bytes },
                ));
            }
        }
        Ok(share)
    }

    /// The capacity that every member has, in whole stripes.
    fn smallest(&self, stripe_bytes: u64, claims: &[Claim]) -> Result<u64, VolumeError> {
        let mut least = u64::MAX;
        for claim in claims {
            let refuse = |reason| Err(VolumeError::at(claim.path(), reason));
            let have_bytes = claim.bytes();
            if have_bytes == 0 && claim.kind() == MemberKind::File {
                return refuse(Reason::NoSize);
            }
            let stripes = have_bytes.saturating_sub(LABEL_BYTES) / stripe_bytes;
            if stripes == 0 {
                let need_bytes = LABEL_BYTES + stripe_bytes;
                return refuse(Reason::TooSmall { have_bytes, need_bytes });
            }
            least = least.min(stripes * stripe_bytes);
        }
        Ok(least)
    }

    fn write_once(
        &self,
        claims: &[Claim],
        shape: VolumeShape,
        progress: &mut dyn FnMut(FillProgress) -> ControlFlow<()>,
    ) -> Result<(), VolumeError> {
        let wanted = |claim: &&Claim| match self.fill {
            Fill::Everything => true,
            Fill::Files => claim.kind() == MemberKind::File,
            Fill::Nothing => false,
        };
        let written: Vec<&Claim> = claims.iter().filter(wanted).collect();
        let jobs: Vec<FillJob<'_>> = written
            .iter()
            .map(|&claim| FillJob {
                fd: std::os::fd::AsFd::as_fd(claim),
                range: LABEL_BYTES..shape.data_end(),
                seed: Uuid::new_v4().as_u64_pair().0,
            })
            .collect();
        fill(&jobs, progress).map_err(|stopped| match stopped {
            FillStop::ByCaller => self.refuse(Reason::Interrupted),
            FillStop::Failed(index, errno) => written[index].failed("writing it", errno),
        })
    }

    fn labels(&self, claims: &[Claim], shape: VolumeShape) -> Result<Vec<Label>, VolumeError> {
        let volume_uuid = Uuid::new_v4();
        let member_uuids: Vec<Uuid> = claims.iter().map(|_| Uuid::new_v4()).collect();
        let age = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let created_unix_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        let count = claims.len();
        let members =
            u16::try_from(count).map_err(|_| self.refuse(Reason::MemberCount { count }))?;
        let label = |(member_index, claim): (u16, &Claim)| Label {
            volume_uuid,
            volume_name: self.name.clone(),
            member_index,
            member_uuids: member_uuids.clone(),
            changes: 0,
            logical_block: shape.logical_block,
            data_offset: LABEL_BYTES,
            stripe_bytes: shape.stripe_bytes,
            member_bytes: shape.member_bytes,
            device_bytes: claim.bytes(),
            created_unix_ns,
            purpose: shape.purpose,
        };
        Ok((0..members).zip(claims).map(label).collect())
    }
}

/// Content of a member before a volume is made there.
pub(crate) struct MemberContent {
    content: Content,
    survey: Survey,
}

impl MemberContent {
    pub(crate) fn on(claim: &Claim) -> Result<Self, VolumeError> {
        let (content, bytes) = (claim.content()?, claim.bytes());
        let survey = match claim.kind() {
            MemberKind::File => survey_file(claim, bytes),
            MemberKind::Block => survey_device(claim, bytes, claim.alignment().logical_block),
        };
        let survey = survey.map_err(|errno| claim.failed("looking for data on it", errno))?;
        Ok(Self { content, survey })
    }

    /// Makes it blank, if it is not.
    pub(crate) fn erase(&self, claim: &mut Claim) -> Result<(), VolumeError> {
        if self.is_blank() { Ok(()) } else { erase(claim, &self.survey) }
    }

    fn is_blank(&self) -> bool {
        self.content == Content::Blank && self.survey.is_blank()
    }

    /// Whether it may be overwritten. Known content is reported before unknown bytes.
    pub(crate) fn check(&self, overwrite: Overwrite) -> Result<(), Reason> {
        match self.content.clone() {
            Content::Ours(label) => {
                return Err(Reason::Labelled { volume: label.volume_name.to_string() });
            }
            Content::OtherVersion { found } => return Err(Reason::OtherVersion { found }),
            _ if overwrite == Overwrite::Foreign => return Ok(()),
            Content::Damaged(damage) => return Err(Reason::Damaged { damage }),
            Content::Foreign { signature } => return Err(Reason::Foreign { signature }),
            Content::Blank | Content::Unknown { .. } => {}
        }
        if let Some(&(offset, signature)) = self.survey.known.first() {
            return Err(Reason::Remains { signature, offset });
        }
        match (&self.content, self.survey.data) {
            (&Content::Unknown { offset }, _) | (_, Some(offset)) => {
                Err(Reason::Unknown { offset })
            }
            _ if self.survey.unread => Err(Reason::Written),
            _ => match self.survey.unreadable {
                Some(offset) => Err(Reason::Unreadable { offset }),
                None => Ok(()),
            },
        }
    }
}

/// Counts what the files still need on each file system they lie on.
pub(crate) fn check_space(claims: &[Claim], file_bytes: u64) -> Result<(), VolumeError> {
    let mut needs: BTreeMap<u64, (u64, &Claim)> = BTreeMap::new();
    for claim in claims.iter().filter(|claim| claim.kind() == MemberKind::File) {
        let stat = fstat(claim).map_err(|errno| claim.failed("examining it", errno))?;
        let allocated = u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        let need = needs.entry(stat.st_dev).or_insert((0, claim));
        need.0 = need.0.saturating_add(file_bytes.saturating_sub(allocated));
    }
    for (need_bytes, claim) in needs.into_values() {
        let found =
            fstatvfs(claim).map_err(|errno| claim.failed("asking for free space", errno))?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        if need_bytes > free_bytes {
            return Err(VolumeError::at(claim.path(), Reason::NoSpace { free_bytes, need_bytes }));
        }
    }
    Ok(())
}

/// Gives a file its blocks. Larger files keep what they have.
pub(crate) fn allocate(claim: &mut Claim, file_bytes: u64, fill: Fill) -> Result<(), VolumeError> {
    if claim.kind() == MemberKind::Block {
        return Ok(());
    }
    let allocated = retry_on_intr(|| fallocate(&*claim, FallocateFlags::empty(), 0, file_bytes));
    match allocated {
        Ok(()) => {}
        // The file is written from end to end anyway, which allocates as well.
        Err(Errno::OPNOTSUPP) if fill != Fill::Nothing => {
            ftruncate(&*claim, file_bytes.max(claim.bytes()))
                .map_err(|errno| claim.failed("sizing it", errno))?;
        }
        Err(errno) => return Err(claim.failed("preallocating it", errno)),
    }
    claim.set_bytes(claim.bytes().max(file_bytes));
    Ok(())
}

/// Zeros everything that a signature may stand in, so that no other tool finds its own again. A
/// file that ends within a block grows to whole ones: O_DIRECT writes no less.
fn erase(claim: &mut Claim, survey: &Survey) -> Result<(), VolumeError> {
    if claim.kind() == MemberKind::File {
        claim.set_bytes(claim.bytes().next_multiple_of(4096));
    }
    let (claim, bytes) = (&*claim, claim.bytes());
    let failed = |errno| claim.failed("erasing what was there", errno);
    let head = bytes.min(HEAD_BYTES as u64);
    let tail_at = (bytes.saturating_sub(ERASED_TAIL_BYTES) & !4095).max(head);
    let unit = u64::from(claim.alignment().logical_block).max(4096);
    let known = survey.known.iter().map(|(at, _)| at / unit * unit);
    let known = known.map(|at| at..bytes.min(at + unit));
    for range in [0..head, tail_at..bytes].into_iter().chain(known) {
        let length = usize::try_from(range.end - range.start).unwrap_or(0);
        write_at(claim, &AlignedBytes::zeroed(length), range.start).map_err(failed)?;
    }
    fsync(claim).map_err(failed)
}

/// Writes a label, makes it durable, and reads it back.
pub(crate) fn write_label(claim: &Claim, label: &Label) -> Result<(), VolumeError> {
    let failed = |errno| claim.failed("writing its label", errno);
    write_at(claim, &AlignedBytes::copy_of(&label.encode()), 0).map_err(failed)?;
    fsync(claim).map_err(failed)?;
    match claim.content()? {
        Content::Ours(found) if found == *label => Ok(()),
        // The label differs when it is read back.
        _ => Err(failed(Errno::IO)),
    }
}
