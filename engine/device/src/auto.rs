//! Picks the ring mode by trying: which modes work on this device, which have a core to run on,
//! and how fast each reads. Reads only, never writes; at most `BUDGET` in all.

use std::sync::Arc;
use std::time::Duration;

use kvrail_memory::HeapBlock;

use crate::contract::Device;
use crate::error::DeviceError;
use crate::mechanism::Mechanism;
use crate::system::cores;
use crate::trial::{AT, Load, reads_per_second};
use crate::uring::{ModeName, UringOptions};

/// Time for all measurements together.
const BUDGET: Duration = Duration::from_millis(180);

/// Each candidate is measured this often at each load, in turn with the others; the best counts.
const ROUNDS: u32 = 2;

/// Fewest cores for a mode with a kernel thread: the poller and the kernel thread spin, the client
/// and everyone else need one each. Three spinning threads on two cores are a collapse (a 2-core
/// VM: 394 IOPS with a kernel thread against 18,500 without).
const CORES_MIN: usize = 4;

/// A mode must beat a simpler one by this factor: less is noise, and the simpler one costs less
/// CPU.
const WORTH_IT: f64 = 1.05;

/// What is timed: latency, rate, and large blocks.
const LOADS: [Load; 3] = [
    Load { length: 4 << 10, depth: 1 },
    Load { length: 4 << 10, depth: 32 },
    Load { length: 256 << 10, depth: 8 },
];

/// Modes from cheap to dear in CPU.
const BY_COST: [ModeName; 4] =
    [ModeName::Interrupt, ModeName::Iopoll, ModeName::Sqpoll, ModeName::SqpollIopoll];

/// A mode that works here, and its reads a second at each load.
struct Candidate {
    mode: ModeName,
    rates: [f64; LOADS.len()],
}

/// Opens the device in the mode found best.
pub(crate) fn open(options: UringOptions) -> Result<Mechanism, DeviceError> {
    let mut devices = Vec::new();
    let mut refused = Vec::new();
    for mode in BY_COST {
        match admit(mode, cores()) {
            Err(reason) => refused.push(format!("{mode} not tried ({reason})")),
            Ok(()) => match ready(mode, &options) {
                Ok(device) => devices.push((mode, device)),
                Err(error) => refused.push(format!("{mode} does not work ({error})")),
            },
        }
    }
    let (mode, found) = match devices.as_slice() {
        // Nothing works: say why in the plainest mode.
        [] => (ModeName::Interrupt, "it is tried last".to_owned()),
        [(only, _)] => (*only, "the only mode left".to_owned()),
        _ => {
            let candidates = measure(&mut devices);
            let mode = choose(&candidates);
            (mode, describe(&candidates))
        }
    };
    drop(devices);
    let refused = refused.join("; ");
    let separator = if refused.is_empty() { "" } else { "; " };
    let reason = format!("auto: {mode}: {found}{separator}{refused}");
    Mechanism::open_in(mode, UringOptions { reason, ..options })
}

/// Whether there are cores for a mode.
fn admit(mode: ModeName, cores: usize) -> Result<(), String> {
    if mode.has_kernel_thread() && cores < CORES_MIN {
        return Err(format!("its kernel thread needs {CORES_MIN} cores, there are {cores}"));
    }
    Ok(())
}

/// The device in one mode, with a buffer to read to.
fn ready(mode: ModeName, options: &UringOptions) -> Result<Mechanism, DeviceError> {
    let mut device = Mechanism::open_in(mode, options.duplicate()?)?;
    let largest = LOADS.iter().map(|load| load.length).max().unwrap_or_default();
    device.attach(AT, Arc::new(HeapBlock::new(largest as usize)))?;
    Ok(device)
}

