//! What can go wrong with a volume, each with its remedy.

use std::fmt;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::content::Damage;
use crate::holder::Holder;
use crate::label::{LABEL_VERSION, MEMBERS_MAX};
use crate::name::NAME_BYTES_MAX;
use crate::signature::Signature;

/// Which kind of failure it is; the command line makes an exit code of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// What was asked for makes no sense.
    Usage,
    /// Going on would hurt somebody: in use, foreign, damaged, incomplete.
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

    pub(crate) fn at(path: &std::path::Path, reason: Reason) -> Self {
        Self::new(path.display().to_string(), reason)
    }
}

/// Why a volume or a member was refused.
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the words of the message beside them")]
pub enum Reason {
    /// The path cannot be opened or examined.
    Open { errno: Errno },
    /// Neither a block device nor a regular file.
    NotStorage { what: &'static str },
    /// Somebody has it; nobody known when the list is empty.
    Busy { holders: Vec<Holder> },
    /// A whole disk with partitions.
    Partitioned { partitions: Vec<String> },
    /// Cannot be written.
    ReadOnly,
    /// O_DIRECT was required and the file system has none.
    NoDirect { errno: Errno },
    /// The same device or file twice.
    Duplicate { other: PathBuf },
    /// Reading, writing or making something failed.
    Io { step: &'static str, errno: Errno },
    /// Something else lives there.
    Foreign { signature: Signature },
    /// Unknown bytes where a label would be.
    Unknown { offset: u64 },
    /// A volume of ours lives there.
    Labelled { volume: String },
    /// Nothing is there.
    Blank,
    /// A label of ours that cannot be trusted.
    Damaged { damage: Damage },
    /// A label of a format this program does not read.
    OtherVersion { found: u32 },
    /// Member of another volume than the first member.
    Mixed { first: String, found: String },
    /// A label that agrees in the volume and differs in something else.
    Disagree { what: &'static str },
    /// Two members carry the same index.
    SameIndex { index: u16, other: PathBuf },
    /// Members are missing.
    Incomplete { missing: Vec<u16>, count: u16 },
    /// Fewer bytes than when the volume was made.
    Shrunk { have_bytes: u64, need_bytes: u64 },
    /// The device's logical block does not divide the volume's.
    Block { volume_bytes: u32, device_bytes: u32 },
    /// The label names another volume than the caller expects.
    OtherName { expected: String, found: String },
    /// Not a volume name.
    BadName,
    /// No member, or too many.
    MemberCount { count: usize },
    /// Stripe zero, misaligned or too large.
    BadStripe { stripe_bytes: u64, logical_block: u32 },
    /// A new file needs a size.
    NoSize,
    /// A volume of zero bytes, or larger than 64 bits can say.
    BadSize { bytes: u64 },
    /// A device or file too small for its share.
    TooSmall { have_bytes: u64, need_bytes: u64 },
    /// The file system has less room than the new files need.
    NoSpace { free_bytes: u64, need_bytes: u64 },
    /// The caller's progress function said stop.
    Interrupted,
}

impl Reason {
    /// Which kind of failure it is.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::BadName
            | Self::MemberCount { .. }
            | Self::BadStripe { .. }
            | Self::NoSize
            | Self::BadSize { .. }
            | Self::Duplicate { .. }
            | Self::NotStorage { .. } => Class::Usage,
            Self::Open { .. } | Self::Io { .. } | Self::NoSpace { .. } | Self::NoDirect { .. } => {
                Class::Failed
            }
            Self::Interrupted => Class::Interrupted,
            _ => Class::Refused,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Busy { holders } => busy_remedy(holders),
            Self::Open { errno } => open_remedy(*errno).into(),
            Self::Io { errno, .. } => io_remedy(*errno).into(),
            Self::Incomplete { count, .. } => {
                format!("name all {count} members; `kvrail volume list` shows what is on this host")
            }
            Self::MemberCount { .. } => format!("name 1 to {MEMBERS_MAX} members"),
            Self::OtherVersion { .. } => {
                format!("use a kvrail that reads it; this one reads format {LABEL_VERSION}")
            }
            Self::BadName => {
                format!("use 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -, a letter or digit first")
            }
            other => other.fixed_remedy().into(),
        }
    }

    fn fixed_remedy(&self) -> &'static str {
        match self {
            Self::NotStorage { .. } => "name a block device or a file",
            Self::Partitioned { .. } => {
                "name one of its partitions, or remove the partition table (wipefs --all)"
            }
            Self::ReadOnly => "make it writable (blockdev --setrw, mount -o remount,rw, chmod)",
            Self::NoDirect { .. } => {
                "use a file system with O_DIRECT (ext4, xfs) or set direct = \"optional\""
            }
            Self::Duplicate { .. } => "name each device or file once",
            Self::Foreign { .. } | Self::Unknown { .. } => {
                "name another one, or overwrite it with --force if nobody needs it"
            }
            Self::Labelled { .. } => "wipe that volume first with `kvrail volume wipe`",
            Self::Blank => "make a volume there with `kvrail volume create`",
            Self::Damaged { .. } => {
                "find out what wrote there; then wipe and create the volume again"
            }
            Self::Mixed { .. } | Self::SameIndex { .. } | Self::Disagree { .. } => {
                "name the members of one volume only; `kvrail volume inspect` shows each label"
            }
            Self::Shrunk { .. } => "grow it back, or wipe and create the volume again",
            Self::Block { .. } => {
                "format the device with a block size that divides the volume's, or create the \
                 volume again"
            }
            Self::OtherName { .. } => "correct the name or the members in the configuration",
            Self::BadStripe { .. } => {
                "use a multiple of the logical block, 1 GiB at most; one KV block is a good stripe"
            }
            Self::NoSize => "say how large the volume is to be with --size",
            Self::BadSize { .. } => "give a size of at least one stripe for each member",
            Self::TooSmall { .. } => "name a larger one, or make the volume smaller",
            Self::NoSpace { .. } => {
                "free space there, make the volume smaller, or use another disk"
            }
            Self::Interrupted => "run it again; what it had made is removed",
            _ => "see `kvrail volume --help`",
        }
    }
}

