//! Errors of volumes, each with its remedy.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use kvrail_memory::descriptor_remedy;
use kvrail_store::{MEMBERS_MAX, SEGMENTS_MAX, SEGMENTS_MIN, SuperError};
use rustix::io::Errno;
use uuid::Uuid;

use crate::content::Damage;
use crate::holder::Holder;
use crate::label::{CHANGED_LABEL_VERSION, LABEL_VERSION};
use crate::name::{NAME_BYTES_MAX, VolumeName};
use crate::signature::Signature;

/// Which kind of failure it is; the command line makes an exit status of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The request makes no sense.
    Usage,
    /// Going on would do damage: in use, foreign, damaged, incomplete.
    Refused,
    /// The system could not do it.
    Failed,
    /// The caller stopped it.
    Interrupted,
}

/// A refusal or failure: what it is about, why, and (through `Display`) what to do.
#[derive(Debug, thiserror::Error)]
#[error("{subject}: {reason}; {}", reason.remedy())]
pub struct VolumeError {
    /// A path, or the volume.
    pub subject: String,
    /// Why.
    pub reason: Reason,
}

impl VolumeError {
    pub(crate) fn new(subject: impl Into<String>, reason: Reason) -> Self {
        Self { subject: subject.into(), reason }
    }

    pub(crate) fn at(path: &Path, reason: Reason) -> Self {
        Self::new(path.display().to_string(), reason)
    }
}

