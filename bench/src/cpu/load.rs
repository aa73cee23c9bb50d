//! How much others work on this machine while the benchmark runs.

use std::fs;

use anyhow::Result;
use kvrail_device::{Clock, MonotonicClock};
use serde::{Deserialize, Serialize};

use crate::cpu::machine::{ProcessKind, STAT_STEP_NS, seconds_of_all};
use crate::cpu::process::CpuMeter;

/// From this share of all cores' time on, figures are not comparable. A quiet machine's daemons
/// take less than a hundredth.
const BUSY_PERCENT: f64 = 5.0;

/// The load of other processes on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineLoad {
    /// Load average of the minute before the benchmark began.
    pub average: f64,
    /// Percent of the ten seconds before in which some task waited for a CPU, where the kernel
    /// counts pressure.
    pub waiting_percent: Option<f64>,
    /// Percent of all cores' time that other processes took while the benchmark ran.
    pub others_percent: f64,
    /// Percent of all cores' time that the hypervisor gave to others meanwhile.
    pub steal_percent: f64,
}

impl MachineLoad {
    /// Whether figures of this run may not be compared with others.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.others_percent + self.steal_percent >= BUSY_PERCENT
    }

    /// The figures in words.
    #[must_use]
    pub fn words(&self) -> String {
        let Self { average, others_percent, steal_percent, .. } = self;
        let waiting = self
            .waiting_percent
            .map(|percent| format!(", tasks waited {percent:.0} % of the time"));
        format!(
            "other processes took {others_percent:.0} % of its CPU time, the hypervisor \
             {steal_percent:.0} % (steal); load average at the start {average:.1}{}",
            waiting.unwrap_or_default()
        )
    }
}

/// Measures a `MachineLoad`, from its making on.
#[derive(Debug)]
pub struct LoadMeter {
    ours: CpuMeter,
    begin: MachineLoad,
    before: Option<CpuReading>,
}

/// CPU seconds since the machine started, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CpuReading {
    at_ns: u64,
    /// In programs and in system calls, of all processes and the kernel's threads.
    working: f64,
    stolen: f64,
    cores: u32,
    ours: f64,
    kernel: f64,
}

impl LoadMeter {
    /// Begins. `ours` are the processes that are not others.
    #[must_use]
    pub fn begin(ours: CpuMeter) -> Self {
        let begin = MachineLoad {
            average: first_number(&read("/proc/loadavg")).unwrap_or(0.0),
            waiting_percent: waiting_percent(&read("/proc/pressure/cpu")),
            ..MachineLoad::default()
        };
        let mut meter = Self { ours, begin, before: None };
        meter.before = meter.mark().ok().flatten();
        meter
    }

    /// The load since then. Zeroes where the kernel does not show it.
    ///
    /// # Errors
    /// When one of our processes has ended.
    pub fn load(&self) -> Result<MachineLoad> {
        let Some((before, now)) = self.before.zip(self.mark()?) else { return Ok(self.begin) };
        let all = (now.at_ns - before.at_ns) as f64 / 1e9 * f64::from(now.cores);
        let percent = |seconds: f64| (seconds / all * 100.0).clamp(0.0, 100.0);
        let others = |of: &CpuReading| of.working - of.ours - of.kernel;
        Ok(MachineLoad {
            others_percent: percent(others(&now) - others(&before)),
            steal_percent: percent(now.stolen - before.stolen),
            ..self.begin
        })
    }

