//! Makes a connection and waits for its devices.

use std::time::{Duration, Instant};

use kvrail_memory::Root;
use serde::Serialize;

use crate::device::Fabrics;
use crate::error::FabricsError;
use crate::options::{Flag, Options};
use crate::tree::{Controller, Namespace, Subsystem, subsystems};
use kvrail_nvme::Transport;

/// How long a new connection's namespaces may take to show up: the kernel scans behind it.
const SCAN_PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A connection that was made.
#[derive(Clone, Debug, Serialize)]
pub struct Connected {
    /// Kernel name of the controller, e.g. `nvme2`.
    pub controller: String,
    /// The subsystem's name.
    pub nqn: String,
    /// The block devices that are reached through it; none where the target gives this host none.
    pub namespaces: Vec<Namespace>,
}

/// Connects, and waits up to 5 s for the first namespace. A connection that fails leaves nothing.
///
/// # Errors
/// Options the transport or kernel does not know, a connection that is already there, an address
/// that does not answer, a target that refuses.
pub fn connect(root: &Root, options: &Options) -> Result<Connected, FabricsError> {
    let number = dial(root, options)?;
    let controller = format!("nvme{number}");
    let namespaces = wait_for_namespaces(root, &controller);
    Ok(Connected { controller, nqn: options.nqn.to_string(), namespaces })
}

/// Connects; gives the controller's number.
pub(crate) fn dial(root: &Root, options: &Options) -> Result<u32, FabricsError> {
    let mut fabrics = Fabrics::open(root)?;
    fabrics.check(options)?;
    if !options.has(Flag::DuplicateConnect) {
        refuse_second(root, options)?;
    }
    fabrics.connect(options)
}

fn refuse_second(root: &Root, options: &Options) -> Result<(), FabricsError> {
    let found = subsystems(root);
    let same = found
        .iter()
        .filter(|subsystem| subsystem.nqn == options.nqn.as_str())
        .flat_map(|subsystem| &subsystem.controllers)
        .find(|controller| is_same(controller, options));
    let Some(controller) = same else { return Ok(()) };
    let (nqn, name, state) = (&options.nqn, &controller.name, &controller.state);
    let words = format!("{nqn} is already connected as {name} ({state})");
    let remedy =
        format!("use it, `kvrail host disconnect --device {name}`, or --duplicate-connect");
    Err(FabricsError::refused(words, remedy))
}

/// Whether a connection has the two ends of the options: the kernel's own rule for duplicates.
fn is_same(controller: &Controller, options: &Options) -> bool {
    let to = &options.address;
    let port = to.trsvcid.map(|port| port.to_string());
    let from = to.host_traddr.as_deref();
    controller.transport == to.transport.name()
        && controller.host_nqn.as_deref().is_none_or(|nqn| nqn == options.identity.nqn.as_str())
        && (to.transport == Transport::Loop
            || (controller.pair("traddr") == to.traddr.as_deref()
                && controller.pair("trsvcid") == port.as_deref()
                && (from.is_none() || controller.pair("host_traddr") == from)))
}

/// The namespaces with a path through the controller.
fn wait_for_namespaces(root: &Root, controller: &str) -> Vec<Namespace> {
    let deadline = Instant::now() + SCAN_PATIENCE;
    loop {
        let found = namespaces_of(&subsystems(root), controller);
        let there = |namespace: &Namespace| root.path(&namespace.device).exists();
        if (!found.is_empty() && found.iter().all(there)) || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(LOOK);
    }
}

fn namespaces_of(all: &[Subsystem], controller: &str) -> Vec<Namespace> {
    let through =
        |namespace: &&Namespace| namespace.paths.iter().any(|path| path.controller == controller);
    all.iter().flat_map(|subsystem| &subsystem.namespaces).filter(through).cloned().collect()
}
