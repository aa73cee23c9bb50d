//! From layers to one checked configuration.

use std::path::Path;

use serde::Deserialize;
use toml::{Table, Value};

use super::check::check;
use super::error::ConfigError;
use super::flatten::flatten;
use super::fragments;
use super::layers::{Layers, Override};
use super::model::Config;
use super::provenance::{Origin, Origins};
use super::resolve_paths::anchor;

/// A checked configuration and where its values came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The values.
    pub config: Config,
    origins: Origins,
}

impl Loaded {
    pub(super) fn new(config: Config, origins: Origins) -> Self {
        Self { config, origins }
    }

    pub(super) fn origin(&self, key: &str) -> Origin {
        self.origins.of(key)
    }

    /// Every key with its value, as it would be written, and its origin, by the alphabet.
    pub fn entries(&self) -> Vec<(String, Value, Origin)> {
        let mut found = Vec::new();
        if let Ok(value) = Value::try_from(&self.config) {
            flatten("", &value, &mut found);
        }
        let with_origin = |(key, value): (String, Value)| {
            let origin = self.origins.of(&key);
            (key, value, origin)
        };
        found.into_iter().map(with_origin).collect()
    }
}

/// Reads, layers and checks.
///
/// # Errors
/// `ConfigError` for the first layer that cannot be read, or for all values that make no sense.
pub fn load(layers: &Layers) -> Result<Loaded, ConfigError> {
    let mut origins = Origins::default();
    let mut table = match &layers.file {
        Some(path) => read_file(path, &mut origins)?,
        None => Table::new(),
    };
    for fragment in layers.fragments()? {
        table = fragments::add(&fragment, table, &mut origins)?;
    }
    for change in layers.overrides()? {
        table = apply(table, &change, &mut origins)?;
    }
    let mut config = Config::deserialize(table.clone()).map_err(|error| ConfigError::Parse {
        path: layers.file.clone().unwrap_or_default(),
        message: error.to_string(),
    })?;
    anchor(&mut config, &origins);
    let problems = check(&config, &origins);
    if problems.is_empty() {
        Ok(Loaded::new(config, origins))
    } else {
        Err(ConfigError::Invalid(problems))
    }
}

fn read_file(path: &Path, origins: &mut Origins) -> Result<Table, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
    let refuse = |error: toml::de::Error| ConfigError::Parse {
        path: path.to_owned(),
        message: error.to_string(),
    };
    // Straight into the types first: that is what gives line and caret.
    toml::from_str::<Config>(&text).map_err(refuse)?;
    origins.set_from_file(path, &text);
    toml::from_str::<Table>(&text).map_err(refuse)
}

