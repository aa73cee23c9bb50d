//! Configuration of the control thread at its start.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use kvrail_protocol::SpinHints;
use kvrail_ring::Epoch;

use crate::gpus::ServedGpu;
use crate::policy::{NumaPolicy, Policy};
use crate::porter::Porter;
use crate::stores::ServedStore;

/// Identity of this sidecar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarIdentity {
    /// Number of this run.
    pub epoch: Epoch,
    /// Release, shown to clients.
    pub version: String,
}

/// The whole configuration of the control thread at its start.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Path of the session socket. Its directory is made (mode 0750) if it is missing.
    pub socket: PathBuf,
    /// Mode of the socket file, such as 0o660.
    pub socket_mode: u32,
    /// Rules for clients.
    pub policy: Policy,
    /// Where arenas lie.
    pub numa: NumaPolicy,
    /// Identity of this sidecar.
    pub identity: SidecarIdentity,
    /// Settings of clients' waits.
    pub spin: SpinHints,
    /// Remarks for the operator from the start; more are added while serving.
    pub notes: Vec<String>,
    /// The GPUs, none where there is nothing to do with them.
    pub gpus: Vec<ServedGpu>,
    /// The volumes that are stores.
    pub stores: Vec<ServedStore>,
    /// The reading end of the pipe whose other end all rings have registered.
    pub transfers: Option<Arc<OwnedFd>>,
    /// The program that takes in what clients send beside their words.
    pub porter: Porter,
}
