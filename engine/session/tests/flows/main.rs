//! Flows between the real server and the real client, or a client without manners.

mod bells;
mod gpu;
mod gpu_faults;
mod gpu_refusals;
mod gpu_rig;
mod hostile;
mod leaks;
mod lingering;
mod poller;
mod real;
mod sessions;
mod shards;
mod sidecar;
mod stalled;
mod stores;
mod users;
