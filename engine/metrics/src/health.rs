//! Whether a sidecar is well, and whether it can take clients; and why not, in words.

use kvrail_protocol::{SidecarState, StatusReport};

/// States of a member in which its blocks can be asked for.
const IN_SERVICE: [&str; 2] = ["warming", "serving"];

/// What is wrong with the process: nothing while every poller turns. What a restart would not
/// mend, such as a drive that is gone, is not here.
#[must_use]
pub fn health(report: &StatusReport) -> Vec<String> {
    let stalled = report.pollers.iter().filter_map(|poller| {
        let stall = poller.stalled.as_ref()?;
        let (index, seconds, kernel) = (poller.index, stall.for_s, &stall.kernel);
        Some(format!("poller {index} has not turned for {seconds} s: {kernel}"))
    });
    stalled.collect()
}

/// Why clients should go elsewhere; nothing while they are served. A store of several members
/// serves as long as one of them does.
#[must_use]
pub fn readiness(report: &StatusReport) -> Vec<String> {
    let draining = (report.sidecar.state == SidecarState::Draining)
        .then(|| "draining: what was accepted is finished, nothing new is taken".to_owned());
    let mut stores: Vec<&str> = report.shards.iter().map(|shard| shard.store.as_str()).collect();
    stores.dedup();
    let idle = stores.into_iter().filter_map(|store| {
        let members = || report.shards.iter().filter(|shard| shard.store == store);
        let serves = members().any(|shard| IN_SERVICE.contains(&shard.state.as_str()));
        let states: Vec<_> = members().map(|shard| shard.state.as_str()).collect();
        (!serves).then(|| format!("no member of store {store} serves: {}", states.join(", ")))
    });
    draining.into_iter().chain(idle).collect()
}
