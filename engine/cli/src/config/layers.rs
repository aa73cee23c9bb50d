//! The layers over the defaults: a file, its fragments, the environment, `--set`.

use std::ffi::OsString;
use std::path::PathBuf;

use toml::{Table, Value};

use super::enums::LogFormat;
use super::error::ConfigError;
use super::fragments;
use super::provenance::{Origin, join};

/// Prefix of kvrail's environment variables.
const PREFIX: &str = "KVRAIL_";

/// Variables with the prefix that are no keys: the one behind `--config`, the Python package's.
const NOT_KEYS: [&str; 3] = ["KVRAIL_CONFIG", "KVRAIL_BINARY", "KVRAIL_PYTHON"];

/// Where a configuration comes from.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// The environment, as `std::env::vars_os` gives it.
    pub environment: Vec<(OsString, OsString)>,
    /// `section.key=value`, in the order of the command line.
    pub sets: Vec<String>,
}

/// One value over the layers below.
#[derive(Clone, Debug)]
pub struct Override {
    /// Key path in parts.
    pub path: Vec<String>,
    /// As it was written.
    pub text: String,
    /// The layer that set the key.
    pub origin: Origin,
}

impl Layers {
    /// The fragments of the file, the strongest last.
    ///
    /// # Errors
    /// `ConfigError` where their folder cannot be read.
    pub fn fragments(&self) -> Result<Vec<PathBuf>, ConfigError> {
        self.file.as_deref().map_or_else(|| Ok(Vec::new()), fragments::of)
    }

    /// Overrides in order of precedence, the strongest last.
    pub fn overrides(&self) -> Result<Vec<Override>, ConfigError> {
        let mut variables: Vec<_> = self
            .environment
            .iter()
            .filter(|(name, _)| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()))
            .filter(|(name, _)| NOT_KEYS.iter().all(|other| name != other))
            .collect();
        variables.sort();
        let variables = variables.into_iter().map(|(name, value)| from_variable(name, value));
        variables.chain(self.sets.iter().map(|argument| from_argument(argument))).collect()
    }

    /// `sidecar.socket` of layers that are broken elsewhere: as the strongest of them names it, by
    /// an absolute path.
    pub fn socket(&self) -> Option<PathBuf> {
        self.of_sidecar("socket").map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// `sidecar.log_format` of layers that are broken elsewhere.
    pub fn log_format(&self) -> Option<LogFormat> {
        Value::String(self.of_sidecar("log_format")?).try_into().ok()
    }

    fn of_sidecar(&self, key: &str) -> Option<String> {
        let overrides = self.overrides().unwrap_or_default();
        let named = overrides.iter().rev().find(|set| set.path == ["sidecar", key]);
        let named = named.and_then(|set| set.meanings().first()?.as_str().map(str::to_owned));
        let in_file = |file: &PathBuf| {
            // A pipe has been read.
            let text = file.is_file().then(|| std::fs::read_to_string(file).ok())??;
            let table: Table = toml::from_str(&text).ok()?;
            table.get("sidecar")?.get(key)?.as_str().map(str::to_owned)
        };
        let files = self.file.iter().cloned().chain(self.fragments().unwrap_or_default());
        let files: Vec<_> = files.collect();
        named.or_else(|| files.iter().rev().find_map(in_file))
    }
}

/// `KVRAIL_SECTION__KEY`.
fn from_variable(name: &OsString, value: &OsString) -> Result<Override, ConfigError> {
    let variable = name.to_string_lossy().into_owned();
    let origin = Origin::Environment { variable: variable.clone() };
    let (Some(_), Some(text)) = (name.to_str(), value.to_str()) else {
        return Err(refuse(origin, "it is not UTF-8"));
    };
    let path: Vec<String> =
        variable[PREFIX.len()..].split("__").map(str::to_ascii_lowercase).collect();
    if path.len() < 2 && path[0] != "volume" {
        let words = "this variable is no key; keys are written KVRAIL_SECTION__KEY, as in \
                     KVRAIL_DEVICE__MODE; unset it";
        return Err(refuse(origin, words));
    }
    Ok(Override { path, text: text.to_owned(), origin })
}

