//! Flows between the real server and the real client, or a client without manners.

mod hostile;
mod leaks;
mod poller;
mod real;
mod sessions;
mod sidecar;
