//! What the sidecar costs while nobody asks for anything.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::cpu::CpuMeter;
use crate::report::SidecarCost;

/// After the last request, so that every spin ladder has ended.
const SETTLE: Duration = Duration::from_millis(200);
/// How long the idle sidecar is watched.
const WATCH: Duration = Duration::from_millis(800);

/// Watches idle processes; nothing where there are none.
///
/// # Errors
/// When one of them has ended.
pub fn cost(pids: &[i32]) -> Result<Option<SidecarCost>> {
    if pids.is_empty() {
        return Ok(None);
    }
    let (own, all) = (CpuMeter::new(&[])?, CpuMeter::new(pids)?);
    let used = || Ok::<f64, anyhow::Error>(all.seconds()? - own.seconds()?);
    thread::sleep(SETTLE);
    let (begun, before) = (Instant::now(), used()?);
    thread::sleep(WATCH);
    let cpu = used()? - before;
    let idle_cpu_percent = (cpu / begun.elapsed().as_secs_f64() * 100.0).max(0.0);
    let resident_bytes = pids.iter().map(|pid| resident_bytes(*pid)).sum();
    Ok(Some(SidecarCost { idle_cpu_percent, resident_bytes }))
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

    use super::cost;

    #[test]
    fn a_process_is_watched() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let found = cost(&[i32::try_from(child.id()).unwrap()]).unwrap().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.idle_cpu_percent >= 0.0);
        assert!(found.resident_bytes > 0);
        assert!(cost(&[]).unwrap().is_none());
    }
}