fn busy_remedy(holders: &[Holder]) -> String {
    if holders.is_empty() {
        return "whoever has it cannot be seen from here (another namespace, a kernel user); \
                see lsblk and lsof, as root"
            .into();
    }
    let all: Vec<String> = holders.iter().map(Holder::remedy).collect();
    all.join(", ")
}

fn open_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "check the path",
        Errno::ACCESS | Errno::PERM => {
            "run as a user who may read and write it (group disk, or chown)"
        }
        Errno::NXIO | Errno::NODEV => "the device is gone; check that it is attached",
        Errno::NAMETOOLONG | Errno::LOOP | Errno::NOTDIR => "check the path",
        _ => "check the path and dmesg",
    }
}

fn io_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOSPC | Errno::DQUOT => "free space there, or make the volume smaller",
        Errno::FBIG => "the file system has no files that large; use more members",
        Errno::OPNOTSUPP => "use a file system that can preallocate (ext4, xfs)",
        _ => "check the device (dmesg, smartctl)",
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy { holders } if holders.is_empty() => f.write_str("it is in use"),
            Self::Busy { holders } => write!(f, "it is in use: {}", list(holders)),
            Self::Partitioned { partitions } => {
                write!(f, "it has partitions ({})", partitions.join(", "))
            }
            Self::Incomplete { missing, count } => {
                write!(f, "of its {count} members these are missing: {}", list(missing))
            }
            other => other.fmt_refusal(f),
        }
    }
}

fn list<T: ToString>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Reason {
    fn fmt_refusal(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open { errno } => write!(f, "cannot be opened ({errno})"),
            Self::NotStorage { what } => write!(f, "it is {what}"),
            Self::ReadOnly => f.write_str("it is read-only"),
            Self::NoDirect { errno } => write!(f, "it cannot be opened with O_DIRECT ({errno})"),
            Self::Duplicate { other } => {
                write!(f, "it is the same device or file as {}", other.display())
            }
            Self::Io { step, errno } => write!(f, "{step} failed ({errno})"),
            Self::Foreign { signature } => write!(f, "it holds {signature}"),
            Self::Unknown { offset } => {
                write!(f, "it holds unknown data (first at byte {offset})")
            }
            Self::Labelled { volume } => write!(f, "it belongs to the kvrail volume {volume}"),
            Self::Blank => f.write_str("it has no kvrail label"),
            Self::Damaged { damage } => write!(f, "its kvrail label is damaged: {damage}"),
            Self::OtherVersion { found } => write!(f, "its kvrail label has format {found}"),
            other => other.fmt_set(f),
        }
    }

    fn fmt_set(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mixed { first, found } => {
                write!(f, "it belongs to volume {found}, the first member to {first}")
            }
            Self::Disagree { what } => {
                write!(f, "its label and the first member's disagree in the {what}")
            }
            Self::SameIndex { index, other } => {
                write!(f, "it says it is member {index}, and so does {}", other.display())
            }
            Self::Shrunk { have_bytes, need_bytes } => {
                write!(f, "it has {have_bytes} bytes, its label needs {need_bytes}: it shrank")
            }
            Self::Block { volume_bytes, device_bytes } => write!(
                f,
                "it takes blocks of {device_bytes} bytes, the volume has {volume_bytes}-byte ones"
            ),
            Self::OtherName { expected, found } => {
                write!(f, "its label says volume {found:?}, {expected:?} is expected")
            }
            other => other.fmt_request(f),
        }
    }

    fn fmt_request(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName => f.write_str("this is not a volume name"),
            Self::MemberCount { count } => write!(f, "a volume of {count} members"),
            Self::BadStripe { stripe_bytes, logical_block } => {
                write!(f, "a stripe of {stripe_bytes} bytes on {logical_block}-byte blocks")
            }
            Self::NoSize => f.write_str("it is a new file without a size"),
            Self::BadSize { bytes } => write!(f, "a volume of {bytes} bytes"),
            Self::TooSmall { have_bytes, need_bytes } => {
                write!(f, "it has {have_bytes} bytes, {need_bytes} are needed")
            }
            Self::NoSpace { free_bytes, need_bytes } => {
                write!(f, "{need_bytes} bytes are needed there, {free_bytes} are free")
            }
            Self::Interrupted => f.write_str("interrupted"),
            other => unreachable!("{other:?} has its words in the functions above"),
        }
    }
}
