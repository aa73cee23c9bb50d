//! The operations of a tree: the kernel's configfs, or anything that keeps its rules.

use rustix::io::Errno;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: EntryKind,
}

/// A directory's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// An object or a folder of objects.
    Dir,
    /// An attribute.
    File,
    /// A link to an object.
    Link,
}

/// An nvmet tree and the modules behind it. Paths are relative to its root; the empty one is the
/// root. Every call is one system call or a plain sequence of reads.
#[expect(clippy::missing_errors_doc, reason = "each gives the kernel's own errno")]
pub trait Tree {
    /// The entries of a directory, in any order.
    fn list(&self, path: &str) -> Result<Vec<DirectoryEntry>, Errno>;
    /// An attribute's text.
    fn read(&self, path: &str) -> Result<String, Errno>;
    /// The object a link leads to, relative to the root.
    fn target(&self, path: &str) -> Result<String, Errno>;
    /// A number that stays with a directory as long as it lives and that a later one of the same
    /// name does not get at once.
    fn id(&self, path: &str) -> Result<u64, Errno>;
    /// Makes an object.
    fn make_dir(&mut self, path: &str) -> Result<(), Errno>;
    /// Writes an attribute, in one piece.
    fn write(&mut self, path: &str, text: &str) -> Result<(), Errno>;
    /// Links an object.
    fn link(&mut self, path: &str, target: &str) -> Result<(), Errno>;
    /// Removes a link.
    fn unlink(&mut self, path: &str) -> Result<(), Errno>;
    /// Removes an object.
    fn remove_dir(&mut self, path: &str) -> Result<(), Errno>;
    /// Whether a module is loaded or built in.
    fn has_module(&self, name: &str) -> bool;
    /// Whether a module is there to be loaded.
    fn can_load(&self, name: &str) -> bool;
    /// Whether a tree that is not there appears when its module is loaded.
    fn can_appear(&self) -> bool;
    /// Loads a module.
    fn load_module(&mut self, name: &str) -> Result<(), Errno>;
}
