//! From a selector to what the kernel calls it today.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use kvrail_memory::Root;
use rustix::fs::{major, minor};

use crate::error::SelectorError;
use crate::host::{Namespace, NvmeHost, head_of};
use crate::selector::Selector;

/// The one namespace that a selector means. Never one of several, and never another.
///
/// # Errors
/// `SelectorError`: `Unknown` names the namespaces present, `Ambiguous` the candidates; the others
/// name the actual target of a path.
pub fn resolve(selector: &Selector, root: &Root) -> Result<Namespace, SelectorError> {
    let host = NvmeHost::read(root)?;
    let name = match selector {
        Selector::Path(path) => Some(name_of(path, root, &host)?),
        _ => None,
    };
    let mut found: Vec<&Namespace> = host
        .namespaces
        .iter()
        .filter(|namespace| match &name {
            Some(name) => namespace.name == *name,
            None => is_meant(selector, namespace),
        })
        .collect();
    let described =
        |all: &[&Namespace]| all.iter().map(|namespace| namespace.described()).collect();
    match (found.pop(), found.is_empty()) {
        (Some(namespace), true) => Ok(namespace.clone()),
        (None, _) => Err(SelectorError::Unknown {
            selector: selector.clone(),
            existing: described(&host.namespaces.iter().collect::<Vec<_>>()),
        }),
        (Some(last), false) => {
            found.push(last);
            let remedy = remedy(selector);
            let candidates = described(&found);
            Err(SelectorError::Ambiguous { selector: selector.clone(), candidates, remedy })
        }
    }
}

fn is_meant(selector: &Selector, namespace: &Namespace) -> bool {
    let number = |nsid: &Option<u32>| nsid.is_none_or(|nsid| nsid == namespace.nsid);
    let mut controllers = namespace.controllers.iter();
    match selector {
        Selector::Pci { address, nsid } => {
            number(nsid) && controllers.any(|controller| controller.pci == Some(*address))
        }
        Selector::Serial { serial, nsid } => {
            number(nsid) && controllers.any(|controller| controller.serial == *serial)
        }
        Selector::Wwid(wwid) => namespace.wwids.contains(wwid),
        Selector::Path(_) => false,
    }
}

fn remedy(selector: &Selector) -> &'static str {
    match selector {
        Selector::Pci { nsid: None, .. } | Selector::Serial { nsid: None, .. } => {
            "add /NSID, or name one as in the list"
        }
        Selector::Serial { .. } => "name one by its PCIe address",
        _ => "name one by its PCIe address and namespace id",
    }
}

/// The kernel name of the namespace that a path leads to.
fn name_of(path: &Path, root: &Root, host: &NvmeHost) -> Result<String, SelectorError> {
    let other = |what: String| SelectorError::NotNvme { path: path.to_owned(), what };
    let inside = root.path(path);
    let real = fs::canonicalize(&inside).map_err(|why| other(format!("not found ({why})")))?;
    let name = kernel_name(&real, root).ok_or_else(|| other("it is no device".into()))?;
    if let Some(disk) = disk_of(root, &name) {
        return Err(SelectorError::Partition { path: path.to_owned(), disk });
    }
    if let Some(controller) = host.controllers.iter().find(|controller| controller.name == name) {
        let own =
            host.namespaces.iter().filter(|namespace| namespace.controllers.contains(controller));
        let namespaces = own.map(Namespace::described).collect();
        return Err(SelectorError::Controller { path: path.to_owned(), namespaces });
    }
    let block = match name.strip_prefix("ng") {
        Some(rest) => format!("nvme{rest}"),
        None => name.clone(),
    };
    match head_of(&block) {
        None => Err(other(format!("it leads to {name}, which is no NVMe device"))),
        Some(head) if head != block => Err(SelectorError::OnePath { path: path.to_owned(), head }),
        Some(head) => Ok(head),
    }
}

/// The kernel's name of the device behind a node: directly in `/dev` nodes have their kernel name;
/// elsewhere (a chroot, a container) their number identifies it.
fn kernel_name(node: &Path, root: &Root) -> Option<String> {
    let last = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    if node.parent() == fs::canonicalize(root.path("dev")).ok().as_deref() {
        return last(node);
    }
    let about = fs::metadata(node).ok()?;
    let kind = match about.file_type() {
        kind if kind.is_block_device() => "block",
        kind if kind.is_char_device() => "char",
        _ => return None,
    };
    let number = format!("{}:{}", major(about.rdev()), minor(about.rdev()));
    last(&fs::canonicalize(root.path(format!("sys/dev/{kind}/{number}"))).ok()?)
}

/// The whole disk of a partition.
fn disk_of(root: &Root, name: &str) -> Option<String> {
    let place = fs::canonicalize(root.path(format!("sys/class/block/{name}"))).ok()?;
    place.join("partition").exists().then_some(())?;
    place.parent()?.file_name().map(|disk| disk.to_string_lossy().into_owned())
}
