//! Identity documents, as both ends of a session read them: JSON of which nothing is lost.
//!
//! A plain reader rounds integers beyond 64 bits and long fractions to doubles, and lets the last
//! of two equal names count. Two documents that differ would be one identity then, and a get would
//! return blocks of the other one.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};
use thiserror::Error;

/// Objects and lists within each other at most.
const LEVELS_MAX: usize = 64;
/// Characters of a document or a value that an error shows.
const SHOWN_CHARS: usize = 64;

/// Why a text is no identity document.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DocumentError {
    /// No JSON, or no object.
    #[error("identity: no JSON object ({0}); give one, such as {{\"model\": \"name\"}}")]
    NoObject(String),
    /// Two values of one name: the reader would choose one.
    #[error("identity: field {0:?} stands there twice, and one value could count; name it once")]
    Twice(String),
    /// A number that would be rounded to another one.
    #[error(
        "identity: field {field:?} is {number}, which would be rounded: integers from -2^63 to \
         2^64 - 1 are kept, and others as a double prints them; give it as text, {number:?}"
    )]
    Rounded {
        /// Which.
        field: String,
        /// As it is written.
        number: String,
    },
    /// Too deep.
    #[error("identity: field {0:?} is within {LEVELS_MAX} others, which are the most; flatten it")]
    Deep(String),
}

/// Reads an identity document.
///
/// # Errors
/// `DocumentError` names the field, its value, the limit and the remedy.
pub fn read_document(json: &str) -> Result<Map<String, Value>, DocumentError> {
    let whole: &RawValue = part(json)?;
    match value(whole.get(), &mut Vec::new())? {
        Value::Object(fields) => Ok(fields),
        other => Err(DocumentError::NoObject(format!("this is {}", shown(&other.to_string())))),
    }
}

/// A part of a document, as serde takes it.
fn part<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, DocumentError> {
    serde_json::from_str(text).map_err(|error| DocumentError::NoObject(error.to_string()))
}

/// The value of a text that is JSON; `path` leads to it.
fn value(text: &str, path: &mut Vec<String>) -> Result<Value, DocumentError> {
    let nested = text.starts_with(['{', '[']);
    if nested && path.len() > LEVELS_MAX {
        return Err(DocumentError::Deep(shown(&path.join("."))));
    }
    match text.as_bytes().first() {
        Some(b'{') => {
            let mut fields = Map::new();
            for (name, raw) in part::<Fields<'_>>(text)?.0 {
                path.push(name.clone());
                if fields.insert(name, value(raw.get(), path)?).is_some() {
                    return Err(DocumentError::Twice(shown(&path.join("."))));
                }
                path.pop();
            }
            Ok(Value::Object(fields))
        }
        Some(b'[') => {
            let mut values = Vec::new();
            for (at, raw) in part::<Vec<&RawValue>>(text)?.into_iter().enumerate() {
                path.push(at.to_string());
                values.push(value(raw.get(), path)?);
                path.pop();
            }
            Ok(Value::Array(values))
        }
        Some(b'-' | b'0'..=b'9') => number(text).map(Value::Number).ok_or_else(|| {
            DocumentError::Rounded { field: shown(&path.join(".")), number: shown(text) }
        }),
        _ => part(text),
    }
}

/// The number that a text stands for; nothing where only another one can be had.
fn number(text: &str) -> Option<Number> {
    if !text.contains(['.', 'e', 'E']) {
        let signed = || text.parse::<i64>().map(Number::from);
        return text.parse::<u64>().map(Number::from).or_else(|_| signed()).ok();
    }
    let double: f64 = text.parse().ok()?;
    // The two ways in which programs print a double so that it is read back.
    let prints = [format!("{double:e}"), format!("{double:.16e}")];
    let same = prints.iter().any(|print| decimal(print) == decimal(text));
    Number::from_f64(double).filter(|_| same)
}

/// Digits of a number without zeros at both ends, and the power of ten of the last one.
fn decimal(text: &str) -> Option<(String, i64)> {
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = format!("{}{fraction}", whole.trim_start_matches('-'));
    let short = digits.trim_end_matches('0');
    let dropped = i64::try_from(digits.len() - short.len()).ok()?;
    let power: i64 = exponent.parse().ok()?;
    let power = power.checked_add(dropped)? - i64::try_from(fraction.len()).ok()?;
    let digits = short.trim_start_matches('0');
    Some((digits.to_owned(), if digits.is_empty() { 0 } else { power }))
}

