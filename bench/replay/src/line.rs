//! A line of a trace: one JSON object in Mooncake's form.

use kvrail_store::Priority;
use serde::Deserialize;
use serde_json::Value;

/// The form of a line.
pub(crate) const EXPECTED: &str = "each line is a JSON object such as \
     {\"timestamp\": 1500, \"input_length\": 1100, \"hash_ids\": [7, 8, 9]}: milliseconds, \
     tokens (may be left out), and the ids of the prompt's blocks from the front; hints, if any, \
     are \"priority\": \"low\", \"normal\" or \"high\", and \"until\": ms, not before timestamp";

/// Latest time: traces count from their begin, or from 1970.
const AT_MS_MAX: f64 = 1e13;

/// A client's hints for the blocks of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    pub(crate) priority: Priority,
    /// From when on the blocks are worth nothing.
    pub(crate) until_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Rank {
    Low,
    Normal,
    High,
}

/// A request as its line has it; other fields may stand beside these.
#[derive(Debug, Deserialize)]
pub(crate) struct TraceLine {
    timestamp: f64,
    hash_ids: Vec<i128>,
    #[serde(default)]
    input_length: Option<u64>,
    #[serde(default)]
    priority: Option<Rank>,
    #[serde(default)]
    until: Option<f64>,
}

impl TraceLine {
    /// Reads a line.
    ///
    /// # Errors
    /// Names the key, the value, and what is wrong with it.
    pub(crate) fn read(text: &[u8]) -> Result<Self, String> {
        let line: Self = serde_json::from_slice(text).map_err(|why| complaint(text, &why))?;
        if !(0.0..=AT_MS_MAX).contains(&line.timestamp) {
            let at = line.timestamp;
            return Err(format!("timestamp {at}: not a time in milliseconds, 0 to 1e13"));
        }
        match line.until.filter(|until| !(line.timestamp..=AT_MS_MAX).contains(until)) {
            Some(until) => Err(format!("until {until}: not a time from timestamp to 1e13")),
            None => Ok(line),
        }
    }

    pub(crate) fn at_ns(&self) -> u64 {
        nanoseconds(self.timestamp)
    }

    pub(crate) fn hints(&self) -> Hints {
        let priority = match self.priority {
            Some(Rank::Low) => Priority::Low,
            Some(Rank::High) => Priority::High,
            Some(Rank::Normal) | None => Priority::Normal,
        };
        Hints { priority, until_ns: self.until.map(nanoseconds) }
    }

    pub(crate) fn ids(&self) -> &[i128] {
        &self.hash_ids
    }

    /// Tokens of the prompt, where the line has them.
    pub(crate) fn tokens(&self) -> Option<u64> {
        self.input_length
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1e13 ms")]
fn nanoseconds(ms: f64) -> u64 {
    (ms * 1e3).round() as u64 * 1000
}

/// The error of a line, by key where the line is an object. Only lines that are wrong are read
/// twice.
fn complaint(text: &[u8], why: &serde_json::Error) -> String {
    // The line and column that serde knows are of this one line.
    let said = why.to_string().split(" at line ").next().unwrap_or_default().to_owned();
    let Ok(value) = serde_json::from_slice::<Value>(text) else {
        return format!("not JSON: {said}");
    };
    let Value::Object(line) = &value else {
        return format!("{}: not an object", short(&value));
    };
    let Some(timestamp) = line.get("timestamp") else {
        return "timestamp is missing".to_owned();
    };
    if !timestamp.is_number() {
        return format!("timestamp {}: not a number", short(timestamp));
    }
    let ids = match line.get("hash_ids") {
        None => return "hash_ids is missing".to_owned(),
        Some(Value::Array(ids)) => ids,
        Some(other) => return format!("hash_ids {}: not a list", short(other)),
    };
    let whole = |id: &Value| matches!(id, Value::Number(id) if id.as_i128().is_some());
    if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| !whole(id)) {
        return format!("hash_ids[{at}] {}: not a whole number", short(id));
    }
    let optional = |key| line.get(key).filter(|value| !value.is_null());
    if let Some(tokens) = optional("input_length").filter(|value| value.as_u64().is_none()) {
        return format!("input_length {}: not a number of tokens", short(tokens));
    }
    if let Some(until) = optional("until").filter(|value| !value.is_number()) {
        return format!("until {}: not a number", short(until));
    }
    match optional("priority").filter(|value| Rank::deserialize(*value).is_err()) {
        Some(rank) => format!("priority {}: not low, normal or high", short(rank)),
        None => said,
    }
}

/// A value as far as a message has room for it.
fn short(value: &Value) -> String {
    const CHARS: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
