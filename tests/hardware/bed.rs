//! The setup of a fault: a sidecar with volumes on namespaces of this machine.

use std::path::PathBuf;

use crate::machine;
use crate::rig::{Place, Sidecar, VOLUME, kvrail, run};

/// Bytes of each volume.
pub(crate) const VOLUME_BYTES: u64 = 32 << 20;

/// A place whose volume `kv` lies on one namespace, and perhaps `other` on another.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) place: Place,
}

/// The name of the second volume.
pub(crate) const OTHER: &str = "other";

impl Bed {
    /// Makes the volume `kv` on a namespace, to be driven in a mode.
    pub(crate) fn new(mode: &str, serial: &str, nsid: u32) -> Self {
        let mut place = Place::empty(0);
        place.members = vec![fresh(VOLUME, serial, nsid)];
        place.extra.clear(); // O_DIRECT is required, as it is by default
        place.configure(&format!("device.mode = {mode:?}"));
        Self { place }
    }

    /// Makes the volume `other` on another namespace.
    pub(crate) fn with_other(mut self, serial: &str, nsid: u32) -> Self {
        let member = fresh(OTHER, serial, nsid);
        self.place.configure(&format!("[[volume]]\nname = {OTHER:?}\nmembers = [{member:?}]"));
        self
    }

    pub(crate) fn serve(&self) -> Sidecar {
        Sidecar::start(&self.place)
    }
}

/// A namespace with a volume of that name and of nothing else.
fn fresh(name: &str, serial: &str, nsid: u32) -> PathBuf {
    let member = machine::namespace(serial, nsid);
    machine::wipe_label(&member);
    let size = format!("{}MiB", VOLUME_BYTES >> 20);
    let mut command = kvrail();
    command.args(["volume", "create", name, "--size", &size, "--stripe", "256KiB", "--quiet"]);
    // An earlier test may have left a volume there.
    run(command.arg("--force").arg(&member)).expect(0, &[]);
    member
}