/// Times every device at every load that fits, in turns.
fn measure(devices: &mut [(ModeName, Mechanism)]) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> =
        devices.iter().map(|(mode, _)| Candidate { mode: *mode, rates: [0.0; 3] }).collect();
    let turns = u32::try_from(devices.len() * LOADS.len()).expect("a dozen") * ROUNDS;
    let span = BUDGET / turns;
    for _ in 0..ROUNDS {
        for (candidate, (_, device)) in candidates.iter_mut().zip(devices.iter_mut()) {
            for (rate, load) in candidate.rates.iter_mut().zip(LOADS) {
                let fits = device.description().capacity_bytes >= u64::from(load.length);
                let measured = if fits { reads_per_second(device, load, span) } else { None };
                *rate = rate.max(measured.unwrap_or_default());
            }
        }
    }
    candidates
}

/// The candidate whose worst rate, relative to the best at each load, is best; a dearer one only
/// if it is worth it.
fn choose(candidates: &[Candidate]) -> ModeName {
    let best_at = |load: usize| candidates.iter().map(|one| one.rates[load]).fold(0.0, f64::max);
    let worst_share = |candidate: &Candidate| {
        let shares = (0..LOADS.len()).filter(|load| best_at(*load) > 0.0);
        shares.map(|load| candidate.rates[load] / best_at(load)).fold(1.0, f64::min)
    };
    let mut chosen = &candidates[0];
    for candidate in &candidates[1..] {
        if worst_share(candidate) > worst_share(chosen) * WORTH_IT {
            chosen = candidate;
        }
    }
    chosen.mode
}

fn describe(candidates: &[Candidate]) -> String {
    let rates = candidates.iter().map(|candidate| {
        let [one, many, large] = candidate.rates;
        format!("{} {one:.0}/{many:.0}/{large:.0}", candidate.mode)
    });
    let rates: Vec<String> = rates.collect();
    let loads = "4 KiB depth 1 / 4 KiB depth 32 / 256 KiB depth 8";
    format!("reads a second at {loads}: {}", rates.join(", "))
}

#[cfg(test)]
mod tests {
    use super::{Candidate, admit, choose, describe};
    use crate::uring::ModeName;

    fn candidate(mode: ModeName, rates: [f64; 3]) -> Candidate {
        Candidate { mode, rates }
    }

    #[test]
    fn a_kernel_thread_needs_four_cores() {
        for mode in ModeName::ALL {
            assert_eq!(admit(mode, 2).is_err(), mode.has_kernel_thread());
            assert_eq!(admit(mode, 3).is_err(), mode.has_kernel_thread());
            assert!(admit(mode, 4).is_ok());
        }
        assert!(admit(ModeName::Sqpoll, 2).unwrap_err().contains("there are 2"));
    }

    #[test]
    fn the_best_worst_case_wins_and_dearer_modes_must_be_worth_it() {
        use ModeName::{Interrupt, Iopoll, Sqpoll};
        let close =
            [candidate(Interrupt, [100.0, 100.0, 100.0]), candidate(Sqpoll, [103.0, 104.0, 102.0])];
        assert_eq!(choose(&close), Interrupt);
        let collapse =
            [candidate(Interrupt, [100.0, 100.0, 100.0]), candidate(Sqpoll, [2.0, 140.0, 100.0])];
        assert_eq!(choose(&collapse), Interrupt);
        let clear = [
            candidate(Interrupt, [100.0, 100.0, 100.0]),
            candidate(Iopoll, [150.0, 130.0, 100.0]),
            candidate(Sqpoll, [150.0, 132.0, 100.0]),
        ];
        assert_eq!(choose(&clear), Iopoll);
        let failed = [candidate(Interrupt, [0.0; 3]), candidate(Iopoll, [0.0; 3])];
        assert_eq!(choose(&failed), Interrupt);
    }

    #[test]
    fn the_reason_shows_the_numbers() {
        let text = describe(&[candidate(ModeName::Interrupt, [18_500.4, 45_000.0, 7.0])]);
        assert!(text.contains("interrupt 18500/45000/7") && text.contains("256 KiB depth 8"));
    }
}