/// The beginning of a text, if it is long.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// All fields of an object, those of equal names too, with their values as they are written.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
                let mut all = Vec::new();
                while let Some(field) = map.next_entry()? {
                    all.push(field);
                }
                Ok(Fields(all))
            }
        }
        from.deserialize_map(All)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
    use serde_json::Value;

    use super::{DocumentError, read_document};

    fn canonical(json: &str) -> Result<String, DocumentError> {
        read_document(json).map(|fields| Value::Object(fields).to_string())
    }

    #[test]
    fn what_is_kept_is_kept_as_it_is() {
        for (json, kept) in [
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("[-0, 1.50, 1E2, 100.0]", "[0,1.5,100.0,100.0]"),
            ("1.8446744073709552e+19", "1.8446744073709552e+19"),
            ("0.1", "0.1"),
            // As C's %.17g has it: the same double.
            ("0.10000000000000001", "0.1"),
            ("5e-324", "5e-324"),
            ("0.0e9", "0.0"),
            (r#"{"b": [true, null, "\u00e4"], "a": {}}"#, r#"{"a":{},"b":[true,null,"ä"]}"#),
        ] {
            let found = canonical(&format!(r#" {{"x" : {json} }} "#));
            assert_eq!(found, Ok(format!(r#"{{"x":{kept}}}"#)), "{json}");
        }
    }

    #[test]
    fn a_number_that_would_be_rounded_is_refused_by_name() {
        for number in [
            "18446744073709551616",
            "18446744073709551617",
            "-9223372036854775809",
            "1e400",
            "1e-400",
            "1e99999999999999999999",
            "0.1000000000000000055511151231257827",
            "0.10000000000000000001",
            "9007199254740993.0",
        ] {
            let said = canonical(&format!(r#"{{"a": [{{"rev": {number}}}]}}"#)).unwrap_err();
            let (field, number) = ("a.0.rev".to_owned(), number.to_owned());
            assert_eq!(said, DocumentError::Rounded { field, number });
        }
        let said = canonical(r#"{"rev": 18446744073709551617}"#).unwrap_err().to_string();
        for word in ["\"rev\"", "is 18446744073709551617", "2^64 - 1", "as text"] {
            assert!(said.contains(word), "no {word} in {said}");
        }
    }

    #[test]
    fn a_name_stands_once() {
        for (json, field) in [
            (r#"{"a": 1, "a": 2}"#, "a"),
            (r#"{"a": 1, "\u0061": 1}"#, "a"),
            (r#"{"b": [{"a": {}, "c": 0, "a": {}}]}"#, "b.0.a"),
        ] {
            assert_eq!(canonical(json), Err(DocumentError::Twice(field.into())), "{json}");
        }
        assert!(canonical(r#"{"a": {"a": 1}, "b": {"a": 1}}"#).is_ok());
    }

    #[test]
    fn no_object_is_refused_however_deep() {
        let deep = |levels| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        assert!(canonical(&deep(65)).is_ok());
        assert!(matches!(canonical(&deep(66)), Err(DocumentError::Deep(_))));
        assert!(matches!(canonical(&deep(2000)), Err(DocumentError::Deep(_))));
        for json in ["", "1", "[1]", "{", r#"{"a":1} x"#, r#"{"a":01}"#, r#"{"a":"\ud800"}"#] {
            assert!(matches!(canonical(json), Err(DocumentError::NoObject(_))), "{json}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Every double and every integer of 64 bits, as programs print them.
        #[test]
        fn numbers_come_back(bits in any::<u64>(), signed in any::<i64>()) {
            let double = f64::from_bits(bits);
            let double = if double.is_finite() { double } else { 0.5 };
            for print in [format!("{double:e}"), format!("{double:.16e}"), format!("{double:?}")] {
                let found = read_document(&format!(r#"{{"x":{print}}}"#)).unwrap();
                prop_assert_eq!(found["x"].as_f64().map(f64::to_bits), Some(double.to_bits()));
            }
            let found = read_document(&format!(r#"{{"x":{bits},"y":{signed}}}"#)).unwrap();
            prop_assert_eq!(found["x"].as_u64(), Some(bits));
            prop_assert_eq!(found["y"].as_i64(), Some(signed));
        }
    }
}
