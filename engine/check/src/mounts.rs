//! The mount table.

use std::path::{Path, PathBuf};

use crate::machine::Machine;
use crate::outcome::Outcome;

/// One mount, from `/proc/self/mountinfo` (see proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) device: String,
    pub(crate) kind: String,
    /// Options of the mount and of the file system.
    pub(crate) options: Vec<String>,
}

impl Mount {
    /// Every mount in the table's order: later ones cover earlier ones.
    pub(crate) fn all(machine: &Machine) -> Result<Vec<Self>, Outcome> {
        let path = "proc/self/mountinfo";
        let text = machine.text(path)?.ok_or_else(|| Outcome::unseen(format!("no /{path}")))?;
        Ok(text.lines().filter_map(Self::parse).collect())
    }

    /// The mount that a path lies in.
    pub(crate) fn of(machine: &Machine, path: &Path) -> Result<Option<Self>, Outcome> {
        let mut holding = Self::all(machine)?;
        holding.retain(|mount| path.starts_with(&mount.point));
        Ok(holding.into_iter().max_by_key(|mount| mount.point.as_os_str().len()))
    }

    /// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,data=ordered`
    fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let before: Vec<&str> = before.split(' ').collect();
        let after: Vec<&str> = after.split(' ').collect();
        let [_, _, device, _, point, options, ..] = before[..] else { return None };
        let all = options.split(',').chain(after.get(2).unwrap_or(&"").split(','));
        Some(Self {
            point: PathBuf::from(point.replace("\\040", " ")),
            device: device.to_owned(),
            kind: (*after.first()?).to_owned(),
            options: all.map(ToOwned::to_owned).collect(),
        })
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|it| it == option)
    }
}
