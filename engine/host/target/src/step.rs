//! The only things that are ever done to a tree.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::item::is_secret;

/// One change. Paths are relative to the tree's root.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
#[expect(missing_docs, reason = "the variants describe the fields")]
pub enum Step {
    /// Load a kernel module that is not there.
    Load { module: String },
    /// Make an object; the attributes named are written next.
    MakeDir { path: String, attributes: Vec<String> },
    /// Write an attribute.
    Write { path: String, value: Value },
    /// Link an object to another.
    Link { path: String, target: String },
    /// Remove a link.
    Unlink { path: String },
    /// Remove an object.
    RemoveDir { path: String },
}

/// The text to write; shown as far as permitted.
#[derive(Clone, PartialEq, Eq)]
pub struct Value {
    pub(crate) text: String,
    secret: bool,
}

impl Value {
    /// The text that is written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.secret { "(a key)" } else { &self.text })
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Step {
    pub(crate) fn write(path: String, text: &str) -> Self {
        let secret = is_secret(&path);
        Self::Write { path, value: Value { text: text.into(), secret } }
    }

    /// The module it loads, if it loads one.
    #[must_use]
    pub fn module(&self) -> Option<&str> {
        match self {
            Self::Load { module } => Some(module),
            _ => None,
        }
    }

    /// The path it changes; the module for `Load`.
    #[must_use]
    pub fn path(&self) -> &str {
        match self {
            Self::Load { module } => module,
            Self::MakeDir { path, .. }
            | Self::Write { path, .. }
            | Self::Link { path, .. }
            | Self::Unlink { path }
            | Self::RemoveDir { path } => path,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load { module } => write!(f, "modprobe {module}"),
            Self::MakeDir { path, .. } => write!(f, "mkdir {path}"),
            Self::Write { path, value } => write!(f, "write {path} = {value}"),
            Self::Link { path, target } => write!(f, "link {path} -> {target}"),
            Self::Unlink { path } => write!(f, "unlink {path}"),
            Self::RemoveDir { path } => write!(f, "rmdir {path}"),
        }
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
