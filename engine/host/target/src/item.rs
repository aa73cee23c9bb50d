//! The tree as it is to be: objects, their attributes in the order of writing, their links.

use std::fmt;

use crate::place::{ObjectKind, place};

/// One attribute of a directory. The name is the file's path below the directory.
#[derive(Clone, PartialEq, Eq)]
pub struct Attribute {
    /// `addr_traddr`, `ana_groups/1/ana_state`.
    pub name: String,
    /// The text to write.
    pub value: String,
}

/// Whether an attribute may change while its object is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is written where it is.
    Live,
    /// Its object is taken down and built again.
    Rebuild,
}

impl Attribute {
    pub(crate) fn new(name: &str, value: impl ToString) -> Self {
        Self { name: name.into(), value: value.to_string() }
    }

    pub(crate) fn change(&self) -> Change {
        let last = self.name.rsplit('/').next().unwrap_or_default();
        let live =
            matches!(last, "enable" | "ana_state" | "ana_grpid") || last.starts_with("dhchap_");
        if live { Change::Live } else { Change::Rebuild }
    }

    /// Whether the tree's text is equal. An unreadable file never is.
    pub(crate) fn is(&self, present: Option<&str>) -> bool {
        let Some(present) = present.map(str::trim) else { return true };
        match &*self.name {
            "device_uuid" | "device_nguid" => present.eq_ignore_ascii_case(&self.value),
            // The kernel shows which memory it took.
            "p2pmem" if self.value == "1" => present != "0",
            _ => present == self.value,
        }
    }

    /// The value for people: keys are never shown.
    #[must_use]
    pub fn shown(&self) -> &str {
        if is_secret(&self.name) { "(a key)" } else { &self.value }
    }
}

/// Attributes whose value is a secret.
pub(crate) fn is_secret(path: &str) -> bool {
    path.ends_with("dhchap_key") || path.ends_with("dhchap_ctrl_key")
}

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.shown())
    }
}

/// A directory or a link to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Below the tree's root.
    pub path: String,
    /// Its form.
    pub form: Form,
}

/// The form of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A directory with attributes, in the order of writing.
    Dir(Vec<Attribute>),
    /// A link to the directory of this path.
    Link(String),
}

impl Item {
    pub(crate) fn dir(path: String, attributes: Vec<Attribute>) -> Self {
        Self { path, form: Form::Dir(attributes) }
    }

    pub(crate) fn link(path: String, target: String) -> Self {
        Self { path, form: Form::Link(target) }
    }

    pub(crate) fn place(&self) -> Option<ObjectKind> {
        place(&self.path)
    }
}

/// The whole of what is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Modules that must be there, by their names in `/sys/module`.
    pub modules: Vec<&'static str>,
    /// Objects in the order in which they are made.
    pub items: Vec<Item>,
}

impl Desired {
    pub(crate) fn new(modules: Vec<&'static str>, mut items: Vec<Item>) -> Self {
        // Stable: what is of one kind stays in the order of the configuration.
        items.sort_by_key(Item::place);
        Self { modules, items }
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Item> {
        self.items.iter().find(|item| item.path == path)
    }
}
