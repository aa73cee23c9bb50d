//! Open files: as many as the process may have, and enough for a client, or no start.

use kvrail_memory::Topology;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::plan;
use kvrail_cli::config::Config;
use kvrail_cli::failure::{Exit, Failure};

/// Open descriptors of a sidecar besides its devices, with its temporary ones at start: standard
/// streams, log, socket and lock, bells, epoll sets.
const OWN: u64 = 32;

/// A poller's mailbox, bells and epoll set.
const EACH_POLLER: u64 = 6;

/// A device's ring, its second ring, its descriptors and what is asked about it at start.
const EACH_DEVICE: u64 = 8;

/// A GPU's staging memory, bells and the driver's own.
const EACH_GPU: u64 = 48;

/// A client's socket and process, an arena, and a queue but for its doorbells.
const CLIENT: u64 = 12;

/// Raises the limit of open files as far as it may go, and refuses a start after which no client
/// could have a queue.
///
/// # Errors
/// `Failure` with the number that is needed.
pub(super) fn provide(config: &Config, topology: &Topology) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A soft limit that stays is still looked at.
    let _raised = setrlimit(Resource::Nofile, raised);
    let devices = config.members();
    let cores = plan::cores_for(config, topology);
    let pollers = plan::poller_count(config, devices, devices, cores) as u64; // at most
    let devices = devices as u64;
    let gpus = config.gpu.devices.len() as u64;
    let need = OWN + CLIENT + (EACH_POLLER + 1) * pollers + EACH_DEVICE * devices + EACH_GPU * gpus;
    match getrlimit(Resource::Nofile).current {
        Some(have) if have < need => {
            let what = format!(
                "open files: {have} are allowed (RLIMIT_NOFILE), {need} are needed for {pollers} \
                 poller(s), {devices} device(s), {gpus} GPU(s) and one client"
            );
            let remedy = format!("raise the limit (LimitNOFILE={need} or more, ulimit -n {need})");
            Err(Failure::new(Exit::Refused, what).with_remedy(remedy))
        }
        _ => Ok(()),
    }
}
