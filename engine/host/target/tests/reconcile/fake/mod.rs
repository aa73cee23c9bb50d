//! A made-up nvmet tree that keeps the kernel's rules: children created with an object, order of
//! writes, references between objects. It can stop or fail at any call, and it records after each
//! call which hosts could reach which devices.

mod fuse;
mod rules;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvrail_target::{DirectoryEntry, EntryKind, Tree};
use rustix::io::Errno;

pub(crate) use fuse::{Blow, Fuse, Meddle};
pub(crate) use store::MemoryStore;

/// Whose kernel it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavor {
    /// Linux 6.12 as Debian builds it.
    Stable,
    /// Linux 7.2: with peer-to-peer memory.
    Recent,
    /// A network card vendor's stack: with target offload.
    Vendor,
}

#[derive(Clone, Debug)]
enum Node {
    /// Made by `mkdir`, or born with such a one.
    Dir {
        id: u64,
        made: bool,
    },
    File(String),
    Link(String),
}

/// Which hosts can reach which devices: host names, `*` for all.
pub(crate) type Access = BTreeSet<(String, String)>;

/// The state behind all handles of one tree.
#[derive(Debug)]
pub(crate) struct State {
    flavor: Flavor,
    nodes: BTreeMap<String, Node>,
    next_id: u64,
    pub(crate) modules: BTreeSet<String>,
    /// Modules that can be loaded.
    pub(crate) loadable: BTreeSet<String>,
    /// Whether configfs is mounted.
    pub(crate) is_mounted: bool,
    /// Whether the program may do what it does.
    pub(crate) is_root: bool,
    /// Block devices that exist, with the p2p queues each has left.
    pub(crate) devices: BTreeMap<String, u32>,
    /// Addresses of network interfaces; those of RDMA devices begin with `rdma `.
    pub(crate) addresses: BTreeSet<String>,
    /// Existing listeners: `tcp 192.0.2.1 4420`.
    pub(crate) listening: BTreeSet<String>,
    pub(crate) history: Vec<Access>,
}

/// A handle to a tree; clones share it, as programs share the kernel's.
#[derive(Clone, Debug)]
pub(crate) struct FakeTree {
    state: Arc<Mutex<State>>,
    fuse: Fuse,
}

impl FakeTree {
    pub(crate) fn new(flavor: Flavor) -> Self {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let mut state = State {
            flavor,
            nodes: BTreeMap::new(),
            next_id: 1,
            modules: words(&["nvmet", "nvmet_rdma", "nvmet_tcp", "nvme_loop"]),
            loadable: words(&["nvmet", "nvmet_rdma", "nvmet_tcp", "nvme_loop"]),
            is_mounted: true,
            is_root: true,
            devices: ["/dev/nvme0n1", "/dev/nvme0n2", "/dev/nvme1n1", "/dev/nvme2n1"]
                .map(|device| (device.to_owned(), 2))
                .into(),
            addresses: words(&["192.0.2.1", "192.0.2.2", "rdma 192.0.2.1", "rdma 192.0.2.2"]),
            listening: BTreeSet::new(),
            history: Vec::new(),
        };
        for folder in ["hosts", "subsystems", "ports"] {
            state.born(folder);
        }
        Self { state: Arc::new(Mutex::new(state)), fuse: Fuse::default() }
    }

