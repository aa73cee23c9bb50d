//! Removes secrets, which must not leave the host.

use kvrail_cli::config::Loaded;

/// The text in place of a secret.
const REDACTED: &str = "(redacted)";

/// Prefix of a DH-HMAC-CHAP key.
const KEY: &str = "DHHC-1:";

/// Suffix of the configuration's keys that name a secret's file.
const KEY_FILE: &str = "key_file";

/// Takes secrets, and where they lie, out of texts.
#[derive(Debug)]
pub(super) struct Redactor {
    /// Paths of key files.
    paths: Vec<String>,
}

impl Redactor {
    /// Knows the paths of a configuration, where one could be read.
    pub(super) fn new(loaded: Option<&Loaded>) -> Self {
        let entries = loaded.map(Loaded::entries).unwrap_or_default().into_iter();
        let paths = entries.filter(|(key, ..)| key.ends_with(KEY_FILE));
        let paths = paths.filter_map(|(_, value, _)| value.as_str().map(str::to_owned));
        Self { paths: paths.filter(|path| !path.is_empty()).collect() }
    }

    pub(super) fn clean(&self, text: &str) -> String {
        text.split_inclusive('\n').map(|line| self.clean_line(line)).collect()
    }

    fn clean_line(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for path in &self.paths {
            line = line.replace(path.as_str(), REDACTED);
        }
        if line.contains(KEY_FILE) {
            line = unquoted(&line);
        }
        while let Some(at) = line.find(KEY) {
            let is_key = |it: char| it.is_ascii_alphanumeric() || "+/=:-".contains(it);
            let length = line[at..].find(|letter| !is_key(letter)).unwrap_or(line.len() - at);
            line.replace_range(at..at + length, REDACTED);
        }
        line
    }
}

/// A line without its quoted text, which may be a path that no configuration has.
fn unquoted(line: &str) -> String {
    let parts = line.split('"').enumerate();
    let parts = parts
        .map(|(at, part)| if at % 2 == 1 && !part.ends_with(KEY_FILE) { REDACTED } else { part });
    parts.collect::<Vec<_>>().join("\"")
}

#[cfg(test)]
mod tests {
    use super::Redactor;

    #[test]
    fn keys_and_where_they_lie_are_left_out() {
        let redactor = Redactor { paths: vec!["/etc/kvrail/keys/a".into()] };
        let key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        let text = format!(
            "read /etc/kvrail/keys/a: denied\nconnect --secret {key} now\n\
             dhchap_key_file = \"/elsewhere/b\"\n\"dhchap_key_file\": \"/c\",\n\
             socket = \"/run/s\"\n"
        );
        let clean = redactor.clean(&text);
        assert_eq!(
            clean,
            "read (redacted): denied\nconnect --secret (redacted) now\n\
             dhchap_key_file = \"(redacted)\"\n\"dhchap_key_file\": \"(redacted)\",\n\
             socket = \"/run/s\"\n"
        );
    }
}
