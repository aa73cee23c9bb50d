//! A tree as it is, read once.

use std::collections::{BTreeMap, BTreeSet};

use rustix::io::Errno;

use crate::error::TargetError;
use crate::place::place;
use crate::tree::{EntryKind, Tree};

/// The object at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Dir {
        /// `Tree::id`.
        id: u64,
    },
    /// An attribute; none where it cannot be read.
    File(Option<String>),
    /// A link, with the object it leads to.
    Link(String),
}

/// Everything below a tree's root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    pub(crate) nodes: BTreeMap<String, Node>,
    /// Of the modules that a target may need, those that are there.
    pub(crate) modules: BTreeSet<&'static str>,
}

/// The module whose tree it is.
pub(crate) const NVMET: &str = "nvmet";

/// One for each transport.
const TRANSPORTS: [&str; 3] = ["nvmet_rdma", "nvmet_tcp", "nvme_loop"];

impl Snapshot {
    /// Reads a whole tree. Objects that vanish meanwhile are left out.
    ///
    /// # Errors
    /// `TargetError::Unreadable` when there is no tree, or it may not be read.
    pub fn read(tree: &impl Tree) -> Result<Self, TargetError> {
        let mut nodes = BTreeMap::new();
        let mut open = vec![String::new()];
        while let Some(directory) = open.pop() {
            let entries = match tree.list(&directory) {
                Ok(entries) => entries,
                Err(Errno::NOENT) if !directory.is_empty() => continue,
                Err(errno) => return Err(unreadable(&directory, errno)),
            };
            for entry in entries {
                let path = if directory.is_empty() {
                    entry.name
                } else {
                    format!("{directory}/{}", entry.name)
                };
                let node = match entry.kind {
                    EntryKind::Dir => tree.id(&path).map(|id| Node::Dir { id }),
                    EntryKind::File => Ok(Node::File(tree.read(&path).ok())),
                    EntryKind::Link => tree.target(&path).map(Node::Link),
                };
                let Ok(node) = node else { continue };
                if matches!(node, Node::Dir { .. }) {
                    open.push(path.clone());
                }
                nodes.insert(path, node);
            }
        }
        // A tree implies its module, even where it is a copy.
        let modules = TRANSPORTS.into_iter().filter(|name| tree.has_module(name)).chain([NVMET]);
        Ok(Self { nodes, modules: modules.collect() })
    }

    /// The text of an attribute.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        match self.nodes.get(path)? {
            Node::File(text) => text.as_deref().map(str::trim),
            _ => None,
        }
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    /// All objects and links that were made, with their kind.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&str, &Node)> {
        let all = self.nodes.iter().map(|(path, node)| (&**path, node));
        all.filter(|(path, node)| !matches!(node, Node::File(_)) && place(path).is_some())
    }
}

fn unreadable(directory: &str, errno: Errno) -> TargetError {
    let path = if directory.is_empty() { "the nvmet tree" } else { directory };
    let (cause, remedy) = match errno {
        Errno::NOENT => (
            "it is not there: configfs is not mounted, or the module nvmet is not loaded",
            "mount -t configfs none /sys/kernel/config; modprobe nvmet; check target.configfs",
        ),
        Errno::ACCESS | Errno::PERM => ("it may not be read", "run as root"),
        Errno::NOTDIR => ("it is no directory", "check target.configfs"),
        _ => ("it cannot be read", "check target.configfs and the kernel's log"),
    };
    TargetError::Unreadable { path: path.into(), errno, cause: cause.into(), remedy: remedy.into() }
}
