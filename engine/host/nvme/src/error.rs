//! Why a name could not be resolved to a namespace, each with the remedy.

use std::path::PathBuf;

use kvrail_memory::TopologyError;
use thiserror::Error;

use crate::selector::Selector;

/// Which kind of failure it is; the command line makes an exit status of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The request makes no sense on this host.
    Usage,
    /// The system gave no answer.
    Failed,
}

/// Why a selector leads to no namespace.
#[derive(Clone, Debug, Error)]
pub enum SelectorError {
    /// Nothing on this host is called so.
    #[error("{selector}: no NVMe namespace of this host is that; it has {}", listed(existing))]
    Unknown {
        /// The requested selector.
        selector: Selector,
        /// The namespaces present, each with all its selectors.
        existing: Vec<String>,
    },
    /// Several are.
    #[error("{selector}: {} namespaces are that: {}; {remedy}",
        candidates.len(), listed(candidates))]
    Ambiguous {
        /// The requested selector.
        selector: Selector,
        /// Which ones, each with all it can be selected by.
        candidates: Vec<String>,
        /// How to distinguish them.
        remedy: &'static str,
    },
    /// A partition is no namespace.
    #[error("{}: it is a partition of {disk}, no namespace; name {disk}", path.display())]
    Partition {
        /// The requested path.
        path: PathBuf,
        /// Kernel name of the whole disk.
        disk: String,
    },
    /// One path of several to a namespace.
    #[error("{}: it is one path to {head}; name {head}: the kernel picks the path",
        path.display())]
    OnePath {
        /// The requested path.
        path: PathBuf,
        /// Kernel name of the namespace.
        head: String,
    },
    /// A controller is no namespace.
    #[error("{}: it is a controller, no namespace; name one of {}",
        path.display(), listed(namespaces))]
    Controller {
        /// The requested path.
        path: PathBuf,
        /// Its namespaces.
        namespaces: Vec<String>,
    },
    /// Something else than NVMe.
    #[error("{}: {what}; name an NVMe namespace: pci:, serial:, wwid: or its node", path.display())]
    NotNvme {
        /// The requested path.
        path: PathBuf,
        /// Its kind.
        what: String,
    },
    /// The host could not be read.
    #[error(transparent)]
    Unreadable(#[from] TopologyError),
}

impl SelectorError {
    /// Which kind of failure it is.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        match self {
            Self::Unreadable(_) => ErrorClass::Failed,
            _ => ErrorClass::Usage,
        }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}
