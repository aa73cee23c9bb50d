//! CPU time of the whole machine, less that of everybody else's processes.

use std::collections::BTreeMap;
use std::fs;

use kvrail_device::{Clock, MonotonicClock};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::cpu::process::seconds_of;

/// Nanoseconds of one step of `/proc/stat`: USER_HZ is 100 on every architecture we run on.
pub(super) const STAT_STEP_NS: u64 = 10_000_000;

/// Where the idle time of the cores is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleSource {
    /// `/proc/timer_list`, for root: to the nanosecond.
    Timers,
    /// `/proc/stat`: in steps of 10 ms.
    Statistics,
}

/// Reads the idle time of all cores.
#[derive(Clone, Copy, Debug)]
pub struct MachineMeter {
    source: IdleSource,
    cores: u32,
}

/// CPU seconds of processes that do not belong to the benchmark, by process id.
#[derive(Clone, Debug, Default)]
pub(super) struct MachineTimes {
    neighbours: BTreeMap<i32, f64>,
}

/// Kinds of process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessKind {
    /// Somebody's program.
    Program,
    /// A thread of the kernel's own.
    KernelThread,
}

impl MachineTimes {
    /// Looks at every process but these and the kernel's own threads: what those do is done for
    /// us, and counted as ours.
    pub(super) fn of_neighbours(ours: &[i32]) -> Self {
        Self { neighbours: seconds_of_all(ProcessKind::Program, ours) }
    }

    /// Seconds that neighbours used since an earlier mark. Of those that came since, all; of those
    /// that went, nothing is known.
    pub(super) fn since(&self, earlier: &Self) -> f64 {
        let before = |pid| earlier.neighbours.get(pid).copied().unwrap_or(0.0);
        self.neighbours.iter().map(|(pid, seconds)| (seconds - before(pid)).max(0.0)).sum()
    }
}

/// CPU seconds of every process of this kind but this one and `ours`, by process id.
pub(super) fn seconds_of_all(kind: ProcessKind, ours: &[i32]) -> BTreeMap<i32, f64> {
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let others = pids.filter(|pid| *pid != own && !ours.contains(pid));
    let wanted = others.filter(|pid| kind_of(*pid) == Some(kind));
    wanted.filter_map(|pid| Some((pid, cpu_seconds(pid)?))).collect()
}

/// By the flags that the kernel shows to everybody; the link to its program only its owner may
/// read.
fn kind_of(pid: i32) -> Option<ProcessKind> {
    /// `PF_KTHREAD` of the kernel's `sched.h`.
    const KERNEL_THREAD: u32 = 0x0020_0000;
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Names may hold blanks and brackets: the numbers begin behind the last bracket.
    let flags = text.rsplit_once(')')?.1.split_whitespace().nth(6)?.parse::<u32>().ok()?;
    Some(if flags & KERNEL_THREAD == 0 { ProcessKind::Program } else { ProcessKind::KernelThread })
}

fn cpu_seconds(pid: i32) -> Option<f64> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid)).ok()?;
    let time = clock_gettime(clock).ok()?;
    Some(seconds_of(time.tv_sec(), time.tv_nsec()))
}

impl MachineMeter {
    /// The best source that this process may read; nothing where the kernel shows neither.
    #[must_use]
    pub fn find() -> Option<Self> {
        // Cores that run tickless under load would look idle.
        let full = fs::read_to_string("/sys/devices/system/cpu/nohz_full").unwrap_or_default();
        let idles = full.trim().is_empty() || full.contains("null");
        let timers = fs::read_to_string("/proc/timer_list").ok().filter(|_| idles);
        if let Some(cores) = timers.and_then(|text| timers_idle_ns(&text, 0)).map(|idle| idle.1) {
            return Some(Self { source: IdleSource::Timers, cores });
        }
        let (_, cores) = statistics_idle_ns(&fs::read_to_string("/proc/stat").ok()?)?;
        Some(Self { source: IdleSource::Statistics, cores })
    }

    /// Its source, in words.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self.source {
            IdleSource::Timers => "idle time of all cores, to the nanosecond",
            IdleSource::Statistics => "idle time of all cores, in steps of 10 ms (more as root)",
        }
    }

    /// Seconds that all cores together have not idled, from some moment on.
    #[must_use]
    pub fn busy_seconds(&self) -> Option<f64> {
        let (path, now_ns) = match self.source {
            IdleSource::Timers => ("/proc/timer_list", MonotonicClock.now_ns()),
            IdleSource::Statistics => ("/proc/stat", MonotonicClock.now_ns()),
        };
        let text = fs::read_to_string(path).ok()?;
        let (idle_ns, cores) = match self.source {
            IdleSource::Timers => timers_idle_ns(&text, now_ns)?,
            IdleSource::Statistics => statistics_idle_ns(&text)?,
        };
        // A core that went on- or offline since would be a jump.
        (cores == self.cores)
            .then(|| (u128::from(now_ns) * u128::from(cores)) as f64 / 1e9 - idle_ns as f64 / 1e9)
    }
}

