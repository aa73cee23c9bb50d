//! Where each value came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The layer that set a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "layer", rename_all = "lowercase")]
pub enum Origin {
    /// No layer set it.
    Default,
    /// The configuration file.
    File {
        /// Its path.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// `--set` on the command line.
    CommandLine {
        /// The argument of `--set`.
        argument: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::CommandLine { argument } => write!(f, "--set {argument}"),
        }
    }
}

/// Origins by key path (`section.key`, `volume.0.name`). A path stands for everything below it.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins(BTreeMap<String, Origin>);

impl Origins {
    /// The layer that set a key: the key itself or the nearest table around it.
    pub(super) fn of(&self, key: &str) -> Origin {
        let mut path = key;
        loop {
            if let Some(origin) = self.0.get(path) {
                return origin.clone();
            }
            match path.rsplit_once('.') {
                Some((parent, _)) => path = parent,
                None => return Origin::Default,
            }
        }
    }

    /// A later layer sets a key and everything below it.
    pub(super) fn set(&mut self, key: &str, origin: Origin) {
        let below = format!("{key}.");
        self.0.retain(|path, _| path != key && !path.starts_with(&below));
        self.0.insert(key.to_owned(), origin);
    }

    /// Notes the line of every value in a file that has been parsed before.
    pub(super) fn set_from_file(&mut self, path: &Path, text: &str) {
        let Ok(table) = DeTable::parse(text) else { return };
        let mut walk = DocumentWalk { path, text, found: &mut self.0 };
        walk.table("", table.get_ref());
    }
}

struct DocumentWalk<'a> {
    path: &'a Path,
    text: &'a str,
    found: &'a mut BTreeMap<String, Origin>,
}

impl DocumentWalk<'_> {
    fn table(&mut self, prefix: &str, table: &DeTable<'_>) {
        for (key, value) in table {
            let name = join(prefix, key.get_ref());
            self.value(&name, key.span().start, value);
        }
    }

    fn value(&mut self, name: &str, at: usize, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.table(name, table),
            DeValue::Array(list) if list.iter().any(|item| item.get_ref().is_table()) => {
                for (index, item) in list.iter().enumerate() {
                    self.value(&format!("{name}.{index}"), item.span().start, item);
                }
            }
            _ => {
                let line = self.text[..at].bytes().filter(|&byte| byte == b'\n').count() + 1;
                let origin = Origin::File { path: self.path.to_owned(), line };
                self.found.insert(name.to_owned(), origin);
            }
        }
    }
}

/// `prefix.name`, or the name alone at the top.
pub(crate) fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Origin, Origins};

    #[test]
    fn lines_of_a_file_are_found_and_overridden() {
        let text = "[limits]\nsessions = 3\n\n[[volume]]\nname = \"a\"\nmembers = [\"/x\"]\n\
                    [volume.device]\nqueue_depth = 4\n";
        let mut origins = Origins::default();
        origins.set_from_file(Path::new("k.toml"), text);
        let line = |key: &str| match origins.of(key) {
            Origin::File { line, .. } => line,
            _ => 0,
        };
        assert_eq!(
            ["limits.sessions", "volume.0.name", "volume.0.members", "volume.0.device.queue_depth"]
                .map(line),
            [2, 5, 6, 8]
        );
        assert_eq!(line("limits.arenas_per_session"), 0);
        let new = Origin::CommandLine { argument: "volume=[]".into() };
        origins.set("volume", new.clone());
        assert_eq!(origins.of("volume.0.name"), new);
    }
}
