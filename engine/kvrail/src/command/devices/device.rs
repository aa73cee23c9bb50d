//! A namespace and what lies on it.

use kvrail_nvme::{Drive, Unseen};
use kvrail_volume::{Inspection, inspect};
use serde::Serialize;

/// A namespace, and what lies on it.
#[derive(Debug, Serialize)]
pub(super) struct ListedDevice {
    #[serde(flatten)]
    pub(super) drive: Drive,
    /// None where it could not be read; `unseen` has the reason.
    pub(super) holds: Option<Inspection>,
}

impl ListedDevice {
    /// Reads what lies on it.
    pub(super) fn look(mut drive: Drive) -> Self {
        let seen = match &drive.namespace.block_node {
            Some(node) => inspect(node).map_err(|error| error.to_string()),
            None => Err("it has no block device: its format or command set is none that the \
                         kernel drives"
                .to_owned()),
        };
        match seen {
            Ok(holds) => Self { drive, holds: Some(holds) },
            Err(why) => {
                drive.unseen.push(Unseen { what: "content and users", why });
                Self { drive, holds: None }
            }
        }
    }
}