/// Why a volume or a member was refused.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the fields are the words of the message above them")]
pub enum Reason {
    /// The path cannot be opened or examined.
    #[error("cannot be opened ({errno})")]
    Open { errno: Errno },
    /// A new file in a folder that does not exist.
    #[error("the folder {} does not exist", folder.display())]
    NoFolder { folder: PathBuf },
    /// Neither a block device nor a regular file.
    #[error("it is {what}")]
    NotStorage { what: &'static str },
    /// A new file where device nodes are.
    #[error("there is no such device")]
    NoDevice,
    /// On a file system in user space, itself or through what it is made of.
    #[error(
        "it lies on a file system in user space (FUSE, virtiofs){}, whose short transfers the \
         kernel may report as whole",
        below.as_ref().map_or_else(String::new, |file| format!(" through {}", file.display()))
    )]
    UserSpace { below: Option<PathBuf> },
    /// In use; the list is empty when the holder is unknown.
    #[error("it is in use{}", colon_list(holders))]
    Busy { holders: Vec<Holder> },
    /// A piece of an NVMe namespace: names, labels and commands are of whole ones.
    #[error("it is a partition of {namespace}, no namespace")]
    Partition { namespace: String },
    /// A whole disk with partitions.
    #[error("it has partitions{}", colon_list(partitions))]
    Partitioned { partitions: Vec<String> },
    /// Cannot be written.
    #[error("it is read-only")]
    ReadOnly,
    #[error("its file system is mounted read-only for this process")]
    ReadOnlyMount,
    /// A format with metadata beside each block.
    #[error("its format has {bytes} bytes of metadata beside each block")]
    Metadata { bytes: u32 },
    /// O_DIRECT was required and the file system has none.
    #[error("it cannot be opened with O_DIRECT ({errno})")]
    NoDirect { errno: Errno },
    /// The same device or file twice.
    #[error("it is the same device or file as {}", other.display())]
    Duplicate { other: PathBuf },
    /// Reading, writing or making something failed.
    #[error("{step} failed ({errno})")]
    Io { step: &'static str, errno: Errno },
    /// Something else lives there.
    #[error("it holds {signature}")]
    Foreign { signature: Signature },
    /// Something known lives there, or a copy of it does.
    #[error("it holds {signature} (at byte {offset})")]
    Remains { signature: Signature, offset: u64 },
    /// More data than was looked at, zeros as far as that went.
    #[error("it is written and not sparse, so not all of it was looked at")]
    Written,
    /// A place that cannot be read, with nothing but zeros elsewhere.
    #[error("it cannot be read at byte {offset}, so what lies there is not known")]
    Unreadable { offset: u64 },
    /// Unknown bytes where a label or data would be.
    #[error("it holds unknown data (first at byte {offset})")]
    Unknown { offset: u64 },
    /// A volume of ours lives there.
    #[error("it belongs to the kvrail volume {volume}")]
    Labelled { volume: String },
    /// Nothing is there.
    #[error("it has no kvrail label")]
    Blank,
    /// A label of ours that cannot be trusted.
    #[error("its kvrail label is damaged: {damage}")]
    Damaged { damage: Damage },
    /// A label of a format this program does not read.
    #[error("its kvrail label has format {found}")]
    OtherVersion { found: u32 },
    /// Member of another volume than the first member.
    #[error("it belongs to volume {found}, the first member to {first}")]
    Mixed { first: String, found: String },
    /// A label that agrees in the volume and differs in something else.
    #[error("its label and the first member's disagree in the {what}")]
    Disagree { what: &'static str },
    /// Two members carry the same index.
    #[error("its label has member number {index}, and so has the label of {}", other.display())]
    SameIndex { index: u16, other: PathBuf },
    /// Members are missing.
    #[error("of its {count} members these are missing{}", colon_list(missing))]
    Incomplete { missing: Vec<u16>, count: u16 },
    /// Too few members are there to be sure that those that are not were not served without them.
    #[error(
        "{present} of its {count} members are there, and more than half must be{}",
        colon_list(absent)
    )]
    TooFew { present: u16, count: u16, absent: Vec<String> },
    /// It was taken out of its volume.
    #[error("it is member {index} of volume {volume} no longer: it was retired")]
    Retired { volume: String, index: u16 },
    /// A member that the volume does not have.
    #[error("it has no member {index}")]
    NoMember { index: u16 },
    /// Another change came between.
    #[error("its members changed since the new one was made")]
    Outdated,
    /// None would be left.
    #[error("no member would be left")]
    NoneLeft,
    /// Fewer bytes than when the volume was made.
    #[error("it has {have_bytes} bytes, its label needs {need_bytes}: it shrank")]
    Shrunk { have_bytes: u64, need_bytes: u64 },
    /// A file that is shorter than it was made, in a way that no write of ours leaves it.
    #[error("it has {have_bytes} bytes, its label needs {need_bytes}: it was truncated")]
    Truncated { have_bytes: u64, need_bytes: u64 },
    /// The same file that was gone while it was served.
    #[error("it is the file that was truncated, and what it lost reads as zeros")]
    Lost,
    /// The device's logical block does not divide the volume's.
    #[error("it takes blocks of {device_bytes} bytes, the volume has {volume_bytes}-byte ones")]
    Block { volume_bytes: u32, device_bytes: u32 },
    /// The label names another volume than the caller expects.
    #[error("its label has volume {found:?}, {expected:?} is expected")]
    OtherName { expected: String, found: String },
    /// The label is not that of the member that was there before.
    #[error("its label has member {found}, {expected} was there before")]
    OtherMember { expected: Uuid, found: Uuid },
    /// A raw volume where a store is meant.
    #[error("it is a raw volume, which has no store")]
    Raw,
    /// Not a volume name.
    #[error("this is not a volume name")]
    BadName,
    /// No member, or too many.
    #[error("a volume of {count} members")]
    MemberCount { count: usize },
    /// Stripe zero, misaligned or too large.
    #[error("a stripe of {stripe_bytes} bytes on {logical_block}-byte blocks")]
    BadStripe { stripe_bytes: u64, logical_block: u32 },
    /// A segment that no store has.
    #[error(
        "segments of {segment_bytes} bytes (--segment), which is no power of two from 64 KiB to \
         16 GiB"
    )]
    BadSegment { segment_bytes: u64 },
    /// Too few or too many segments.
    #[error(
        "{count} segments of {segment_bytes} bytes (--segment) on a member; {}",
        segment_rule()
    )]
    BadSegmentCount { segment_bytes: u64, count: u64 },
    /// A mean that the index cannot be made for.
    #[error(
        "a mean of {block_mean} bytes (--block-mean), which must be 512 to {most}, the largest \
         block of these segments"
    )]
    BadMean { block_mean: u64, most: u32 },
    /// Blocks of a device that a store cannot have.
    #[error("blocks of {logical_block} bytes, a store takes 512 to 4096")]
    StoreBlock { logical_block: u32 },
    /// No store fits.
    #[error("{area_bytes} bytes on a member; {}", segment_rule())]
    TooSmallForStore { area_bytes: u64 },
    /// A store by its label, but none can be opened there.
    #[error("its store cannot be opened: {why}")]
    NoStore { why: SuperError },
    /// A store of another volume, or of another member.
    #[error("its store is of another volume, or of member {place} and not {index}")]
    ForeignStore { index: u16, place: u16 },
    /// A store of other sizes than in the label.
    #[error("its store was made with other sizes than those in its label")]
    OtherStore,
    /// A new file needs a size.
    #[error("it is a new file without a size")]
    NoSize,
    /// A volume of zero bytes, or larger than file offsets can express.
    #[error("a volume of {bytes} bytes")]
    BadSize { bytes: u64 },
    /// A device or file too small for its share.
    #[error("it has {have_bytes} bytes, {need_bytes} are needed")]
    TooSmall { have_bytes: u64, need_bytes: u64 },
    /// The file system has less room than the new files need.
    #[error("{need_bytes} bytes are needed there, {free_bytes} are free")]
    NoSpace { free_bytes: u64, need_bytes: u64 },
    /// The caller's progress function returned a stop.
    #[error("interrupted")]
    Interrupted,
}

