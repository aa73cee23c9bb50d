//! The path kind of every pair.

use serde::Serialize;

use crate::device::Device;
use crate::map::Map;
use crate::path::PathKind;

/// The path between two devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pair {
    /// Name of the one.
    pub a: String,
    /// Name of the other.
    pub b: String,
    /// The path.
    pub path: PathKind,
}

impl Map {
    /// The path between two devices; a device and itself are `Same`.
    #[must_use]
    pub fn path(&self, a: &Device, b: &Device) -> PathKind {
        if a.name == b.name { PathKind::Same } else { PathKind::between(&a.place, &b.place) }
    }

    /// Every pair once.
    #[must_use]
    pub fn pairs(&self) -> Vec<Pair> {
        let mut pairs = Vec::new();
        for (index, a) in self.devices.iter().enumerate() {
            for b in &self.devices[index + 1..] {
                pairs.push(Pair { a: a.name.clone(), b: b.name.clone(), path: self.path(a, b) });
            }
        }
        pairs
    }
}
