//! The trials: each mode on the device itself, a few milliseconds of reads at each load, in turns.

use std::sync::Arc;
use std::time::Duration;

use kvrail_memory::HeapBlock;
use serde::{Deserialize, Serialize};

use super::rule::{admit, decide};
use super::trial::{Trial, TrialRate, TrialResult};
use crate::any_device::AnyDevice;
use crate::contract::{Device, DirectIo};
use crate::error::DeviceError;
use crate::probe_reads::{AT, ProbeLoad, reads_per_second};
use crate::target::open_path;
use crate::uring::{ModeName, UringOptions};

/// Time for all measurements together.
const BUDGET: Duration = Duration::from_millis(250);

/// Time for the rate alone, where there is nothing to choose.
const RATE_SPAN: Duration = Duration::from_millis(10);

/// Each candidate is measured this often at each load, in turn with the others; the best counts.
const ROUNDS: u32 = 2;

/// The timed loads: latency, rate, and large blocks.
const LOADS: [ProbeLoad; 3] =
    [ProbeLoad { length: 4 << 10, depth: 1 }, ProbeLoad { length: 4 << 10, depth: 32 }, LARGE];

const LARGE: ProbeLoad = ProbeLoad { length: 256 << 10, depth: 8 };

/// Rates of the modes on one device, and the best one by them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Path of the device.
    pub path: String,
    /// The mode `auto` takes on it, unless it takes over that of a device that is alike.
    pub chosen: ModeName,
    /// One line: the mode, the numbers, and what was not tried.
    pub reason: String,
    /// Every mode, from cheap to expensive in CPU.
    pub trials: Vec<Trial>,
}

/// Tries every mode on a file or block device that may be in use, for a quarter of a second in
/// all; for another one if a mode with a kernel thread comes out first. `cores` is the number of
/// cores the sidecar may use. Reads only.
///
/// # Errors
/// `DeviceError` when the path cannot be opened. A mode's own failure is in its trial.
pub fn calibrate(path: &str, cores: usize) -> Result<Calibration, DeviceError> {
    let fd = open_path(path, DirectIo::Off)?;
    let options = UringOptions { direct: DirectIo::Optional, ..UringOptions::new(path, fd) };
    Ok(run(&options, cores, 1))
}

/// The same on an open device. Nothing is timed where fewer than `timed_from` modes work.
pub(super) fn run(options: &UringOptions, cores: usize, timed_from: usize) -> Calibration {
    let mut devices = Vec::new();
    let mut trials = Vec::new();
    for mode in ModeName::ALL {
        let result = match admit(mode, || cores).map(|()| ready(mode, options)) {
            Err(reason) => TrialResult::NotTried { reason },
            Ok(Err(error)) => TrialResult::Refused { reason: error.to_string() },
            Ok(Ok(device)) => {
                let features = device.description().features.clone();
                devices.push((trials.len(), device));
                TrialResult::Measured { rates: LOADS.map(unmeasured).to_vec(), features }
            }
        };
        trials.push(Trial { mode, result });
    }
    let timed = !devices.is_empty() && devices.len() >= timed_from;
    let chosen = decide(&mut trials, |trials| {
        if timed {
            measure(&mut devices, trials);
        }
    });
    let reason = describe(&options.path, chosen, &trials);
    Calibration { path: options.path.clone(), chosen, reason, trials }
}

fn unmeasured(load: ProbeLoad) -> TrialRate {
    TrialRate { length_bytes: load.length, depth: load.depth, reads_per_second: 0.0 }
}

/// The device in one mode, with a buffer to read to.
fn ready(mode: ModeName, options: &UringOptions) -> Result<AnyDevice, DeviceError> {
    let mut device = AnyDevice::open_in(mode, options.duplicate()?)?;
    let largest = LOADS.iter().map(|load| load.length).max().unwrap_or_default();
    device.attach(AT, Arc::new(HeapBlock::new(largest as usize)))?;
    Ok(device)
}

/// Times every device at every load that fits, in turns.
fn measure(devices: &mut [(usize, AnyDevice)], trials: &mut [Trial]) {
    let turns = u32::try_from(devices.len() * LOADS.len()).expect("some dozen") * ROUNDS;
    let span = BUDGET / turns;
    for round in 0..ROUNDS {
        for (at, device) in devices.iter_mut() {
            let TrialResult::Measured { rates, .. } = &mut trials[*at].result else { continue };
            if round == 0 {
                *rates = LOADS.map(unmeasured).to_vec();
            }
            for (rate, load) in rates.iter_mut().zip(LOADS) {
                let fits = device.description().capacity_bytes >= u64::from(load.length);
                let measured = if fits { reads_per_second(device, load, span) } else { None };
                rate.reads_per_second = rate.reads_per_second.max(measured.unwrap_or_default());
            }
        }
    }
}

