//! CPU time of processes.

use anyhow::{Context, Result};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The processes whose CPU time an arm costs, kernel threads that work for them (submission
/// threads, io workers) included: the kernel keeps those as threads of the process.
#[derive(Debug)]
pub struct CpuMeter {
    clocks: Vec<ClockId>,
    pids: Vec<i32>,
}

impl CpuMeter {
    /// Counts this process and those named, each once.
    ///
    /// # Errors
    /// Names the process that does not exist.
    pub fn new(others: &[i32]) -> Result<Self> {
        let mut clocks = vec![ClockId::CLOCK_PROCESS_CPUTIME_ID];
        let own = std::process::id();
        for pid in others.iter().filter(|pid| u32::try_from(**pid) != Ok(own)) {
            let clock = clock_getcpuclockid(Pid::from_raw(*pid))
                .with_context(|| format!("no CPU clock for process {pid}: is it still running?"))?;
            clocks.push(clock);
        }
        Ok(Self { clocks, pids: others.to_vec() })
    }

    /// The processes beside this one.
    #[must_use]
    pub fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// CPU seconds of all of them since they began.
    ///
    /// # Errors
    /// When one of the processes has ended.
    pub fn seconds(&self) -> Result<f64> {
        let mut sum = 0.0;
        for clock in &self.clocks {
            let time = clock_gettime(*clock).context("a process ended while it was measured")?;
            sum += seconds_of(time.tv_sec(), time.tv_nsec());
        }
        Ok(sum)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a double holds 2^53 ns: 104 days to the ns")]
pub(super) fn seconds_of(seconds: i64, nanoseconds: i64) -> f64 {
    seconds as f64 + nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::CpuMeter;

    #[test]
    fn own_work_is_counted() {
        let meter = CpuMeter::new(&[]).unwrap();
        let before = meter.seconds().unwrap();
        let mut sum = 0_u64;
        while meter.seconds().unwrap() < before + 0.01 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }

    #[test]
    fn another_process_is_counted_and_a_dead_one_is_named() {
        let mut child = Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(CpuMeter::new(&[pid]).unwrap().seconds().unwrap() > 0.0);
        child.kill().unwrap();
        child.wait().unwrap();
        let said = CpuMeter::new(&[pid]).unwrap_err().to_string();
        assert!(said.contains(&pid.to_string()), "{said}");
    }
}
