//! The poller's whole loop in one thread, with a device that does as the test says.

mod attaching;
mod bells;
mod checksums;
mod closing;
mod fairness;
mod heartbeat;
mod held;
mod mailbox;
mod planted;
mod presence;
mod requests;
mod rig;
mod serial;
mod traced;
mod writes;
