//! Identity documents: what makes the bytes of a namespace what they are.

use std::fmt;

use kvrail_protocol::{DocumentError, read_document};
use serde_json::{Map, Value};
use thiserror::Error;

/// Bytes of a document at most.
pub const IDENTITY_BYTES_MAX: usize = kvrail_store::DOCUMENT_BYTES_MAX;

/// Names everything which makes blocks incompatible: model, weights, dtype, layout, tokens a block,
/// rank. Two programs share blocks only under equal documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity(String);

/// Why a document is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// No JSON object, or one with a value that would be lost.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// An object without a field.
    #[error("identity: {{}} says nothing; give it a field, such as \"model\"")]
    NoField,
    /// A field without a value.
    #[error(
        "the identity's field {field:?} is {value}: give it a value; what is not known may be \
         \"unknown\", and then blocks of other values are taken for the same"
    )]
    Empty {
        /// Which.
        field: String,
        /// What it is.
        value: &'static str,
    },
    /// Too long.
    #[error("the identity has {bytes} bytes, {IDENTITY_BYTES_MAX} at most; hash what is long")]
    TooLong {
        /// How long.
        bytes: usize,
    },
}

impl Identity {
    /// Reads a JSON object. Order of fields and spaces do not matter.
    ///
    /// # Errors
    /// `IdentityError` names the field.
    pub fn parse(json: &str) -> Result<Self, IdentityError> {
        Self::of(read_document(json)?)
    }

    /// A document of these fields, each text.
    ///
    /// # Errors
    /// As `parse`.
    pub fn new<'a>(
        fields: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, IdentityError> {
        let mut all = Map::new();
        for (name, value) in fields {
            if all.insert(name.into(), value.into()).is_some() {
                return Err(DocumentError::Twice(name.into()).into());
            }
        }
        Self::of(all)
    }

    fn of(fields: Map<String, Value>) -> Result<Self, IdentityError> {
        if fields.is_empty() {
            return Err(IdentityError::NoField);
        }
        for (field, value) in &fields {
            let value = match value {
                Value::Null => "null",
                Value::String(text) if text.is_empty() => "empty",
                _ => continue,
            };
            return Err(IdentityError::Empty { field: field.clone(), value });
        }
        // Fields come in the order of their names: two equal documents are equal bytes.
        let text = Value::Object(fields).to_string();
        match text.len() {
            bytes @ ..=IDENTITY_BYTES_MAX => {
                debug_assert!(bytes > 0, "at least the braces");
                Ok(Self(text))
            }
            bytes => Err(IdentityError::TooLong { bytes }),
        }
    }

    /// The document, canonical.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{DocumentError, Identity, IdentityError};

    #[test]
    fn order_and_spaces_do_not_matter() {
        let one = Identity::parse(r#"{"model": "m", "a": {"y": 1, "x": [2]}}"#).unwrap();
        let other = Identity::parse(r#"{"a":{"x":[2],"y":1},"model":"m"}"#).unwrap();
        assert_eq!(one, other);
        assert_eq!(one.as_str(), r#"{"a":{"x":[2],"y":1},"model":"m"}"#);
        assert_eq!(
            Identity::new([("b", "2"), ("a", "1")]).unwrap().as_str(),
            r#"{"a":"1","b":"2"}"#
        );
    }

    #[test]
    fn nothing_is_lost() {
        let identity = |rev| Identity::parse(&format!(r#"{{"model":"m","rev":{rev}}}"#));
        assert_ne!(identity(u128::from(u64::MAX)), identity(u128::from(u64::MAX) - 1));
        for rev in [1_u128 << 64, (1 << 64) + 1] {
            let said = identity(rev).unwrap_err().to_string();
            assert!(said.contains(&format!("\"rev\" is {rev}")), "{said}");
        }
        let twice = IdentityError::Document(DocumentError::Twice("a".into()));
        assert_eq!(Identity::parse(r#"{"a":1,"a":2}"#), Err(twice.clone()));
        assert_eq!(Identity::new([("a", "1"), ("b", "2"), ("a", "1")]), Err(twice));
    }

    #[test]
    fn fields_have_values() {
        let why = |json| Identity::parse(json).unwrap_err();
        assert!(matches!(why(r#"{"a": null}"#), IdentityError::Empty { value: "null", .. }));
        assert!(why(r#"{"a": ""}"#).to_string().contains("\"a\" is empty"));
        for json in ["", "3", "[]", r#"{"a" 1}"#] {
            let said = why(json);
            assert!(matches!(said, IdentityError::Document(DocumentError::NoObject(_))), "{json}");
        }
        assert_eq!(why("{}"), IdentityError::NoField);
        let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(4089));
        assert_eq!(why(&long), IdentityError::TooLong { bytes: 4097 });
    }
}
