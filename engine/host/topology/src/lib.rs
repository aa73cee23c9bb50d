//! Where drives, RDMA NICs and GPUs sit on PCIe, and what lies between each pair.
//!
//! Owns the map of one machine at one moment and its drawings. Reads sysfs and procfs below a
//! root that tests replace; opens no device, changes nothing, never runs on a poller.
#![forbid(unsafe_code)]

mod address;
mod advice;
mod device;
mod gpu;
mod link;
mod map;
mod matrix;
mod nic;
mod path;
mod place;
mod port;
mod svg;
mod tree;

pub use device::{Detail, Device, DeviceKind};
pub use link::LinkSpeed;
pub use map::{Map, NumaNode};
pub use matrix::Pair;
pub use path::{PATH_KINDS, PathKind};
pub use place::PciPlace;
pub use port::RdmaPort;
pub use svg::svg;
pub use tree::{Branch, text, tree};