    fn mark(&self) -> Result<Option<CpuReading>> {
        let at_ns = MonotonicClock.now_ns();
        let Some((working, stolen, cores)) = working_and_stolen(&read("/proc/stat")) else {
            return Ok(None);
        };
        let ours = self.ours.seconds()? + children_seconds(&read("/proc/self/stat"));
        let kernel = seconds_of_all(ProcessKind::KernelThread, &[]).values().sum();
        Ok(Some(CpuReading { at_ns, working, stolen, cores, ours, kernel }))
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Seconds of the children of a process that have ended, as fio has, from its `stat`.
fn children_seconds(text: &str) -> f64 {
    // Names may hold blanks and brackets: the numbers begin behind the last bracket.
    let numbers = text.rsplit_once(')').map_or("", |(_, numbers)| numbers);
    let steps = numbers.split_whitespace().skip(13).take(2).flat_map(str::parse::<u64>);
    (steps.sum::<u64>() * STAT_STEP_NS) as f64 / 1e9
}

fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// `some avg10=1.53 avg60=...`
fn waiting_percent(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("avg10=")?.parse().ok())
}

/// Seconds in programs and system calls, seconds stolen, and cores, from `/proc/stat`. Interrupts
/// belong to no process and have columns of their own.
fn working_and_stolen(text: &str) -> Option<(f64, f64, u32)> {
    let numbers: Vec<f64> =
        text.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
    let [user, nice, system, _idle, _waiting, _irq, _softirq, stolen, ..] = numbers[..] else {
        return None;
    };
    let a_core = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    let cores = u32::try_from(text.lines().filter(a_core).count()).ok()?;
    let step = STAT_STEP_NS as f64 / 1e9;
    Some(((user + nice + system) * step, stolen * step, cores))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::{
        LoadMeter, MachineLoad, children_seconds, first_number, waiting_percent, working_and_stolen,
    };
    use crate::cpu::CpuMeter;

    #[test]
    fn the_kernels_files_are_read() {
        let stat = "cpu  200 100 300 5000 7 8 9 50 0 0\ncpu0 1 1\ncpu1 1 1\nintr 5\n";
        assert_eq!(working_and_stolen(stat), Some((6.0, 0.5, 2)));
        assert_eq!(working_and_stolen("intr 5\n"), None);
        assert_eq!(first_number("3.31 2.21 1.00 6/124 18679\n"), Some(3.31));
        let pressure = "some avg10=1.53 avg60=0.6 avg300=0.2 total=9\nfull avg10=0.00 total=0\n";
        assert_eq!(waiting_percent(pressure), Some(1.53));
        assert_eq!(waiting_percent(""), None);
        let own = "7 (a) b) R 1 7 7 0 -1 4194304 9 9 9 9 100 50 30 20 20 0 1 0 12\n";
        assert_eq!(children_seconds(own), 0.5);
        assert_eq!(children_seconds(""), 0.0);
    }

    #[test]
    fn others_and_steal_together_make_it_busy() {
        let load = |others_percent, steal_percent| MachineLoad {
            others_percent,
            steal_percent,
            ..MachineLoad::default()
        };
        assert!(!load(1.0, 0.5).is_busy() && load(40.0, 0.0).is_busy());
        assert!(load(0.0, 9.0).is_busy() && load(3.0, 3.0).is_busy());
        let words = load(40.0, 3.0).words();
        assert!(words.contains("40 %") && words.contains("3 % (steal)"), "{words}");
    }

    /// A spinning neighbour is seen with the time of its own clock; a process of ours is not.
    #[test]
    fn a_neighbour_is_seen_and_our_own_is_not() {
        let spin = || {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap()
        };
        let mut child = spin();
        let pid = i32::try_from(child.id()).unwrap();
        let clock = CpuMeter::new(&[pid]).unwrap();
        let own = CpuMeter::new(&[]).unwrap();
        let used = || clock.seconds().unwrap() - own.seconds().unwrap();
        let without = LoadMeter::begin(CpuMeter::new(&[]).unwrap());
        let with = LoadMeter::begin(CpuMeter::new(&[pid]).unwrap());
        let before = used();
        while used() < before + 0.5 {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let (seen, unseen) = (without.load().unwrap(), with.load().unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        // Both looked at the same time at the same others: they differ by that neighbour.
        assert!(seen.others_percent > unseen.others_percent, "{seen:?} {unseen:?}");
    }
}
