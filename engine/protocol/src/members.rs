//! Members of a store that come and go while it is served.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Other members of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum MemberChange {
    /// None: whether members may be changed now, before anything is made for it.
    Check,
    /// These leave it for good.
    Retire {
        /// Numbers of members, as the labels have them.
        members: Vec<u16>,
    },
    /// One joins it, which has its label already.
    Add {
        /// Where it is.
        path: String,
        /// Its number.
        number: u16,
        /// Its identity.
        uuid: Uuid,
        /// How many changes of members its label counts.
        changes: u64,
    },
}

/// A member of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreMemberInfo {
    /// Its number.
    pub number: u16,
    /// Where it is.
    pub path: String,
}

/// A store with other members than before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersChanged {
    /// Its name.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// Those that it has from the next start on, in the order of their numbers.
    pub members: Vec<StoreMemberInfo>,
}
