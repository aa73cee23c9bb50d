//! Fragments: `kvrail.toml.d/*.toml` beside `kvrail.toml`, read after the file by the alphabet of
//! their names. So a package, a role or an operator each has a file of its own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use super::error::ConfigError;
use super::flatten::flatten;
use super::model::Config;
use super::provenance::{Origins, join};

/// Keys that name a table of a list: a fragment changes the table with the same value.
const NAMES: [&str; 4] = ["name", "nqn", "id", "nsid"];

/// The folder of a file's fragments.
pub(super) fn folder(file: &Path) -> PathBuf {
    let mut folder = file.as_os_str().to_owned();
    folder.push(".d");
    folder.into()
}

/// The fragments of a file, in their order; without a folder there are none.
pub(super) fn of(file: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let folder = folder(file);
    let failed = |error| ConfigError::Read { path: folder.clone(), error };
    let found = match std::fs::read_dir(&folder) {
        Ok(found) => found,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let paths: Result<Vec<_>, _> = found.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(failed)?;
    let is_hidden =
        |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
    paths.retain(|path| path.extension().is_some_and(|it| it == "toml") && !is_hidden(path));
    paths.sort();
    Ok(paths)
}

/// Puts a fragment over what is below it.
pub(super) fn add(
    path: &Path,
    mut base: Table,
    origins: &mut Origins,
) -> Result<Table, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
    let refuse = |error: toml::de::Error| ConfigError::Parse {
        path: path.to_owned(),
        message: error.to_string(),
    };
    let fragment = toml::from_str::<Table>(&text).map_err(refuse)?;
    let mut own = Origins::default();
    own.set_from_file(path, &text);
    Merge { own, origins }.tables(&mut base, fragment, ("", ""));
    // A fragment alone may lack keys. If it has a fault of its own, its error has line and caret.
    Config::deserialize(base.clone())
        .map_err(|error| refuse(toml::from_str::<Config>(&text).err().unwrap_or(error)))?;
    Ok(base)
}

/// A merge, with the origins of a fragment's values and those of all.
struct Merge<'a> {
    own: Origins,
    origins: &'a mut Origins,
}

impl Merge<'_> {
    /// `from` and `to` are the same place, as the fragment and the whole number it.
    fn tables(&mut self, base: &mut Table, over: Table, (from, to): (&str, &str)) {
        for (key, value) in over {
            let (from, to) = (join(from, &key), join(to, &key));
            match (base.get_mut(&key), value) {
                (Some(Value::Table(base)), Value::Table(over)) => {
                    self.tables(base, over, (&from, &to));
                }
                (Some(Value::Array(base)), Value::Array(over)) if are_tables(base, &over) => {
                    self.lists(base, over, (&from, &to));
                }
                (_, value) => {
                    self.set(&value, (&from, &to));
                    base.insert(key, value);
                }
            }
        }
    }

    fn lists(&mut self, base: &mut Vec<Value>, over: Vec<Value>, (from, to): (&str, &str)) {
        for (index, item) in over.into_iter().enumerate() {
            let from = join(from, &index.to_string());
            let same = base.iter().position(|other| are_same(other, &item));
            let to = join(to, &same.unwrap_or(base.len()).to_string());
            match (same.and_then(|at| base[at].as_table_mut()), item) {
                (Some(base), Value::Table(item)) => self.tables(base, item, (&from, &to)),
                (_, item) => {
                    self.set(&item, (&from, &to));
                    base.push(item);
                }
            }
        }
    }

    /// Notes the origins of a value's leaves.
    fn set(&mut self, value: &Value, (from, to): (&str, &str)) {
        let mut leaves = Vec::new();
        flatten("", value, &mut leaves);
        for (leaf, _) in leaves {
            let place = |at: &str| if leaf.is_empty() { at.to_owned() } else { join(at, &leaf) };
            self.origins.set(&place(to), self.own.of(&place(from)));
        }
    }
}

/// Whether lists of tables are joined; other lists, and empty ones, replace what was there.
fn are_tables(base: &[Value], over: &[Value]) -> bool {
    !over.is_empty() && base.iter().chain(over).all(Value::is_table)
}

