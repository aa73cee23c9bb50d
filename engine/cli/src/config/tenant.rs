//! Rights of users and groups to the namespaces of a store.

use kvrail_session::{Right, Tenancy};
use serde::{Deserialize, Serialize};

/// Rights of some users to some namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    pub namespaces: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uids: Vec<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gids: Vec<u32>,
    pub rights: TenantRights,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces_max: Option<u32>,
}

/// Rights of users; each includes the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TenantRights {
    /// Open, get, look up, list.
    Read,
    /// Make, put, drop blocks.
    Write,
    /// Clear, remove.
    Own,
}

impl Tenant {
    /// In the session's words.
    pub fn tenancy(&self) -> Tenancy {
        Tenancy {
            namespaces: self.namespaces.clone(),
            uids: self.uids.clone(),
            gids: self.gids.clone(),
            right: match self.rights {
                TenantRights::Read => Right::Read,
                TenantRights::Write => Right::Write,
                TenantRights::Own => Right::Own,
            },
            namespaces_max: self.namespaces_max,
        }
    }
}