/// Describes the result in one line.
fn describe(path: &str, chosen: ModeName, trials: &[Trial]) -> String {
    let working = trials.iter().filter_map(|trial| Some((trial.mode, trial.rates()?)));
    let working: Vec<_> = working.collect();
    let found = match working.as_slice() {
        [] => "it is tried last".to_owned(),
        [_] => "the only mode left".to_owned(),
        _ => {
            let rates: Vec<String> =
                working.iter().map(|(mode, rates)| shown(*mode, rates)).collect();
            let loads = "4 KiB depth 1 / 4 KiB depth 32 / 256 KiB depth 8";
            format!("reads a second at {loads}: {}", rates.join(", "))
        }
    };
    // Modes that are out for the same reason are named together.
    let mut others: Vec<(String, String)> = Vec::new();
    for trial in trials {
        let reason = match &trial.result {
            TrialResult::Measured { .. } => continue,
            TrialResult::NotTried { reason } => format!("not tried ({reason})"),
            TrialResult::Refused { reason } => format!("refused ({})", plain(path, trial, reason)),
        };
        match others.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, modes)) => *modes += &format!(", {}", trial.mode),
            None => others.push((reason, trial.mode.to_string())),
        }
    }
    let others = others.iter().map(|(reason, modes)| format!("; {modes} {reason}"));
    format!("{chosen}: {found}{}", others.collect::<String>())
}

/// Why a mode is refused, without the path and the mode, which the line has already.
fn plain<'a>(path: &str, trial: &Trial, reason: &'a str) -> &'a str {
    let reason =
        reason.strip_prefix(path).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(reason);
    let again = format!("mode {} does not work here; ", trial.mode);
    reason.strip_prefix(&again).unwrap_or(reason)
}

fn shown(mode: ModeName, rates: &[TrialRate]) -> String {
    let numbers: Vec<String> =
        rates.iter().map(|rate| format!("{:.0}", rate.reads_per_second)).collect();
    format!("{mode} {}", numbers.join("/"))
}

/// Bytes a second of large reads in this mode; measured again if the trials have no such number.
pub(super) fn bytes_per_second(found: &Calibration, options: &UringOptions) -> Option<u64> {
    let chosen = found.trials.iter().find(|trial| trial.mode == found.chosen)?;
    let timed = chosen.rates()?.last().map_or(0.0, |rate| rate.reads_per_second);
    if timed > 0.0 { moved(timed) } else { measured_bytes_per_second(found.chosen, options) }
}

/// The same of a device on which no mode was tried; `None` where it does not work in this one.
pub(super) fn measured_bytes_per_second(mode: ModeName, options: &UringOptions) -> Option<u64> {
    let mut device = ready(mode, options).ok()?;
    let fits = device.description().capacity_bytes >= u64::from(LARGE.length);
    moved(fits.then(|| reads_per_second(&mut device, LARGE, RATE_SPAN))??)
}

/// Bytes a second at this rate of large reads.
fn moved(reads_per_second: f64) -> Option<u64> {
    let each_ns = Duration::try_from_secs_f64(1.0 / reads_per_second).ok()?.as_nanos().max(1);
    u64::try_from(u128::from(LARGE.length) * 1_000_000_000 / each_ns).ok()
}

#[cfg(test)]
mod tests {
    use super::{Calibration, calibrate, describe};
    use crate::auto::rule::tests::trial;
    use crate::auto::{Trial, TrialResult};
    use crate::uring::ModeName;

    #[test]
    fn the_reason_shows_the_numbers_and_what_was_refused() {
        let trials = [
            trial(ModeName::Interrupt, [18_500.4, 45_000.0, 7.0]),
            trial(ModeName::Iopoll, [1.0, 2.0, 3.0]),
            Trial {
                mode: ModeName::Sqpoll,
                result: TrialResult::NotTried { reason: "too few cores".into() },
            },
            refused(ModeName::Hybrid, "/f: mode hybrid does not work here; no queues"),
            refused(ModeName::PassthroughIopoll, "/f: no namespace"),
            refused(ModeName::SqpollIopoll, "/f: mode sqpoll+iopoll does not work here; no queues"),
        ];
        let text = describe("/f", ModeName::Interrupt, &trials);
        assert!(text.starts_with("interrupt: ") && text.contains("256 KiB depth 8"), "{text}");
        assert!(text.contains("interrupt 18500/45000/7, iopoll 1/2/3; sqpoll not tried"), "{text}");
        let end = "(too few cores); hybrid, sqpoll+iopoll refused (no queues); passthrough+iopoll \
                   refused (no namespace)";
        assert!(text.ends_with(end), "{text}");
    }

    fn refused(mode: ModeName, reason: &str) -> Trial {
        Trial { mode, result: TrialResult::Refused { reason: reason.into() } }
    }

    #[test]
    fn a_file_is_calibrated_and_not_changed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
        let path = file.path().to_str().unwrap();
        let found = calibrate(path, 1).unwrap();
        assert_eq!(found.trials.len(), ModeName::ALL.len());
        assert_eq!(found.chosen, ModeName::Interrupt);
        // The caller requested numbers, so the only working mode is measured too.
        let rates = found.trials[0].rates().unwrap();
        assert!(rates.iter().all(|rate| rate.reads_per_second > 0.0), "{found:?}");
        let refused = found.trials.iter().filter(|trial| trial.rates().is_none());
        assert!(refused.clone().any(|trial| trial.mode == ModeName::Sqpoll), "{found:?}");
        assert!(std::fs::read(file.path()).unwrap().iter().all(|byte| *byte == 7));
        assert!(calibrate("/nonexistent", 1).is_err());
        let back: Calibration = round_trip(&found);
        assert_eq!(back, found);
    }

    fn round_trip(found: &Calibration) -> Calibration {
        serde_json::from_str(&serde_json::to_string(found).unwrap()).unwrap()
    }
}
