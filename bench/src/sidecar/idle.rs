//! The cost of an idle sidecar.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use kvrail_client::Client;

use crate::cpu::CpuMeter;
use crate::report::SidecarCost;

/// After the last request, so that every spin ladder has ended.
const SETTLE: Duration = Duration::from_millis(200);
/// How long the idle sidecar is watched.
const WATCH: Duration = Duration::from_millis(800);

/// The cost of an idle sidecar, and its pollers' faults since they started.
///
/// # Errors
/// When one of its processes has ended, or it does not answer.
pub fn cost(client: &Client, pids: &[i32]) -> Result<SidecarCost> {
    let (idle_cpu_percent, resident_bytes) = watch(pids)?;
    let status = client.status()?;
    let poller_allocations =
        status.pollers.iter().filter_map(|poller| poller.counters.allocations).sum();
    let stores_bytes = status.shards.iter().map(|shard| shard.memory_bytes).sum();
    Ok(SidecarCost { idle_cpu_percent, resident_bytes, stores_bytes, poller_allocations })
}

/// Percent of a core, and bytes.
fn watch(pids: &[i32]) -> Result<(f64, u64)> {
    let (own, all) = (CpuMeter::new(&[])?, CpuMeter::new(pids)?);
    let used = || Ok::<f64, anyhow::Error>(all.seconds()? - own.seconds()?);
    thread::sleep(SETTLE);
    let (begun, before) = (Instant::now(), used()?);
    thread::sleep(WATCH);
    let cpu = used()? - before;
    let percent = (cpu / begun.elapsed().as_secs_f64() * 100.0).max(0.0);
    Ok((percent, pids.iter().map(|pid| resident_bytes(*pid)).sum()))
}

/// Resident memory of a process without what it shares (arenas, lanes), from its status.
fn resident_bytes(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    (kib("RssAnon:").unwrap_or(0) + kib("RssFile:").unwrap_or(0)) << 10
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::watch;

    #[test]
    fn a_process_is_watched() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let (percent, resident) = watch(&[i32::try_from(child.id()).unwrap()]).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(percent >= 0.0 && resident > 0);
    }
}