fn are_same(one: &Value, other: &Value) -> bool {
    let name = |it: &Value| NAMES.iter().find_map(|key| Some((*key, it.get(key)?.clone())));
    name(one).is_some() && name(one) == name(other)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use crate::config::{ConfigError, Layers, Loaded, load};

    /// A file and its fragments.
    fn loaded(file: &str, fragments: &[(&str, &str)]) -> (TempDir, Result<Loaded, ConfigError>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.toml");
        fs::write(&path, file).unwrap();
        fs::create_dir(folder.path().join("k.toml.d")).unwrap();
        for (name, text) in fragments {
            fs::write(folder.path().join("k.toml.d").join(name), text).unwrap();
        }
        let sets = vec!["limits.arenas_per_session=3".into()];
        (folder, load(&Layers { file: Some(path), sets, ..Layers::default() }))
    }

    const FILE: &str = "[limits]\nsessions = 3\nsessions_per_uid = 2\n[[volume]]\nname = \"a\"\n\
                        members = [\"/a\"]\n";

    #[test]
    fn fragments_change_and_add_and_are_named_as_origin() {
        let volumes = "[[volume]]\nname = \"b\"\nmembers = [\"/b\", \"/c\"]\n\
                       [[volume]]\nname = \"a\"\ndevice.queue_depth = 7\n";
        let fragments = [
            ("20-volumes.toml", volumes),
            ("10-limits.toml", "[limits]\nsessions = 4\narenas_per_session = 9\n"),
            ("30-more.toml", "limits.sessions = 5\nvolume = [{name = \"b\", members = [\"/d\"]}]"),
            ("40-off.toml.disabled", "nonsense"),
            (".hidden.toml", "nonsense"),
        ];
        let (_folder, loaded) = loaded(FILE, &fragments);
        let loaded = loaded.unwrap();
        let limits = &loaded.config.limits;
        assert_eq!(
            (limits.sessions, limits.sessions_per_uid, limits.arenas_per_session),
            (5, 2, 3)
        );
        let shown: Vec<_> = loaded
            .entries()
            .into_iter()
            .map(|(key, value, origin)| {
                let origin = origin.to_string();
                let origin = origin.rsplit('/').next().unwrap_or_default().to_owned();
                (key, format!("{value} {origin}"))
            })
            .collect();
        let of = |key: &str| shown.iter().find(|(name, _)| name == key).unwrap().1.as_str();
        assert_eq!(of("limits.sessions"), "5 30-more.toml:1");
        assert_eq!(of("limits.sessions_per_uid"), "2 k.toml:3");
        assert_eq!(of("limits.arenas_per_session"), "3 --set limits.arenas_per_session=3");
        assert_eq!(of("volume.0.name"), "\"a\" 20-volumes.toml:5", "the same value, set later");
        assert_eq!(of("volume.0.members"), "[\"/a\"] k.toml:6");
        assert_eq!(of("volume.0.device.queue_depth"), "7 20-volumes.toml:6");
        assert_eq!(of("volume.1.members"), "[\"/d\"] 30-more.toml:2");
        assert_eq!(loaded.config.volume.len(), 2);
    }

    #[test]
    fn a_fault_is_named_with_the_fragment_and_its_line() {
        let why = |text: &str| loaded(FILE, &[("50-x.toml", text)]).1.unwrap_err().to_string();
        for (text, words) in [
            ("[limits]\n\nsesions = 4\n", "sesions"),
            ("[limits\n", "TOML"),
            ("[[volume]]\nname = \"c\"\n", "members"),
            ("limits.sessions = \"many\"", "invalid type"),
        ] {
            let why = why(text);
            assert!(why.contains("50-x.toml: ") && why.contains(words), "{text}: {why}");
        }
        assert!(why("[limits]\n\nsesions = 4\n").contains("line 3"));
        // Of values that make no sense, too.
        let why = why("limits.sessions = 0");
        assert!(why.contains("limits.sessions = 0") && why.contains("50-x.toml:1"), "{why}");
    }

    #[test]
    fn without_a_folder_there_are_no_fragments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("k.toml");
        fs::write(&path, FILE).unwrap();
        assert_eq!(super::of(&path).unwrap(), Vec::<std::path::PathBuf>::new());
        fs::write(folder.path().join("k.toml.d"), "a file").unwrap();
        assert_eq!(super::of(&path).unwrap(), Vec::<std::path::PathBuf>::new());
    }
}
