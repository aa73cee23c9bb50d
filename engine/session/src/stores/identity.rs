//! Identity documents: what makes the bytes of a namespace what they are, as JSON.

use kvrail_protocol::read_document;
use kvrail_store::DOCUMENT_BYTES_MAX;
use serde_json::Value;

use crate::failure::{Failure, invalid};

/// Characters of a value that an error shows.
const SHOWN_CHARS: usize = 64;

/// The document as values.
///
/// # Errors
/// `Failure` when it is too long, no JSON object, or has content that would be lost.
pub(super) fn parse(document: &str) -> Result<Value, Failure> {
    let bytes = document.len();
    if bytes > DOCUMENT_BYTES_MAX {
        return Err(invalid(format!(
            "identity: {bytes} bytes, {DOCUMENT_BYTES_MAX} are the most; leave out what does not \
             change the bytes of a block"
        )));
    }
    read_document(document).map(Value::Object).map_err(|error| invalid(error.to_string()))
}

/// A document that a store has: earlier releases took some that are refused now.
pub(super) fn stored(document: &[u8]) -> Value {
    serde_json::from_slice(document).unwrap_or_default()
}

/// The first field in which two documents differ, in the order of their names, and both values.
pub(super) fn difference(stored: &Value, asked: &Value) -> Option<String> {
    let mut path = String::new();
    let (field, stored, asked) = walk(stored, asked, &mut path)?;
    let (stored, asked) = (shown(stored), shown(asked));
    Some(format!("{field} is {stored} in the store and {asked} here"))
}

type Differs<'a> = (String, Option<&'a Value>, Option<&'a Value>);

fn walk<'a>(stored: &'a Value, asked: &'a Value, path: &mut String) -> Option<Differs<'a>> {
    if stored == asked {
        return None;
    }
    let (Value::Object(left), Value::Object(right)) = (stored, asked) else {
        return Some((path.clone(), Some(stored), Some(asked)));
    };
    let mut names: Vec<&String> = left.keys().chain(right.keys()).collect();
    names.sort_unstable();
    let differs = |name: &&&String| left.get(name.as_str()) != right.get(name.as_str());
    let name = names.iter().find(differs)?;
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
    match (left.get(name.as_str()), right.get(name.as_str())) {
        (Some(stored), Some(asked)) => walk(stored, asked, path),
        (stored, asked) => Some((path.clone(), stored, asked)),
    }
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else { return "absent".into() };
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{difference, parse, stored};

    #[test]
    fn the_first_field_that_differs_is_named_with_both_values() {
        let stored = json!({"model": "llama", "layout": {"layers": 32, "heads": 8}, "z": 1});
        let cases = [
            (json!({"model": "llama", "layout": {"layers": 32, "heads": 8}, "z": 1}), None),
            (
                json!({"model": "qwen", "layout": {"layers": 33, "heads": 8}, "z": 1}),
                Some("layout.layers is 32 in the store and 33 here"),
            ),
            (
                json!({"model": "llama", "layout": {"layers": 32, "heads": 8}}),
                Some("z is 1 in the store and absent here"),
            ),
            (
                json!({"a": null, "model": "llama", "layout": 7, "z": 1}),
                Some("a is absent in the store and null here"),
            ),
        ];
        for (asked, expected) in cases {
            assert_eq!(difference(&stored, &asked).as_deref(), expected);
        }
        let long = json!({"a": "ä".repeat(500)});
        let said = difference(&long, &json!({"a": 1})).unwrap();
        assert!(said.contains("...") && said.chars().count() < 150, "{said}");
    }

    #[test]
    fn a_document_is_a_json_object_of_bounded_length() {
        assert!(parse("{}").is_ok());
        let deep = "[".repeat(4000);
        assert_eq!(stored(br#"{"a": 1, "a": 18446744073709551617}"#)["a"], json!(2_f64.powi(64)));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(4096));
        for (document, words) in [
            ("", "no JSON"),
            ("[1]", "no JSON object"),
            (&deep, "no JSON"),
            (&long, "4104 bytes"),
            (r#"{"a": 1, "a": 2}"#, "twice"),
            (r#"{"rev": 18446744073709551617}"#, "\"rev\" is 18446744073709551617"),
        ] {
            let (_, said) = parse(document).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }
}
