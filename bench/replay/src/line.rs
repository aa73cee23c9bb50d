//! A line of a trace: one JSON object in Mooncake's form.

use serde::Deserialize;
use serde_json::Value;

/// What a line has to look like.
pub(crate) const EXPECTED: &str = "each line is a JSON object such as \
     {\"timestamp\": 1500, \"input_length\": 1100, \"hash_ids\": [7, 8, 9]}: milliseconds, \
     tokens (may be left out), and the ids of the prompt's blocks from the front";

/// Latest time: traces count from their begin, or from 1970.
const AT_MS_MAX: f64 = 1e13;

/// A request as its line has it; other fields may stand beside these.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    timestamp: f64,
    hash_ids: Vec<i128>,
    #[serde(default)]
    input_length: Option<u64>,
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// Names the key, the value, and what is wrong with it.
    pub(crate) fn read(text: &[u8]) -> Result<Self, String> {
        let line: Self = serde_json::from_slice(text).map_err(|why| complaint(text, &why))?;
        if (0.0..=AT_MS_MAX).contains(&line.timestamp) {
            return Ok(line);
        }
        Err(format!("timestamp {}: not a time in milliseconds, 0 to 1e13", line.timestamp))
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1e13 ms")]
    pub(crate) fn at_ns(&self) -> u64 {
        (self.timestamp * 1e3).round() as u64 * 1000
    }

    pub(crate) fn ids(&self) -> &[i128] {
        &self.hash_ids
    }

    /// Tokens of the prompt, where the line has them.
    pub(crate) fn tokens(&self) -> Option<u64> {
        self.input_length
    }
}

/// What is wrong with a line, by key where it is an object. Only lines that are wrong are read
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
    match line.get("input_length") {
        Some(tokens) if !tokens.is_null() && tokens.as_u64().is_none() => {
            format!("input_length {}: not a number of tokens", short(tokens))
        }
        _ => said,
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
