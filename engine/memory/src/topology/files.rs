//! Reading the kernel's small text files below a root that tests can replace.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

/// Why the machine could not be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TopologyError {
    /// A file that must be there cannot be read.
    #[error(
        "{}: cannot be read ({reason}); mount procfs on /proc and sysfs on /sys",
        path.display()
    )]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// The kernel's error.
        reason: String,
    },
    /// A file has unexpected content.
    #[error("{}: {what}; report it with the kernel's version", path.display())]
    Malformed {
        /// Which file.
        path: PathBuf,
        /// The fault of the text.
        what: String,
    },
}

/// A root directory with `proc`, `sys` and `dev` in it: `/`, or a made-up one in tests.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Default for Root {
    /// This host.
    fn default() -> Self {
        Self::new(Path::new("/"))
    }
}

impl Root {
    /// The files below a directory.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self(root.to_path_buf())
    }

    /// Where a path of the real machine lies below this root; a leading slash is fine.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file that may be missing.
    ///
    /// # Errors
    /// `Unreadable` for any reason but that it is not there.
    pub fn text(&self, path: impl AsRef<Path>) -> Result<Option<String>, TopologyError> {
        let path = self.path(path);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            // NotADirectory: the file's parent is an attribute here; ENODEV and the like are real.
            Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(None)
            }
            Err(why) => Err(TopologyError::Unreadable { path, reason: why.to_string() }),
        }
    }

    /// The text of a file that must be there.
    ///
    /// # Errors
    /// `Unreadable` with the kernel's reason.
    pub fn must(&self, path: impl AsRef<Path>) -> Result<String, TopologyError> {
        let path = path.as_ref();
        self.text(path)?.ok_or_else(|| TopologyError::Unreadable {
            path: self.path(path),
            reason: "no such file".into(),
        })
    }

    /// The one value in a file that may be missing.
    ///
    /// # Errors
    /// `Unreadable` as for `text`, `Malformed` for a text that is no such value.
    pub fn value<T>(&self, path: impl AsRef<Path>) -> Result<Option<T>, TopologyError>
    where
        T: FromStr<Err: ToString>,
    {
        let path = path.as_ref();
        let Some(text) = self.text(path)? else { return Ok(None) };
        let what =
            |why: T::Err| format!("`{}` cannot be understood: {}", text.trim(), why.to_string());
        let value = text.trim().parse().map_err(|why| self.malformed(path, what(why)))?;
        Ok(Some(value))
    }

    pub(crate) fn malformed(&self, path: impl AsRef<Path>, what: String) -> TopologyError {
        TopologyError::Malformed { path: self.path(path), what }
    }

    /// Names in a directory, sorted; none where there is no such directory.
    #[must_use]
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    }
}
