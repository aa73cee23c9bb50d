//! The devices behind namespaces: ours alone before anybody else reaches them. The kernel's target
//! opens a device without asking who has it, so a mounted one would be exported all the same.

use kvrail_volume::{Claim, Content as Found, DirectIo, Reason, VolumeError, inspect};

use crate::error::{Class, Problem};
use crate::plan::Export;
use crate::snapshot::Snapshot;
use crate::wish::Content;

/// Devices held for this process; others that open them exclusively are refused until it drops.
#[derive(Debug, Default)]
pub struct Claims {
    /// Dropping them lets go.
    _held: Vec<Claim>,
    /// Devices that are exported and could not be held, with the reason.
    pub notes: Vec<String>,
}

/// Takes all devices of a plan. What a device holds is looked at before it is first exported; later
/// it is its hosts' business.
///
/// # Errors
/// A problem for each that is in use, or holds what must not be exported.
pub fn claim(exports: &[Export], present: &Snapshot) -> Result<Claims, Vec<Problem>> {
    let mut claims = Claims::default();
    let mut problems = Vec::new();
    for export in exports {
        let is_exported = present.text(&format!("{}/enable", export.path)) == Some("1")
            && present.text(&format!("{}/device_path", export.path))
                == Some(&*export.node.to_string_lossy());
        let fit = if is_exported { Ok(()) } else { fitting(export) };
        let claimed = fit.and_then(|()| {
            Claim::open(&export.node, DirectIo::Optional).map_err(|error| refused(export, &error))
        });
        match claimed {
            Ok(claim) => claims._held.push(claim),
            Err(problem) if is_exported => {
                claims.notes.push(format!("{} is exported and not held: {problem}", export.path));
            }
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() { Ok(claims) } else { Err(problems) }
}

fn fitting(export: &Export) -> Result<(), Problem> {
    let seen = inspect(&export.node).map_err(|error| refused(export, &error))?;
    let what = match (export.content, seen.content) {
        (Content::Any, _) | (_, Found::Blank | Found::Ours(_)) => return Ok(()),
        (_, Found::Foreign { signature }) => format!("it holds {signature}"),
        (_, Found::Unknown { offset }) => format!("it holds unknown data (first at byte {offset})"),
        (_, Found::Damaged(damage)) => format!("its kvrail label is damaged: {damage}"),
        (_, Found::OtherVersion { found }) => format!("its kvrail label has format {found}"),
    };
    let remedy = "name another device; or wipe it if nobody needs it; or set content = \"any\" for \
                  the namespace to export what is there";
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
    Problem { class: Class::Refused, ..Problem::refused(&export.key, value, rule, remedy) }
}
