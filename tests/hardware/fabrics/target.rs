//! A target that `kvrail target` makes: one namespace of a drive at four ports, removed on drop.
//! Also the kernel's target tree as text.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::network::{ADDRESS, Network, OTHER};
use crate::machine::{self, tool};
use crate::rig::{Outcome, kvrail, run};

/// The kernel's tree.
pub(crate) const TREE: &str = "/sys/kernel/config/nvmet";

pub(crate) const NQN: &str = "nqn.2026-01.org.example:kv0";

/// The drive behind it.
pub(crate) const DRIVE: &str = "serial:kvr-main/2";

/// Ways to the target as options of nvme-cli, by number of the port.
pub(crate) const RDMA: &str = "-t rdma -a 192.0.2.1 -s 4420";
pub(crate) const TCP: &str = "-t tcp -a 192.0.2.1 -s 4421";
pub(crate) const LOOP: &str = "-t loop";
pub(crate) const RDMA_OTHER: &str = "-t rdma -a 192.0.2.2 -s 4420";

/// A desired target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish<'a> {
    /// The only host that is admitted; `None` admits every host.
    pub(crate) host: Option<&'a str>,
    /// The file with that host's key.
    pub(crate) key: Option<&'a Path>,
    /// ANA states of the namespace at the two RDMA ports.
    pub(crate) ana: [&'a str; 2],
    /// More lines of `[target]`.
    pub(crate) more: &'a str,
}

impl Default for Wish<'_> {
    fn default() -> Self {
        Self { host: None, key: None, ana: ["optimized"; 2], more: "" }
    }
}

impl<'a> Wish<'a> {
    pub(crate) fn only(host: &'a str) -> Self {
        Self { host: Some(host), ..Self::default() }
    }

    fn text(&self, state: &Path) -> String {
        let port = |id: u16, transport: &str, place: &str, ana: &str| {
            format!(
                "[[target.port]]\nid = {id}\ntransport = {transport:?}\nsubsystems = [{NQN:?}]\n\
                 {place}\nana = [{{ group = 2, state = {ana:?} }}]\n"
            )
        };
        let [here, there] = [ADDRESS, OTHER].map(|address| format!("address = {address:?}"));
        let hosts = match self.host {
            Some(host) => format!("hosts = [{host:?}]"),
            None => "allow_any_host = true".into(),
        };
        let key = self.host.zip(self.key).map(|(host, file)| {
            format!("[[target.host]]\nnqn = {host:?}\ndhchap_key_file = {file:?}\n")
        });
        [
            format!("[target]\nstate_dir = {state:?}\n{}\n", self.more),
            key.unwrap_or_default(),
            format!("[[target.subsystem]]\nnqn = {NQN:?}\n{hosts}\n"),
            format!("[[target.subsystem.namespace]]\nnsid = 1\ndevice = {DRIVE:?}\n"),
            "ana_group = 2\n".into(),
            port(1, "rdma", &here, self.ana[0]),
            port(2, "tcp", &format!("{here}\nservice = 4421"), "optimized"),
            port(3, "loop", "", "optimized"),
            port(4, "rdma", &there, self.ana[1]),
        ]
        .concat()
    }
}

/// A place from which the target is managed.
pub(crate) struct Target {
    pub(crate) folder: TempDir,
    _network: Network,
}

impl Target {
    /// A target of which nothing is exported yet, on a blank drive; `None` outside of the machine.
    pub(crate) fn ready() -> Option<Self> {
        if !machine::is_ours() {
            return None;
        }
        let network = Network::up();
        blank(&machine::namespace("kvr-main", 2));
        let folder = tempfile::tempdir().expect("a temporary folder");
        Some(Self { folder, _network: network })
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The configuration of a desired target.
    pub(crate) fn text(&self, wish: &Wish) -> String {
        wish.text(&self.state())
    }

    pub(crate) fn configure(&self, text: &str) {
        fs::write(self.configuration(), text).expect("our own folder");
    }

    pub(crate) fn configuration(&self) -> PathBuf {
        self.folder.path().join("kvrail.toml")
    }

    /// `kvrail target` with the configuration.
    pub(crate) fn run(&self, words: &[&str]) -> Outcome {
        target(&self.configuration(), words)
    }

    pub(crate) fn apply(&self, wish: &Wish) {
        self.configure(&self.text(wish));
        self.run(&["apply"]).expect(0, &[]);
    }

    pub(crate) fn undo(&self) {
        self.run(&["teardown"]).expect(0, &[]);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Connections that a failed test left.
        let _ended = Command::new("nvme").args(["disconnect", "-n", NQN]).output();
        self.run(&["teardown"]);
    }
}

/// Removes every known content.
pub(crate) fn blank(device: &Path) {
    let to = device.display();
    tool(&format!("dd if=/dev/zero of={to} bs=1M count=2 oflag=direct status=none"));
}

/// `kvrail target` with a configuration.
fn target(configuration: &Path, words: &[&str]) -> Outcome {
    run(kvrail().arg("target").args(words).arg("--config").arg(configuration))
}

/// Removes the subsystem from a port, without kvrail: connections are lost.
pub(crate) fn shut(port: u16) {
    fs::remove_file(opening(port)).expect("it was open");
}

/// Whether the subsystem can be reached through a port.
pub(crate) fn is_open(port: u16) -> bool {
    fs::symlink_metadata(opening(port)).is_ok()
}

fn opening(port: u16) -> String {
    format!("{TREE}/ports/{port}/subsystems/{NQN}")
}

/// Hosts that any port admits, by name; `*` is every host.
pub(crate) fn let_in() -> BTreeSet<String> {
    let below = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let mut names = BTreeSet::new();
    for port in below(&Path::new(TREE).join("ports")) {
        for subsystem in below(&port.join("subsystems")) {
            let any = fs::read_to_string(subsystem.join("attr_allow_any_host"));
            if any.is_ok_and(|text| text.trim() == "1") {
                names.insert("*".into());
            }
            let hosts = below(&subsystem.join("allowed_hosts"));
            let name = |host: &PathBuf| host.file_name().expect("it has a name").to_owned();
            names.extend(hosts.iter().map(|host| name(host).to_string_lossy().into_owned()));
        }
    }
    names
}

/// The whole tree: every directory, link and attribute with its value. Files that vanish meanwhile
/// are left out.
pub(crate) fn tree() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![PathBuf::from(TREE)];
    while let Some(directory) = open.pop() {
        let Ok(entries) = fs::read_dir(&directory) else {
            assert_ne!(directory, Path::new(TREE), "the target's module is not loaded");
            continue;
        };
        for entry in entries.flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            let text = if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap_or_default();
                format!("link to {}", target.display())
            } else if kind.is_dir() {
                open.push(path.clone());
                "directory".into()
            } else {
                fs::read_to_string(&path).unwrap_or_else(|error| error.to_string())
            };
            found.insert(path, text);
        }
    }
    found
}
