//! The sidecar: opened in a written order, run, stopped in the reverse one.
//!
//! Signals and volumes first, then the pollers of GPUs, then those of the devices, then the door
//! for clients. Nothing here is on a data path.

mod changed_file;
mod descriptors;
mod device_recovery;
mod devices;
mod drive_health;
mod early_stop;
mod file_sizes;
mod gpus;
mod host;
mod late_drives;
mod log;
mod log_queue;
mod member_changes;
mod membership;
mod memory;
mod metrics;
mod numa;
mod parent;
mod plan;
mod policy;
mod reload;
mod report;
mod report_extras;
mod sandbox;
mod sidecar;
mod signals;
mod stores;
mod takeover;
mod target;
mod volumes;

pub(crate) use changed_file::exit_on_change;
pub(crate) use early_stop::EarlyStop;
pub(crate) use host::check_host;
pub(crate) use late_drives::await_drives;
pub(crate) use log::log_to_stderr;
pub(crate) use parent::{Parent, temporary};
pub(crate) use reload::{Reload, SetLog};
pub(crate) use sandbox::confine;
pub(crate) use sidecar::Sidecar;