/// `section.key=value`.
fn from_argument(argument: &str) -> Result<Override, ConfigError> {
    let origin = Origin::CommandLine { argument: argument.to_owned() };
    let Some((path, text)) = argument.split_once('=') else {
        return Err(refuse(origin, "write it as section.key=value"));
    };
    let path: Vec<String> = path.trim().split('.').map(str::to_owned).collect();
    if path.iter().any(String::is_empty) {
        return Err(refuse(origin, "write it as section.key=value"));
    }
    Ok(Override { path, text: text.trim().to_owned(), origin })
}

fn refuse(origin: Origin, message: impl Into<String>) -> ConfigError {
    ConfigError::Override { origin, message: message.into() }
}

impl Override {
    /// Meanings of the text: TOML where it is TOML (`3`, `[2, 3]`, `"auto"`), and the bare text.
    pub fn meanings(&self) -> Vec<Value> {
        let bare = Value::String(self.text.clone());
        let parsed = toml::from_str::<Table>(&format!("value = {}", self.text)).ok();
        match parsed.and_then(|mut table| table.remove("value")) {
            Some(value) if value != bare => vec![value, bare],
            _ => vec![bare],
        }
    }

    /// Puts a value into the table; returns the key path, volumes by number.
    pub fn apply(&self, table: &mut Table, value: Value) -> Result<String, ConfigError> {
        let (last, parents) = self.path.split_last().expect("a split has a part");
        let mut at = TomlContainer::Table(table);
        let mut key = String::new();
        for part in parents {
            let (next, name) = self.step(at, part, &key)?;
            key = join(&key, &name);
            at = next;
        }
        match at {
            TomlContainer::Table(table) => {
                table.insert(last.clone(), value);
                Ok(join(&key, last))
            }
            TomlContainer::List(list) => {
                let index = self.find(list, last, &key)?;
                list[index] = value;
                Ok(join(&key, &index.to_string()))
            }
        }
    }

    fn step<'a>(
        &self,
        at: TomlContainer<'a>,
        part: &str,
        key: &str,
    ) -> Result<(TomlContainer<'a>, String), ConfigError> {
        let (value, name) = match at {
            TomlContainer::Table(table) => {
                let empty = || Value::Table(Table::new());
                (table.entry(part.to_owned()).or_insert_with(empty), part.to_owned())
            }
            TomlContainer::List(list) => {
                let index = self.find(list, part, key)?;
                (&mut list[index], index.to_string())
            }
        };
        match value {
            Value::Table(table) => Ok((TomlContainer::Table(table), name)),
            Value::Array(list) => Ok((TomlContainer::List(list), name)),
            _ => {
                let words = format!("{} is a value, not a section", join(key, &name));
                Err(refuse(self.origin.clone(), words))
            }
        }
    }

    /// A volume by its number or its name; case does not matter, because it is lost in the
    /// environment, unless two names differ in nothing else.
    fn find(&self, list: &[Value], part: &str, key: &str) -> Result<usize, ConfigError> {
        let name = |value: &Value| value.get("name").and_then(Value::as_str).map(str::to_owned);
        let number = part.parse().ok().filter(|&index| index < list.len());
        let exact = || list.iter().position(|value| name(value).as_deref() == Some(part));
        let loose = || {
            let mut same = list.iter().enumerate().filter(|(_, value)| {
                name(value).is_some_and(|name| name.eq_ignore_ascii_case(part))
            });
            same.next().filter(|_| same.next().is_none()).map(|(index, _)| index)
        };
        number.or_else(exact).or_else(loose).ok_or_else(|| {
            let words = format!("there is no {key} {part:?} to change");
            refuse(self.origin.clone(), words)
        })
    }
}

enum TomlContainer<'a> {
    Table(&'a mut Table),
    List(&'a mut Vec<Value>),
}
