//! Attributes of this kernel's objects: read from existing objects, or from temporary ones. Those
//! have no device, no host and no port, so nothing can be reached through them.

use std::collections::BTreeSet;

use crate::error::TargetError;
use crate::facts::Features;
use crate::item::{Desired, Item};
use crate::place::{ObjectKind, place};
use crate::reconcile::Target;
use crate::record::RecordStore;
use crate::snapshot::{Node, Snapshot};
use crate::tree::Tree;

/// Name of the subsystem and of the host made for the moment.
const PROBE: &str = "nqn.2014-08.org.nvmexpress:uuid:6b767261-696c-5072-8f62-650000000001";

/// Features by the existing objects; none where one kind is missing.
#[must_use]
pub fn features(present: &Snapshot) -> Option<Features> {
    let of = |kind: ObjectKind| {
        let mut objects = present.objects().filter(|(path, _)| place(path) == Some(kind));
        let (path, _) = objects.next()?;
        let below = format!("{path}/");
        let files = present.nodes.iter().filter(|(_, node)| matches!(node, Node::File(_)));
        let names = files.filter_map(|(path, _)| path.strip_prefix(&below).map(str::to_owned));
        Some(names.collect::<BTreeSet<String>>())
    };
    Some(Features {
        subsystem: of(ObjectKind::Subsystem)?,
        namespace: of(ObjectKind::Namespace)?,
        port: of(ObjectKind::Port)?,
        host: of(ObjectKind::Host)?,
    })
}

impl<T: Tree, S: RecordStore> Target<T, S> {
    /// Features of the kernel's objects; makes temporary ones where none are there to show them.
    ///
    /// # Errors
    /// As `apply`.
    pub fn probe(&mut self) -> Result<Features, TargetError> {
        let present = self.snapshot()?;
        if let Some(features) = features(&present) {
            return Ok(features);
        }
        let ours = self.current(&present);
        let mut items = ours.items.clone();
        let ids = (1..=u16::MAX).rev().map(|id| format!("ports/{id}"));
        let port = ids.into_iter().find(|path| !present.has(path)).unwrap_or_default();
        let probes = [
            format!("hosts/{PROBE}"),
            format!("subsystems/{PROBE}"),
            format!("subsystems/{PROBE}/namespaces/1"),
            port,
        ];
        items.extend(probes.map(|path| Item::dir(path, Vec::new())));
        self.apply(&Desired::new(Vec::new(), items))?;
        let shown = features(&self.snapshot()?);
        self.apply(&ours)?;
        Ok(shown.unwrap_or_default())
    }
}
