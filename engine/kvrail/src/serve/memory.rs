//! The pages of arenas, tried before a client asks for them.

use kvrail_device::{ProbeResult, probe_memory};

use kvrail_cli::config::Config;
use kvrail_cli::failure::{Exit, Failure};

/// Registers and reads to pages as `memory.pages` has them.
///
/// # Errors
/// `Failure` names the key and its value where those pages are not to be had.
pub(super) fn probe(config: &Config) -> Result<ProbeResult, Failure> {
    let pages = config.memory.pages.size();
    probe_memory(pages, config.device.queue_depth).map_err(|error| {
        let key = pages.map(|page| format!("memory.pages = {:?}: ", page.name()));
        Failure::new(Exit::Refused, format!("{}{error}", key.unwrap_or_default()))
    })
}