/// Idle nanoseconds of all cores, and how many there are. The sums are brought up to date when a
/// core leaves idling and at every interrupt, so at least at every tick. A core whose tick is
/// stopped has been idling since its entry, which its sum does not hold yet.
fn timers_idle_ns(text: &str, now_ns: u64) -> Option<(u64, u32)> {
    let (mut idle_ns, mut cores) = (0, 0);
    let (mut entered, mut tickless) = (0, false);
    for line in text.lines() {
        let Some((key, value)) = line.trim_start().split_once(':') else { continue };
        let number = || value.split_whitespace().next()?.parse::<u64>().ok();
        match key.trim_end() {
            "cpu" => cores += 1,
            ".idle_entrytime" => entered = number()?,
            ".tick_stopped" => tickless = number()? == 1,
            ".idle_sleeptime" => {
                idle_ns += number()?;
                if tickless {
                    idle_ns += now_ns.saturating_sub(entered);
                }
            }
            ".iowait_sleeptime" => idle_ns += number()?,
            _ => {}
        }
    }
    (cores > 0 && idle_ns > 0).then_some((idle_ns, cores))
}

/// The same from `/proc/stat`: the fourth and fifth number of each core, idle and waiting for I/O.
fn statistics_idle_ns(text: &str) -> Option<(u64, u32)> {
    let (mut idle_ns, mut cores) = (0, 0);
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("cpu") else { continue };
        if !rest.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let mut numbers = rest.split_whitespace().skip(4).map(str::parse::<u64>);
        idle_ns += (numbers.next()?.ok()? + numbers.next()?.ok()?) * STAT_STEP_NS;
        cores += 1;
    }
    (cores > 0).then_some((idle_ns, cores))
}

#[cfg(test)]
mod tests {
    use super::{
        MachineMeter, MachineTimes, ProcessKind, kind_of, seconds_of_all, statistics_idle_ns,
        timers_idle_ns,
    };

    #[test]
    fn idle_time_is_read_from_the_timer_list() {
        let text = "Timer List Version: v0.9\ncpu: 0\n  .tick_stopped : 0\n  \
                    .idle_entrytime : 500 nsecs\n  .idle_sleeptime : 1000 nsecs\n  \
                    .iowait_sleeptime: 30 nsecs\ncpu: 1\n  .tick_stopped : 1\n  \
                    .idle_entrytime : 900 nsecs\n  .idle_sleeptime : 2000 nsecs\n  \
                    .iowait_sleeptime: 0 nsecs\n";
        assert_eq!(timers_idle_ns(text, 950), Some((1000 + 30 + 2000 + 50, 2)));
        assert_eq!(timers_idle_ns("nothing", 950), None);
    }

    #[test]
    fn idle_time_is_read_from_the_statistics() {
        let text = "cpu  9 9 9 9 9\ncpu0 1 2 3 100 5 0 0\ncpu1 1 2 3 200 7 0 0\nintr 5\n";
        assert_eq!(statistics_idle_ns(text), Some((312 * 10_000_000, 2)));
        assert_eq!(statistics_idle_ns("intr 5\n"), None);
    }

    #[test]
    fn this_machine_is_busy_while_it_is() {
        let Some(meter) = MachineMeter::find() else {
            println!("skipped: neither /proc/timer_list nor /proc/stat can be read");
            return;
        };
        let before = meter.busy_seconds().unwrap();
        let begun = std::time::Instant::now();
        while begun.elapsed().as_millis() < 200 {
            std::hint::spin_loop();
        }
        assert!(meter.busy_seconds().unwrap() > before, "{}", meter.words());
    }

    #[test]
    fn neighbours_are_others() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mark = MachineTimes::of_neighbours(&[1]);
        assert!(!mark.neighbours.contains_key(&own) && !mark.neighbours.contains_key(&1));
        assert!(MachineTimes::default().since(&mark).abs() < f64::EPSILON);
    }

    /// Also of processes whose program only another user may look at.
    #[test]
    fn programs_and_kernel_threads_are_told_apart_by_what_everybody_may_read() {
        assert_eq!(kind_of(1), Some(ProcessKind::Program));
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(kind_of(own), Some(ProcessKind::Program));
        let threads = seconds_of_all(ProcessKind::KernelThread, &[]);
        assert!(!threads.contains_key(&1) && !threads.contains_key(&own));
        // In a container there are none to be seen.
        let first = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
        assert!(first.trim() != "kthreadd" || threads.contains_key(&2));
    }
}