    /// The same tree through a handle that blows at a call.
    pub(crate) fn with(&self, fuse: &Fuse) -> Self {
        Self { state: Arc::clone(&self.state), fuse: fuse.clone() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // A stopped program leaves the kernel as it is.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything as text, to compare.
    pub(crate) fn text(&self) -> BTreeMap<String, String> {
        let state = self.state();
        let words = |node: &Node| match node {
            Node::Dir { .. } => "directory".to_owned(),
            Node::File(text) => format!("file {}", text.trim()),
            Node::Link(target) => format!("link to {target}"),
        };
        state.nodes.iter().map(|(path, node)| (path.clone(), words(node))).collect()
    }

    pub(crate) fn access(&self) -> Access {
        self.state().access()
    }

    fn change<R>(
        &mut self,
        change: impl FnOnce(&mut State) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.fuse.before()?;
        if let Some(meddle) = self.fuse.meddle() {
            meddle(&mut self.with(&Fuse::default()));
        }
        let result = {
            let mut state = self.state();
            let result = if state.is_root { change(&mut state) } else { Err(Errno::ACCESS) };
            let access = state.access();
            state.history.push(access);
            result
        };
        self.fuse.after();
        result
    }
}

impl State {
    fn has_tree(&self) -> bool {
        self.is_mounted && self.modules.contains("nvmet")
    }

    fn born(&mut self, path: &str) {
        self.add(path, false);
    }

    fn add(&mut self, path: &str, made: bool) {
        let id = self.next_id;
        self.next_id += 1;
        self.nodes.insert(path.into(), Node::Dir { id, made });
    }

    fn text(&self, path: &str) -> &str {
        match self.nodes.get(path) {
            Some(Node::File(text)) => text.trim(),
            _ => "",
        }
    }

    fn children(&self, path: &str) -> impl Iterator<Item = (&str, &Node)> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        self.nodes.iter().filter_map(move |(name, node)| {
            let rest = name.strip_prefix(&prefix)?;
            (!rest.is_empty() && !rest.contains('/')).then_some((rest, node))
        })
    }

    /// Links below a folder, as (path, target).
    fn links(&self, folder: &str) -> Vec<(String, String)> {
        let link = |(name, node): (&str, &Node)| match node {
            Node::Link(target) => Some((format!("{folder}/{name}"), target.clone())),
            _ => None,
        };
        self.children(folder).filter_map(link).collect()
    }

    fn ports(&self) -> Vec<String> {
        self.children("ports").map(|(name, _)| format!("ports/{name}")).collect()
    }

    fn namespaces(&self, subsystem: &str) -> Vec<String> {
        let folder = format!("{subsystem}/namespaces");
        self.children(&folder).map(|(name, _)| format!("{folder}/{name}")).collect()
    }

    pub(crate) fn access(&self) -> Access {
        let mut access = Access::new();
        for port in self.ports() {
            for (_, subsystem) in self.links(&format!("{port}/subsystems")) {
                let mut hosts: Vec<String> = self
                    .links(&format!("{subsystem}/allowed_hosts"))
                    .into_iter()
                    .map(|(_, host)| host)
                    .collect();
                if self.text(&format!("{subsystem}/attr_allow_any_host")) == "1" {
                    hosts.push("*".into());
                }
                for namespace in self.namespaces(&subsystem) {
                    if self.text(&format!("{namespace}/enable")) == "1" {
                        let device = self.text(&format!("{namespace}/device_path"));
                        access.extend(hosts.iter().map(|host| (host.clone(), device.to_owned())));
                    }
                }
            }
        }
        access
    }
}

impl Tree for FakeTree {
    fn list(&self, path: &str) -> Result<Vec<DirectoryEntry>, Errno> {
        let state = self.state();
        if !state.has_tree() || (!path.is_empty() && !state.nodes.contains_key(path)) {
            return Err(Errno::NOENT);
        }
        let kind = |node: &Node| match node {
            Node::Dir { .. } => EntryKind::Dir,
            Node::File(_) => EntryKind::File,
            Node::Link(_) => EntryKind::Link,
        };
        let entry =
            |(name, node): (&str, &Node)| DirectoryEntry { name: name.into(), kind: kind(node) };
        Ok(state.children(path).map(entry).collect())
    }

    fn read(&self, path: &str) -> Result<String, Errno> {
        match self.state().nodes.get(path) {
            Some(Node::File(_)) if path.ends_with("revalidate_size") => Err(Errno::ACCESS),
            Some(Node::File(text)) => Ok(format!("{text}\n")),
            Some(_) => Err(Errno::ISDIR),
            None => Err(Errno::NOENT),
        }
    }

    fn target(&self, path: &str) -> Result<String, Errno> {
        match self.state().nodes.get(path) {
            Some(Node::Link(target)) => Ok(target.clone()),
            Some(_) => Err(Errno::INVAL),
            None => Err(Errno::NOENT),
        }
    }

    fn id(&self, path: &str) -> Result<u64, Errno> {
        match self.state().nodes.get(path) {
            Some(Node::Dir { id, .. }) => Ok(*id),
            Some(_) => Ok(0),
            None => Err(Errno::NOENT),
        }
    }

    fn make_dir(&mut self, path: &str) -> Result<(), Errno> {
        self.change(|state| state.make_dir(path))
    }

    fn write(&mut self, path: &str, text: &str) -> Result<(), Errno> {
        self.change(|state| state.write(path, text))
    }

    fn link(&mut self, path: &str, target: &str) -> Result<(), Errno> {
        self.change(|state| state.link(path, target))
    }

    fn unlink(&mut self, path: &str) -> Result<(), Errno> {
        self.change(|state| match state.nodes.get(path) {
            Some(Node::Link(_)) => {
                state.unlink(path);
                Ok(())
            }
            Some(_) => Err(Errno::PERM),
            None => Err(Errno::NOENT),
        })
    }

    fn remove_dir(&mut self, path: &str) -> Result<(), Errno> {
        self.change(|state| state.remove_dir(path))
    }

    fn has_module(&self, name: &str) -> bool {
        self.state().modules.contains(name)
    }

    fn can_load(&self, name: &str) -> bool {
        self.state().loadable.contains(name)
    }

    fn can_appear(&self) -> bool {
        self.state().is_mounted
    }

    fn load_module(&mut self, name: &str) -> Result<(), Errno> {
        self.change(|state| {
            if !state.loadable.contains(name) {
                return Err(Errno::NODEV);
            }
            state.modules.insert(name.into());
            Ok(())
        })
    }
}
