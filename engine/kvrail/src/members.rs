//! Members as people name them, and where they are today.

use std::fmt;
use std::path::{Path, PathBuf};

use kvrail_memory::Root;
use kvrail_nvme::{Controller, Drive, Namespace, Selector, SelectorError, describe, resolve};
use kvrail_protocol::DriveReport;
use kvrail_volume::VolumeName;

use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};

/// A member found on this host.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    /// As it was named.
    pub(crate) named: Selector,
    /// Where it is to be opened.
    pub(crate) path: PathBuf,
    /// The device's identity, where the name was no plain path.
    namespace: Option<Namespace>,
}

/// Finds a member. A path stays what it is: of a file that is still to be made, too.
///
/// # Errors
/// `Failure` names the candidates of an ambiguous name, and what there is for an unknown one.
pub(crate) fn locate(named: &Selector) -> Result<Located, Failure> {
    if let Some(path) = named.path() {
        let (named, path) = (named.clone(), path.to_owned());
        return Ok(Located { named, path, namespace: None });
    }
    let namespace = resolve(named, &Root::default())?;
    let path = namespace.block_node.clone().ok_or_else(|| {
        let what = format!("{named}: {} has no block device", namespace.name);
        Failure::new(Exit::Refused, what).with_remedy(
            "its format or command set is none that the kernel drives; see `kvrail devices -v`",
        )
    })?;
    Ok(Located { named: named.clone(), path, namespace: Some(namespace) })
}

/// The NVMe drive that a member is, or is a partition of; with what could be asked of it. Nothing
/// for files and for other devices.
pub(crate) fn drive_of(path: &Path) -> Option<Drive> {
    let root = Root::default();
    namespace_of(path, &root).map(|namespace| describe(namespace, &root))
}

/// The NVMe namespace that a block device is, or is a partition of.
pub(crate) fn namespace_of(path: &Path, root: &Root) -> Option<Namespace> {
    let namespace = match resolve(&Selector::Path(path.to_owned()), root) {
        Err(SelectorError::Partition { disk, .. }) => {
            resolve(&Selector::Path(Path::new("/dev").join(disk)), root)
        }
        found => found,
    };
    namespace.ok()
}

/// A report's facts about the drive that a member is now; none for files.
pub(crate) fn drive_report(path: &Path) -> Option<DriveReport> {
    let node = std::fs::canonicalize(path).ok().filter(|node| node.starts_with("/dev"))?;
    let kernel_name = node.file_name()?.to_string_lossy().into_owned();
    let namespace = namespace_of(path, &Root::default());
    let controller = namespace.as_ref().and_then(|namespace| namespace.controllers.first());
    let of = |field: fn(&Controller) -> String| controller.map(field).unwrap_or_default();
    Some(DriveReport {
        kernel_name,
        serial: of(|controller| controller.serial.clone()),
        model: of(|controller| controller.model.clone()),
        address: of(|controller| controller.address.to_string()),
        health: None,
    })
}

/// Where all of them are, in their order.
///
/// # Errors
/// As for `locate`, for the first that is not found.
pub(crate) fn paths(named: &[Selector]) -> Result<Vec<PathBuf>, Failure> {
    named.iter().map(|one| Ok(locate(one)?.path)).collect()
}

impl Located {
    /// The message to the operator, if the name does not identify today's device.
    pub(crate) fn note(&self) -> Option<String> {
        if let Some(namespace) = &self.namespace {
            let found = NamespaceSummary(namespace);
            return Some(format!("{} is {} today: {found}", self.named, self.path.display()));
        }
        let node = std::fs::canonicalize(&self.path).ok().filter(|node| *node != self.path)?;
        let device = node.starts_with("/dev").then_some(node)?;
        Some(format!("{} is {} today", self.named, device.display()))
    }
}

/// A namespace in a few words.
struct NamespaceSummary<'a>(&'a Namespace);

impl fmt::Display for NamespaceSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nsid = self.0.nsid;
        for controller in self.0.controllers.iter().take(1) {
            let (model, serial) = (&controller.model, &controller.serial);
            write!(f, "{model}, serial {serial}, namespace {nsid} at {}", controller.address)?;
        }
        Ok(())
    }
}

/// Where the members named on the command line are, or else those that the configuration has for
/// the volume.
pub(crate) fn members(
    name: &VolumeName,
    named: &[Selector],
    context: &Context,
) -> Result<Vec<PathBuf>, Failure> {
    paths(&selected(name, named, context)?)
}

/// As `members`, without those that are not found: one of them is dead.
pub(crate) fn members_there(
    name: &VolumeName,
    named: &[Selector],
    context: &Context,
) -> Result<Vec<PathBuf>, Failure> {
    let selected = selected(name, named, context)?;
    Ok(selected.iter().filter_map(|one| Some(locate(one).ok()?.path)).collect())
}

fn selected(
    name: &VolumeName,
    named: &[Selector],
    context: &Context,
) -> Result<Vec<Selector>, Failure> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let loaded = context.config()?;
    let volume = loaded.config.volume.into_iter().find(|volume| volume.name == *name);
    let volume = volume.ok_or_else(|| {
        let words = format!("volume {name}: no members are named and none are configured");
        Failure::new(Exit::Usage, words)
            .with_remedy(format!("name its devices or files behind {name}, or configure it"))
    })?;
    Ok(volume.members)
}
