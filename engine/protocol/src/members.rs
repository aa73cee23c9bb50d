//! Members of a store that come and go while it is served.

use serde::{Deserialize, Serialize};

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