/// The limits of a store's segments.
fn segment_rule() -> String {
    format!("a store has {SEGMENTS_MIN} to {SEGMENTS_MAX} segments of 64 KiB to 16 GiB")
}

fn colon_list<T: ToString>(items: &[T]) -> String {
    let words: Vec<String> = items.iter().map(ToString::to_string).collect();
    if words.is_empty() { String::new() } else { format!(": {}", words.join(", ")) }
}

impl Reason {
    /// Which kind of failure it is.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::BadName
            | Self::MemberCount { .. }
            | Self::BadStripe { .. }
            | Self::BadSegment { .. }
            | Self::BadSegmentCount { .. }
            | Self::BadMean { .. }
            | Self::NoSize
            | Self::BadSize { .. }
            | Self::Duplicate { .. }
            | Self::NoMember { .. }
            | Self::NoneLeft
            | Self::NotStorage { .. }
            | Self::NoDevice
            | Self::NoFolder { .. }
            | Self::Partition { .. } => ErrorClass::Usage,
            Self::Open { .. } | Self::Io { .. } | Self::NoSpace { .. } | Self::NoDirect { .. } => {
                ErrorClass::Failed
            }
            Self::Interrupted => ErrorClass::Interrupted,
            Self::Busy { .. }
            | Self::UserSpace { .. }
            | Self::Partitioned { .. }
            | Self::ReadOnly
            | Self::ReadOnlyMount
            | Self::Metadata { .. }
            | Self::Foreign { .. }
            | Self::Remains { .. }
            | Self::Written
            | Self::Unreadable { .. }
            | Self::Unknown { .. }
            | Self::Labelled { .. }
            | Self::Blank
            | Self::Damaged { .. }
            | Self::OtherVersion { .. }
            | Self::Mixed { .. }
            | Self::Disagree { .. }
            | Self::Outdated
            | Self::SameIndex { .. }
            | Self::Incomplete { .. }
            | Self::TooFew { .. }
            | Self::Retired { .. }
            | Self::Shrunk { .. }
            | Self::Truncated { .. }
            | Self::Lost
            | Self::StoreBlock { .. }
            | Self::TooSmallForStore { .. }
            | Self::NoStore { .. }
            | Self::ForeignStore { .. }
            | Self::OtherStore
            | Self::Raw
            | Self::Block { .. }
            | Self::OtherName { .. }
            | Self::OtherMember { .. }
            | Self::TooSmall { .. } => ErrorClass::Refused,
        }
    }

    /// The remedy.
    #[must_use]
    pub fn remedy(&self) -> String {
        let words = match self {
            Self::Busy { holders } => return busy_remedy(holders),
            Self::NoFolder { folder } => return format!("mkdir -p {}", folder.display()),
            Self::MemberCount { .. } => return format!("name 1 to {MEMBERS_MAX} members"),
            Self::BadName => {
                return format!(
                    "use 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -, a letter or digit first"
                );
            }
            Self::OtherVersion { .. } => {
                return format!(
                    "use a kvrail that reads it (this one reads formats {LABEL_VERSION} to \
                     {CHANGED_LABEL_VERSION}), or zero its first MiB if it is not needed"
                );
            }
            Self::Open { errno } => open_remedy(*errno),
            Self::Io { errno, .. } => io_remedy(*errno),
            Self::NotStorage { .. } => "name a block device or a file",
            Self::NoDevice => {
                "name one that is there (lsblk, `kvrail devices`), or a file on a disk"
            }
            Self::Partition { namespace } => {
                return format!("name {namespace} itself, or a file on a file system");
            }
            Self::UserSpace { .. } => "name a block device, or a file on a local disk (ext4, xfs)",
            Self::Partitioned { .. } => {
                "remove the partition table if it is not needed (wipefs --all), or name another"
            }
            Self::ReadOnly => "make it writable (blockdev --setrw)",
            Self::ReadOnlyMount => {
                "of a systemd unit name its folder in ReadWritePaths= (systemctl edit kvrail), \
                 which ProtectSystem=strict makes read-only otherwise; else mount it writable \
                 (mount -o remount,rw)"
            }
            Self::Metadata { .. } => {
                "format it without metadata, which erases it (nvme format --lbaf=N; \
                 `kvrail devices --verbose` lists its formats)"
            }
            Self::NoDirect { .. } => {
                "use a file system with O_DIRECT (ext4, xfs) or set direct = \"optional\""
            }
            Self::Duplicate { .. } => "name each device or file once",
            Self::BadStripe { .. } => {
                "use a multiple of the logical block, 1 GiB at most; one KV block is a good stripe"
            }
            Self::BadSegment { .. } => "leave --segment out, or use a power of two such as 256MiB",
            Self::BadSegmentCount { .. } => {
                "leave --segment out: it is chosen by the members' size"
            }
            Self::BadMean { .. } => {
                "give the mean length of your blocks, or leave --block-mean out (1 MiB)"
            }
            Self::TooSmallForStore { .. } => "make it larger (--size): 2 MiB a member at least",
            Self::StoreBlock { .. } => "format the device with blocks of 512 or 4096 bytes",
            Self::NoSize => "give the volume's size with --size",
            Self::BadSize { bytes: 0 } => "give a size of at least one stripe for each member",
            Self::BadSize { .. } => "give a size that file offsets can reach: below 8 EiB in all",
            Self::TooSmall { .. } => "name a larger one, or make the volume smaller",
            Self::NoSpace { .. } => {
                "free space there, make the volume smaller, or use another disk"
            }
            Self::Interrupted => "run it again; what it had made is removed",
            other => other.content_remedy(),
        };
        words.into()
    }

    /// For what labels and other content are the reason of.
    fn content_remedy(&self) -> &'static str {
        match self {
            Self::Foreign { .. }
            | Self::Remains { .. }
            | Self::Unknown { .. }
            | Self::Unreadable { .. }
            | Self::Written => "name another one, or overwrite it with --force if it is not needed",
            Self::Labelled { .. } => "wipe that volume first with `kvrail volume wipe`",
            Self::Blank => {
                "make a volume there with `kvrail volume create`, or let a store have it with \
                 `kvrail volume add`"
            }
            Self::Damaged { damage } if damage.lost_copy.is_some() => {
                "find out what wrote there; `kvrail volume repair` restores the label from its \
                 other copy"
            }
            Self::Damaged { .. } => {
                "find out what wrote there; then wipe and create the volume again (--force)"
            }
            Self::Mixed { .. } | Self::SameIndex { .. } | Self::Disagree { .. } => {
                "name the members of one volume only; `kvrail volume inspect` shows each label"
            }
            Self::Incomplete { .. } => {
                "name all of them; `kvrail volume list` shows what is on this host; `kvrail volume \
                 retire` takes a dead one out of a store"
            }
            Self::TooFew { .. } => {
                "bring drives back, or take those that are dead out for good with `kvrail volume \
                 retire`"
            }
            Self::Retired { .. } => {
                "take it from the members; `kvrail volume wipe` makes it free for another use"
            }
            Self::NoMember { .. } => "`kvrail volume list` shows the members and their numbers",
            Self::Outdated => "repeat the command",
            Self::NoneLeft => "`kvrail volume wipe` ends a volume",
            Self::Shrunk { .. } => "grow it back, or wipe and create the volume again (--force)",
            Self::Block { .. } => {
                "what is on it is intact: serve it with direct = \"off\", or copy the whole member \
                 (dd, cp --reflink=never) to where blocks of the volume's size are taken"
            }
            Self::Truncated { .. } => {
                "its blocks are lost: put back a copy of the whole file, or wipe and create the \
                 volume again; of a store retire this member (kvrail volume retire)"
            }
            Self::Lost => {
                "put a copy of the whole file in its place (mv), or restart the sidecar with a new \
                 volume"
            }
            Self::NoStore { why: SuperError::OtherVersion(_) } => {
                "serve it with the release that wrote it; or `kvrail store erase` makes the store \
                 empty: a cache fills itself"
            }
            Self::NoStore { .. } | Self::ForeignStore { .. } | Self::OtherStore => {
                "find out what wrote there; then `kvrail volume retire` does without this member, \
                 or `kvrail store erase` makes the whole store empty: a cache fills itself"
            }
            Self::OtherMember { .. } => "put the drive back that was there, or restart the sidecar",
            Self::Raw => "name a store; `kvrail volume create --kind store` makes one",
            Self::OtherName { .. } => "correct the name or the members",
            _ => "see `kvrail volume --help`",
        }
    }
}

