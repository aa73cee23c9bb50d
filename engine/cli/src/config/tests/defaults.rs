//! `config/default.toml` and the types have the same defaults.

use toml::{Table, Value};

use crate::config::flatten::flatten;
use crate::config::{Config, DEFAULT_FILE};

fn keys(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    flatten("", value, &mut found);
    let mut keys: Vec<String> = found.into_iter().map(|(key, _)| key).collect();
    keys.sort();
    keys
}

#[test]
fn the_file_parses_to_the_defaults() {
    let parsed: Config = toml::from_str(DEFAULT_FILE).unwrap();
    assert_eq!(parsed, Config::default());
}

#[test]
fn the_file_names_every_key_and_explains_it() {
    let file: Table = toml::from_str(DEFAULT_FILE).unwrap();
    let mut types = Table::try_from(Config::default()).unwrap();
    // The only key without a default of its own: an empty list of tables.
    assert_eq!(types.remove("volume"), Some(Value::Array(Vec::new())));
    assert_eq!(keys(&Value::Table(file)), keys(&Value::Table(types)));
    let lines: Vec<&str> = DEFAULT_FILE.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let is_key = line.starts_with(|c: char| c.is_ascii_lowercase());
        if is_key {
            assert!(lines[at - 1].starts_with("# "), "no explanation above {line:?}");
        }
        assert!(line.chars().count() <= 100, "line {} is too long", at + 1);
    }
}

/// The commented example from a mark to a double blank line, without the comment signs.
fn example(mark: &str) -> String {
    let start = DEFAULT_FILE.find(mark).unwrap();
    let text = DEFAULT_FILE[start..].split("\n\n").next().unwrap();
    let bare = |line| str::strip_prefix(line, "# ").or(line.strip_prefix('#')).unwrap_or(line);
    text.lines().map(bare).flat_map(|line| [line, "\n"]).collect()
}

/// The commented examples are valid, complete and as the types have them.
#[test]
fn the_example_volume_is_valid() {
    let plain = example("# [[volume]]\n");
    let config: Config = toml::from_str(&plain).unwrap();
    assert_eq!(config.volume.len(), 1);
    let written: Table = toml::from_str(&plain).unwrap();
    let read = Table::try_from(&config).unwrap();
    assert_eq!(written["volume"], read["volume"]);
}

#[test]
fn the_example_target_is_valid() {
    let plain = example("# [[target.host]]\n");
    let config: Config = toml::from_str(&plain).unwrap();
    assert_eq!(kvrail_target::check(&config.target.wish()), []);
    let written: Table = toml::from_str(&plain).unwrap();
    let read = Table::try_from(&config).unwrap();
    for list in ["host", "subsystem", "port"] {
        let (written, read) = (&written["target"][list], &read["target"][list]);
        // The example has no offloaded port; all other keys stand in it.
        assert_eq!(written, read, "{list}");
    }
}
