//! The mount table, and the state of a process: what more than one room reads below `/proc`.

use std::path::{Path, PathBuf};

use super::files::{Root, TopologyError};

/// One mount: a line of `/proc/self/mountinfo` (proc(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of its files, as `stat` has it on most file systems.
    pub device: String,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// The mounted source: a device, a server's name, or any word.
    pub source: String,
    /// Options of the mount, then those of the file system.
    pub options: Vec<String>,
}

impl Mount {
    /// Every mount in the table's order: later ones cover earlier ones. None where the host has no
    /// such table.
    ///
    /// # Errors
    /// `Unreadable` for any reason but that it is not there.
    pub fn all(root: &Root) -> Result<Option<Vec<Self>>, TopologyError> {
        let text = root.text("proc/self/mountinfo")?;
        Ok(text.map(|text| text.lines().filter_map(Self::parse).collect()))
    }

    /// The mount that an absolute path lies in.
    #[must_use]
    pub fn of<'a>(all: &'a [Self], path: &Path) -> Option<&'a Self> {
        let holding = all.iter().filter(|mount| path.starts_with(&mount.point));
        holding.max_by_key(|mount| mount.point.as_os_str().len())
    }

    /// Whether it has an option.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|other| other == option)
    }

    /// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,data=ordered`; none for
    /// another line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(2);
        let (device, root, point) = (before.next()?, before.next()?, before.next()?);
        let mut after = after.split(' ');
        let (kind, source) = (after.next()?, after.next().unwrap_or(""));
        let options = [before.next().unwrap_or(""), after.next().unwrap_or("")];
        Some(Self {
            device: device.to_owned(),
            root: unescape(root).into(),
            point: unescape(point).into(),
            kind: kind.to_owned(),
            source: unescape(source),
            options: options.iter().flat_map(|list| list.split(',')).map(str::to_owned).collect(),
        })
    }
}

/// A field of a table below `/proc`: the kernel writes blanks, tabs, newlines and backslashes in
/// paths as `\040` and so on.
#[must_use]
pub fn unescape(field: &str) -> String {
    let mut plain = field.to_owned();
    for (code, sign) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        plain = plain.replace(code, sign);
    }
    plain
}

/// The state in the text of `/proc/PID/stat`: `1234 (name) Z ...` is a zombie. The name may hold
/// anything, a bracket too.
#[must_use]
pub fn state_of(stat: &str) -> Option<char> {
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Mount, state_of};

    #[test]
    fn a_line_is_read_whole_and_the_deepest_mount_holds_a_path() {
        let lines = "22 1 259:1 / / ro,noatime shared:1 - ext4 /dev/root rw,data=journal\n\
                     short line\n\
                     23 22 0:30 /a\\040b /mnt\\040c rw - overlay\n";
        let all: Vec<_> = lines.lines().filter_map(Mount::parse).collect();
        assert_eq!(all.len(), 2);
        assert!(all[0].has("noatime") && all[0].has("data=journal") && !all[0].has("data"));
        assert_eq!((all[0].device.as_str(), all[0].source.as_str()), ("259:1", "/dev/root"));
        assert_eq!((all[1].root.as_path(), all[1].source.as_str()), (Path::new("/a b"), ""));
        let kind = |path: &str| Mount::of(&all, Path::new(path)).map(|mount| mount.kind.as_str());
        assert_eq!(
            (kind("/mnt c/d"), kind("/mnt"), kind("a")),
            (Some("overlay"), Some("ext4"), None)
        );
    }

    #[test]
    fn a_state_stands_behind_any_name() {
        assert_eq!(state_of("7 (a) R) T 1 1"), Some('T'));
        assert_eq!(state_of("7"), None);
    }
}