fn busy_remedy(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return "its holder cannot be seen from here (another namespace, a kernel user); \
                see lsblk and lsof, as root"
            .into();
    }
    let all: Vec<String> = holders.iter().map(Holder::remedy).collect();
    all.join(", ")
}

fn open_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT | Errno::NAMETOOLONG | Errno::LOOP | Errno::NOTDIR => "check the path",
        Errno::ACCESS | Errno::PERM => {
            "run as a user with read and write permission on it (group disk, or chown)"
        }
        Errno::NXIO | Errno::NODEV => "the device is gone; check that it is attached",
        Errno::MFILE | Errno::NFILE => descriptor_remedy(errno),
        _ => "check the path and dmesg",
    }
}

fn io_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC | Errno::DQUOT => "free space there, or make the volume smaller",
        Errno::MFILE | Errno::NFILE | Errno::PERM | Errno::ACCESS | Errno::NOSYS => {
            descriptor_remedy(errno)
        }
        Errno::NOLCK => "mount it with locks, or use a file system of this host",
        Errno::FBIG => {
            "raise the limit of file sizes (LimitFSIZE=, ulimit -f), or use more members"
        }
        Errno::OPNOTSUPP => "use a file system that can preallocate (ext4, xfs)",
        _ => "check the device (dmesg, smartctl)",
    }
}

impl FromStr for VolumeName {
    type Err = VolumeError;

    fn from_str(text: &str) -> Result<Self, VolumeError> {
        let bad = || VolumeError::new(format!("volume name {text:?}"), Reason::BadName);
        Self::checked(text).ok_or_else(bad)
    }
}

impl TryFrom<String> for VolumeName {
    type Error = VolumeError;

    fn try_from(text: String) -> Result<Self, VolumeError> {
        text.parse()
    }
}
