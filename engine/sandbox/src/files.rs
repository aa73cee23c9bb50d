//! Landlock: which files may be reached, which ports and which processes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath,
    PathFd, Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
    make_bitflags,
};
use serde::{Deserialize, Serialize};

use crate::error::SandboxError;
use crate::needs::{Needs, Threads};

/// The requested rules: those of Linux 6.12.
const ASKED: ABI = ABI::V6;

/// The kernel's part of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Files {
    /// All of them.
    Whole,
    /// Those that the kernel supports: it is older than 6.12.
    Part,
    /// None.
    None,
}

const READ: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir});
const RUN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{ReadFile | ReadDir | Execute});
const CHANGE: BitFlags<AccessFs> =
    make_bitflags!(AccessFs::{ReadFile | ReadDir | WriteFile | Truncate | IoctlDev});
const OWN: BitFlags<AccessFs> = make_bitflags!(AccessFs::{
    ReadFile | ReadDir | WriteFile | Truncate | IoctlDev
    | MakeDir | MakeReg | MakeSock | MakeSym | RemoveDir | RemoveFile
});
const EMPTY: BitFlags<AccessFs> = make_bitflags!(AccessFs::{RemoveDir});

/// Forbids this thread, and all it will start, everything but this.
pub(crate) fn confine(needs: &Needs) -> Result<Files, SandboxError> {
    let ports = AccessNet::BindTcp | AccessNet::ConnectTcp;
    let rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ASKED))?
        .handle_access(ports)?
        .scope(scopes())?;
    let mut rules = rules.create()?;
    for (paths, rights) in [
        (needs.reads(), READ),
        (needs.changes(), CHANGE),
        (needs.owns(), OWN),
        (needs.empties(), EMPTY),
        (&programs(), RUN),
        (&["/etc/ld.so.cache".into(), "/etc/ld.so.preload".into()], READ),
    ] {
        for path in paths {
            rules = allow(rules, path, rights)?;
        }
    }
    if needs.threads() == Threads::EachOther
        && let Ok(threads) = PathFd::new("/proc/self/task")
    {
        // Open for good: the kernel may drop a folder of /proc that no process has open, and with
        // it the rule.
        rules = rules.add_rule(PathBeneath::new(Box::leak(Box::new(threads)), CHANGE))?;
    }
    for &port in needs.tcp_ports() {
        rules = rules.add_rule(NetPort::new(port, AccessNet::BindTcp))?;
    }
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Files::Whole,
        RulesetStatus::PartiallyEnforced => Files::Part,
        RulesetStatus::NotEnforced => Files::None,
    })
}

/// Signals and abstract sockets of others. A supervisor may listen at such a socket.
fn scopes() -> BitFlags<Scope> {
    let supervisor = std::env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    if supervisor.as_encoded_bytes().starts_with(b"@") {
        Scope::Signal.into()
    } else {
        Scope::from_all(ASKED)
    }
}

fn allow(
    rules: RulesetCreated,
    path: &Path,
    rights: BitFlags<AccessFs>,
) -> Result<RulesetCreated, SandboxError> {
    // A missing or forbidden path is reported by the code that opens it, with a better message.
    let Ok(place) = PathFd::new(path) else { return Ok(rules) };
    let rights = if path.is_dir() { rights } else { rights & AccessFs::from_file(ASKED) };
    if rights.is_empty() {
        return Ok(rules);
    }
    Ok(rules.add_rule(PathBeneath::new(place, rights))?)
}

/// This program, and the folders that its loader and its libraries lie in: another release of a
/// library may take its place while this process runs.
fn programs() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mapped = maps.lines().filter_map(|line| line.find('/').map(|at| Path::new(&line[at..])));
    let libraries = mapped.filter(|path| path.to_string_lossy().contains(".so"));
    let folders: BTreeSet<_> = libraries.filter_map(Path::parent).collect();
    let folders = folders.into_iter().map(Path::to_owned);
    folders.chain([PathBuf::from("/proc/self/exe")]).collect()
}
