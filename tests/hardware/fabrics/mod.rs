//! NVMe over Fabrics in one machine, over software RDMA, TCP and loop: a target that
//! `kvrail target` makes, and nvme-cli as the host.

pub(crate) mod bytes;
mod network;
pub(crate) mod nvme_cli;
mod paths;
mod polled;
pub(crate) mod target;

use crate::machine::tool;
use crate::rig::Place;

/// A place whose volume lies on a connected namespace.
fn volume_on(device: &std::path::Path, bytes: u64) -> Place {
    tool(&format!("dd if=/dev/zero of={} bs=1M count=1 oflag=direct", device.display()));
    let mut place = Place::empty(0);
    place.members = vec![device.into()];
    place.create(bytes, "256KiB").expect(0, &[]);
    place
}
