//! Values that are written as text: one way to read them all.

use std::fmt::{self, Display};
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{Deserializer, Error, Visitor};

/// Reads a string and parses it; `expected` names the expected form in the error.
///
/// # Errors
/// When the value is no string, with `expected`, and the parser's error.
pub fn deserialize<'de, D, T>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: Display,
{
    deserializer.deserialize_str(Text { expected, parsed: PhantomData })
}

struct Text<T> {
    expected: &'static str,
    parsed: PhantomData<T>,
}

impl<T: FromStr> Visitor<'_> for Text<T>
where
    T::Err: Display,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}