/// One override at a time, so that the error names it.
fn apply(table: Table, change: &Override, origins: &mut Origins) -> Result<Table, ConfigError> {
    let mut first_error = None;
    for value in change.meanings() {
        let mut changed = table.clone();
        let key = change.apply(&mut changed, value)?;
        match Config::deserialize(changed.clone()) {
            Ok(_) => {
                origins.set(&key, change.origin.clone());
                return Ok(changed);
            }
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    let message = first_error.map_or_else(String::new, |error| error.message().to_owned());
    Err(ConfigError::Override { origin: change.origin.clone(), message })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{Layers, Loaded, load};
    use kvrail_device::ModeName;
    use kvrail_units::{Period, Size};

    use crate::config::auto::Auto;
    use crate::config::{ConfigError, Origin};

    const FILE: &str = "[limits]\nsessions = 3\nqueues_per_session = 5\n\
                        [[volume]]\nname = \"KV-a\"\nmembers = [\"/a\"]\n\
                        [[volume]]\nname = \"b\"\nmembers = [\"/b\"]\n";

    fn layered(environment: &[(&str, &str)], sets: &[&str]) -> Result<Loaded, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("k.toml");
        std::fs::write(&file, FILE).unwrap();
        let pair = |(name, value): &(&str, &str)| (OsString::from(name), OsString::from(value));
        load(&Layers {
            file: Some(file),
            environment: environment.iter().map(pair).collect(),
            sets: sets.iter().map(|&set| set.to_owned()).collect(),
        })
    }

    #[test]
    fn the_stronger_layer_wins_and_is_named() {
        let variables = [
            ("KVRAIL_LIMITS__SESSIONS", "7"),
            ("KVRAIL_LIMITS__LANE_DEPTH", "64"),
            ("KVRAIL_CONFIG", "/else/where"),
            ("KVRAIL_BINARY", "/the/python/package/s"),
            ("OTHER", "x"),
        ];
        let loaded = layered(&variables, &["limits.sessions=9"]).unwrap();
        let limits = &loaded.config.limits;
        assert_eq!((limits.sessions, limits.queues_per_session, limits.lane_depth), (9, 5, 64));
        let origin = |key: &str| {
            let entries = loaded.entries();
            entries.into_iter().find(|(name, ..)| name == key).unwrap().2.to_string()
        };
        assert_eq!(origin("limits.sessions"), "--set limits.sessions=9");
        assert!(origin("limits.queues_per_session").ends_with("k.toml:3"));
        let variable = origin("limits.lane_depth");
        assert_eq!(variable, "environment KVRAIL_LIMITS__LANE_DEPTH");
        assert_eq!(origin("limits.arenas_per_session"), "default");
        assert!(origin("volume.1.name").ends_with("k.toml:8"));
    }

    #[test]
    fn overrides_are_toml_or_bare_words() {
        let sets = [
            "device.mode=sqpoll",
            "device.in_flight_bytes = 1MiB",
            "pollers.cpus=[2, 3]",
            "pollers.count=2",
            "pollers.busy_poll_max=\"5us\"",
            "sidecar.socket_mode=0600",
        ];
        let config = layered(&[], &sets).unwrap().config;
        assert_eq!(config.device.mode, Auto::Fixed(ModeName::Sqpoll));
        assert_eq!(config.device.in_flight_bytes, Auto::Fixed(Size::new(1 << 20)));
        assert_eq!(config.pollers.cpus, Auto::Fixed(vec![2, 3]));
        assert_eq!(config.pollers.count, Auto::Fixed(2));
        assert_eq!(config.pollers.busy_poll_max, Auto::Fixed(Period::from_us(5)));
        assert_eq!(config.sidecar.socket_mode.bits(), 0o600);
    }

    #[test]
    fn volumes_are_changed_by_number_or_name() {
        let variables = [("KVRAIL_VOLUME__KV-A__DEVICE__QUEUE_DEPTH", "9")];
        let sets = ["volume.1.device.mode=interrupt", "volume.b.name=123"];
        let loaded = layered(&variables, &sets).unwrap();
        let [a, b] = &loaded.config.volume[..] else { panic!("two volumes") };
        assert_eq!(loaded.config.device_of(a).queue_depth, 9);
        assert_eq!(loaded.config.device_of(b).queue_depth, 256);
        assert_eq!(loaded.config.device_of(b).mode, Auto::Fixed(ModeName::Interrupt));
        assert_eq!(b.name.as_str(), "123");
        let set = "volume=[{name = \"c\", members = [\"/c\"]}]";
        let loaded = layered(&[], &[set]).unwrap();
        assert_eq!(loaded.config.volume[0].name.as_str(), "c");
        let entry = loaded.entries().into_iter().find(|(key, ..)| key == "volume.0.name");
        assert!(matches!(entry.unwrap().2, Origin::CommandLine { .. }));
    }

    #[test]
    fn what_is_shown_is_read_back() {
        let loaded =
            layered(&[], &["volume.b.device.sq_cpu=auto", "pollers.busy_poll_max=0us"]).unwrap();
        let text = toml::to_string(&loaded.config).unwrap();
        assert_eq!(toml::from_str::<crate::config::Config>(&text).unwrap(), loaded.config);
    }
}
