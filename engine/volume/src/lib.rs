//! Volumes: the format of the members' first bytes, exclusive access to the members, and how they
//! make one address space.
//!
//! Owns labels, claims and the creation, opening and wiping of volumes, those with stores too.
//! Never touches a ring, a lane or the bytes of a block, and never runs on a poller. Invariant 5
//! (claim) rests here: nothing is written to a member that is not claimed exclusively and whose
//! label (or blankness) was not verified in this process.
#![forbid(unsafe_code)]

mod add;
mod alignment;
mod beneath;
mod bytes;
mod claim;
mod content;
mod create;
mod cut;
mod error;
mod fill;
mod fit;
#[cfg(fuzzing)]
pub mod fuzzing;
mod holder;
mod identity;
mod inspect;
mod join;
mod kernel;
mod label;
mod name;
mod open;
mod patience;
mod present;
mod purpose;
mod rejoin;
mod relabel;
mod remains;
mod repair;
mod retire;
mod set;
mod shard;
mod signature;
mod stack;
mod staged;
mod survey;
mod sysfs;
mod userspace;
mod wipe;

pub use add::{NewMember, add};
pub use alignment::{Alignment, IoPath, MemberKind};
pub use beneath::beneath;
pub use claim::{Claim, DirectIo};
pub use content::{Content, Damage};
pub use create::{Fill, NewVolume, Overwrite, create};
pub use cut::VolumeLayout;
pub use error::{ErrorClass, Reason, VolumeError};
pub use fill::FillProgress;
pub use holder::Holder;
pub use inspect::{Inspection, block_devices, holders, inspect};
pub use join::{JoinedMember, Joining, adopt, prepare};
pub use kvrail_store::MEMBERS_MAX;
pub use label::{CHANGED_LABEL_VERSION, LABEL_BYTES, LABEL_VERSION, Label, STORE_LABEL_VERSION};
pub use name::VolumeName;
pub use open::{Member, Volume, open};
pub use present::{Present, VolumeToOpen, open_present};
pub use purpose::{Purpose, StoreMember, StoreShape};
pub use repair::{Repair, repair};
pub use retire::{retire, retire_served};
pub use shard::{begin_start, erase, supers};
pub use signature::Signature;
pub use wipe::wipe;
