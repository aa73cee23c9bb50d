//! The devices behind namespaces: claimed before anything else can reach them. The kernel's target
//! opens a device without a check for other users, so a mounted one would be exported all the same.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvrail_volume::{Claim, Content as Found, DirectIo, Reason, VolumeError, inspect};

use crate::error::{ErrorClass, Problem};
use crate::plan::Export;
use crate::snapshot::Snapshot;
use crate::spec::PermittedContent;

/// Devices held for this process; others that open them exclusively are refused until it drops.
#[derive(Debug, Default)]
pub struct Claims {
    held: BTreeMap<PathBuf, Claim>,
    /// Devices that are exported and could not be held, with the reason.
    pub notes: Vec<String>,
}

impl Claims {
    /// Takes all devices of a plan and lets go of others. The content of a device is checked before
    /// its first export; later it is its hosts' business.
    ///
    /// # Errors
    /// A problem for each that is in use, or holds what must not be exported; what was held is
    /// held as before.
    pub fn renew(&mut self, exports: &[Export], present: &Snapshot) -> Result<(), Vec<Problem>> {
        self.forget_missing();
        let mut fresh = BTreeMap::new();
        let (mut notes, mut problems) = (Vec::new(), Vec::new());
        for export in exports.iter().filter(|export| !self.held.contains_key(&export.node)) {
            let is_exported = present.text(&format!("{}/enable", export.path)) == Some("1")
                && present.text(&format!("{}/device_path", export.path))
                    == Some(&*export.node.to_string_lossy());
            match take(export, is_exported) {
                Ok(claim) => drop(fresh.insert(export.node.clone(), claim)),
                Err(problem) if is_exported => {
                    notes.push(format!("{} is exported and not held: {problem}", export.path));
                }
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        self.held.retain(|node, _| exports.iter().any(|export| export.node == *node));
        self.held.append(&mut fresh);
        self.notes = notes;
        Ok(())
    }

    /// Lets go of devices that went away: what comes back under the name is another one.
    pub fn forget_missing(&mut self) {
        self.held.retain(|node, _| node.exists());
    }
}

fn take(export: &Export, is_exported: bool) -> Result<Claim, Problem> {
    if !is_exported {
        fitting(export)?;
    }
    Claim::open(&export.node, DirectIo::Optional).map_err(|error| refused(export, &error))
}

fn fitting(export: &Export) -> Result<(), Problem> {
    let seen = inspect(&export.node).map_err(|error| refused(export, &error))?;
    let what = match (export.content, seen.content) {
        (PermittedContent::Any, _) | (_, Found::Blank | Found::Ours(_)) => return Ok(()),
        (_, Found::Foreign { signature }) => format!("it holds {signature}"),
        (_, Found::Unknown { offset }) => format!("it holds unknown data (first at byte {offset})"),
        (_, Found::Damaged(damage)) => format!("its kvrail label is damaged: {damage}"),
        (_, Found::OtherVersion { found }) => format!("its kvrail label has format {found}"),
    };
    let remedy = "name another device; or wipe it if it is not needed; or set content = \"any\" \
                  for the namespace to export what is there";
    Err(Problem::refused(&export.key, export.node.display(), what, remedy))
}

fn refused(export: &Export, error: &VolumeError) -> Problem {
    let remedy = match &error.reason {
        Reason::Partitioned { .. } => {
            "export a drive without partitions, or remove its table (wipefs --all)".into()
        }
        reason => reason.remedy(),
    };
    let rule = error.reason.to_string();
    let value = export.node.display();
    Problem { class: ErrorClass::Refused, ..Problem::refused(&export.key, value, rule, remedy) }
}
