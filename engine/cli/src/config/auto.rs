//! Settings that kvrail can choose by itself: `"auto"` or a value.

use std::fmt;
use std::marker::PhantomData;

use kvrail_device::ModeName;
use kvrail_units::{Period, Size};
use serde::de::value::{I64Deserializer, SeqAccessDeserializer, StrDeserializer, U64Deserializer};
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

/// Chosen at start, and then reported with the reason; or fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// kvrail chooses.
    #[default]
    Auto,
    /// The operator chose.
    Fixed(T),
}

impl<T> Auto<T> {
    /// The operator's choice.
    pub fn fixed(&self) -> Option<&T> {
        match self {
            Self::Auto => None,
            Self::Fixed(value) => Some(value),
        }
    }
}

/// The form of a fixed value, for messages.
pub trait Described {
    const WORDS: &'static str;
}

impl Described for u8 {
    const WORDS: &'static str = "a whole number from 0 to 255";
}

impl Described for u16 {
    const WORDS: &'static str = "a whole number from 0 to 65535";
}

impl Described for ModeName {
    const WORDS: &'static str = "the name of a ring mode";
}

impl Described for Vec<u16> {
    const WORDS: &'static str = "a list of CPU numbers such as [2, 3]";
}

impl Described for Size {
    const WORDS: &'static str = "a size such as \"8MiB\"";
}

impl Described for Period {
    const WORDS: &'static str = "a length of time such as \"20us\"";
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str("auto"),
            Self::Fixed(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de> + Described> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AutoVisitor(PhantomData))
    }
}

struct AutoVisitor<T>(PhantomData<T>);

impl<T: Described> AutoVisitor<T> {
    fn explain<E: Error>(error: E) -> E {
        let words = error.to_string();
        let tells_all = words.contains("auto");
        let advice = format!("; write \"auto\" or {}", T::WORDS);
        E::custom(words + if tells_all { "" } else { &advice })
    }
}

impl<'de, T: Deserialize<'de> + Described> Visitor<'de> for AutoVisitor<T> {
    type Value = Auto<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"auto\" or {}", T::WORDS)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Auto<T>, E> {
        if text == "auto" {
            return Ok(Auto::Auto);
        }
        T::deserialize(StrDeserializer::new(text)).map(Auto::Fixed).map_err(Self::explain)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Auto<T>, E> {
        T::deserialize(I64Deserializer::new(number)).map(Auto::Fixed).map_err(Self::explain)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Auto<T>, E> {
        T::deserialize(U64Deserializer::new(number)).map(Auto::Fixed).map_err(Self::explain)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Auto<T>, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(list)).map(Auto::Fixed).map_err(Self::explain)
    }
}
