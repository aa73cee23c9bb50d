//! A configuration as a list of keys and values.

use toml::Value;

use super::provenance::join;

/// Leaves of a value with their key paths; lists of tables are numbered, empty ones kept.
pub(crate) fn flatten(prefix: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                flatten(&join(prefix, key), value, found);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_table) => {
            for (index, value) in list.iter().enumerate() {
                flatten(&join(prefix, &index.to_string()), value, found);
            }
        }
        leaf => found.push((prefix.to_owned(), leaf.clone())),
    }
}
