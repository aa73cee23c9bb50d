//! The rule of `auto`: which of the modes that work is taken.
//!
//! A sidecar has no information whether its users wait for single blocks or move many, so no load
//! is given weight over another: a mode is worth its worst share of the best rate, over all loads
//! (the least regret). A mode that collapses anywhere is out, however fast it is elsewhere. Going
//! from cheap to expensive, a costlier mode replaces the chosen one only if its worst share is
//! better by a factor: `OWN_CORE` where it only polls on the poller's own core, which is less than
//! the trial's noise; `ANOTHER_CORE` where a kernel thread keeps a second core busy. With a second
//! core a host could run another poller instead. Such a mode must win two trials, and
//! over the better of what each mode has shown in them: on a shared disk it won six of 50 by luck
//! (16 cores, virtio), and the core is spent for the sidecar's whole life.

use crate::auto::trial::Trial;
use crate::uring::ModeName;

/// Fewest cores for a mode with a kernel thread: the poller and the kernel thread spin, the client
/// and everyone else need one each. Three spinning threads on two cores are a collapse (a 2-core
/// VM: 394 IOPS with a kernel thread against 18,500 without).
const CORES_MIN: usize = 4;

/// A mode on the poller's own core must beat a simpler one by this factor: less is noise.
const OWN_CORE: f64 = 1.05;

/// A mode that keeps a second core busy must beat a simpler one by this factor. On 16 cores its 5
/// to 10 % in the trial turned into 50 % more latency through the lanes.
const ANOTHER_CORE: f64 = 1.25;

/// Whether there are cores for a mode.
pub(super) fn admit(mode: ModeName, cores: impl FnOnce() -> usize) -> Result<(), String> {
    // Counting them reads some twenty files.
    if !mode.has_kernel_thread() {
        return Ok(());
    }
    match cores() {
        enough if enough >= CORES_MIN => Ok(()),
        few => Err(format!("its kernel thread needs {CORES_MIN} cores, there are {few}")),
    }
}

/// The mode to take after a trial, or after a second one.
pub(super) fn decide(trials: &mut [Trial], mut measure: impl FnMut(&mut [Trial])) -> ModeName {
    measure(trials);
    let chosen = choose(trials);
    if !chosen.has_kernel_thread() {
        return chosen;
    }
    let first = trials.to_vec();
    measure(trials);
    let second = choose(trials);
    if !second.has_kernel_thread() {
        return second;
    }
    // It must also win over the best that each mode has shown: a simpler one may have been unlucky
    // twice, at another load each time.
    let mut best = best_of(trials, &first);
    let third = choose(&best);
    if third == second || !third.has_kernel_thread() {
        return third;
    }
    best.retain(|trial| !trial.mode.has_kernel_thread());
    choose(&best)
}

/// Each mode's better rate at each load, of two trials; 0 where one of them failed or hung.
fn best_of(now: &[Trial], before: &[Trial]) -> Vec<Trial> {
    let mut best = now.to_vec();
    for (trial, before) in best.iter_mut().zip(before) {
        let (now, before) = (trial.rates_mut().into_iter().flatten(), before.rates());
        for (rate, was) in now.zip(before.unwrap_or_default()) {
            let both = [rate.reads_per_second, was.reads_per_second];
            let failed = both.contains(&0.0);
            rate.reads_per_second = if failed { 0.0 } else { both[0].max(both[1]) };
        }
    }
    best
}

/// The mode with the best trial; the plainest one where none works, so that its error is reported.
fn choose(trials: &[Trial]) -> ModeName {
    let working = || trials.iter().filter_map(|trial| Some((trial.mode, trial.rates()?)));
    let best_at =
        |load: usize| working().map(|(_, rates)| rates[load].reads_per_second).fold(0.0, f64::max);
    let mut held: Option<(ModeName, f64)> = None;
    for (mode, rates) in working() {
        let shares = rates.iter().enumerate().filter(|(load, _)| best_at(*load) > 0.0);
        let shares = shares.map(|(load, rate)| rate.reads_per_second / best_at(load));
        let worst = shares.fold(1.0, f64::min);
        let price = if mode.has_kernel_thread() { ANOTHER_CORE } else { OWN_CORE };
        if held.is_none_or(|(_, share)| worst > share * price) {
            held = Some((mode, worst));
        }
    }
    held.map_or(ModeName::Interrupt, |(mode, _)| mode)
}

#[cfg(test)]
pub(super) mod tests {
    use super::{admit, choose, decide};
    use crate::auto::{Trial, TrialRate, TrialResult};
    use crate::uring::ModeName;

    pub(in crate::auto) fn trial(mode: ModeName, rates: [f64; 3]) -> Trial {
        let loads = [(4096, 1), (4096, 32), (262_144, 8)].into_iter().zip(rates);
        let rates = loads.map(|((length_bytes, depth), reads_per_second)| TrialRate {
            length_bytes,
            depth,
            reads_per_second,
        });
        let (rates, features) = (rates.collect(), Vec::new());
        Trial { mode, result: TrialResult::Measured { rates, features } }
    }

    #[test]
    fn a_kernel_thread_needs_four_cores() {
        for mode in ModeName::ALL {
            assert_eq!(admit(mode, || 2).is_err(), mode.has_kernel_thread());
            assert_eq!(admit(mode, || 3).is_err(), mode.has_kernel_thread());
            assert!(admit(mode, || 4).is_ok());
        }
        assert!(admit(ModeName::Iopoll, || panic!("not requested")).is_ok());
        assert!(admit(ModeName::Sqpoll, || 2).unwrap_err().contains("there are 2"));
    }

    #[test]
    fn the_best_worst_case_wins_and_dearer_modes_must_be_worth_it() {
        use ModeName::{Interrupt, Iopoll, Sqpoll};
        let close = [trial(Interrupt, [100.0, 100.0, 100.0]), trial(Iopoll, [103.0, 104.0, 102.0])];
        assert_eq!(choose(&close), Interrupt);
        let collapse = [trial(Interrupt, [100.0; 3]), trial(Sqpoll, [2.0, 140.0, 100.0])];
        assert_eq!(choose(&collapse), Interrupt);
        let clear = [
            trial(Interrupt, [100.0, 100.0, 100.0]),
            trial(Iopoll, [150.0, 130.0, 100.0]),
            trial(Sqpoll, [150.0, 132.0, 100.0]),
        ];
        assert_eq!(choose(&clear), Iopoll);
        let failed = [trial(Interrupt, [0.0; 3]), trial(Iopoll, [0.0; 3])];
        assert_eq!(choose(&failed), Interrupt);
        assert_eq!(choose(&[]), Interrupt);
    }

    /// The numbers of a 16-core machine, where users of the lanes had worse latency with the
    /// kernel thread: a second core is not spent for a tenth.
    #[test]
    fn a_second_core_is_not_spent_for_a_tenth() {
        use ModeName::{Interrupt, Sqpoll};
        let tenth = [
            trial(Interrupt, [66_000.0, 259_000.0, 11_000.0]),
            trial(Sqpoll, [73_000.0, 272_000.0, 11_100.0]),
        ];
        assert_eq!(choose(&tenth), Interrupt);
        let half = [trial(Interrupt, [100.0; 3]), trial(Sqpoll, [150.0; 3])];
        assert_eq!(choose(&half), Sqpoll);
    }

    #[test]
    fn a_kernel_thread_must_win_twice() {
        use ModeName::{Interrupt, Sqpoll};
        let trial_of = |sqpoll: f64| [trial(Interrupt, [100.0; 3]), trial(Sqpoll, [sqpoll; 3])];
        let after = |rates: &[f64]| {
            let (mut trials, mut rates) = (trial_of(0.0), rates.iter());
            let measure = |trials: &mut [Trial]| {
                trials.clone_from_slice(&trial_of(*rates.next().expect("no more trials")));
            };
            let chosen = decide(&mut trials, measure);
            assert_eq!(rates.next(), None, "one trial too few");
            chosen
        };
        assert_eq!(after(&[110.0]), Interrupt);
        assert_eq!(after(&[150.0, 110.0]), Interrupt);
        assert_eq!(after(&[150.0, 140.0]), Sqpoll);
    }

    /// One of four alike drives: interrupts were slow at one load in each trial, by luck. They had
    /// shown 2.2 million reads a second at both.
    #[test]
    fn bad_luck_of_a_simpler_mode_at_another_load_each_time_is_no_win() {
        use ModeName::{Interrupt, Sqpoll};
        let sqpoll = trial(Sqpoll, [90_000.0, 2_349_887.0, 40_000.0]);
        let unlucky = [[88_000.0, 1_217_789.0, 39_000.0], [45_000.0, 2_196_654.0, 39_000.0]];
        let mut rates = unlucky.into_iter();
        let mut trials = [trial(Interrupt, [0.0; 3]), sqpoll.clone()];
        let chosen = decide(&mut trials, |trials| {
            trials[0] = trial(Interrupt, rates.next().expect("two trials"));
            trials[1] = sqpoll.clone();
        });
        assert_eq!(chosen, Interrupt);
    }

    #[test]
    fn a_mode_that_fails_in_one_of_two_trials_is_out() {
        use ModeName::{Interrupt, Iopoll, Sqpoll, SqpollIopoll};
        let after = |modes: &[(ModeName, [f64; 2])]| {
            let at = |round: usize| {
                modes.iter().map(|(mode, rates)| trial(*mode, [rates[round]; 3])).collect()
            };
            let (mut trials, mut round): (Vec<Trial>, _) = (at(0), 0..2);
            decide(&mut trials, |trials| {
                let now: Vec<Trial> = at(round.next().expect("two trials"));
                trials.clone_from_slice(&now);
            })
        };
        let hung = [(Interrupt, [100.0, 100.0]), (Iopoll, [120.0, 0.0]), (Sqpoll, [160.0, 160.0])];
        assert_eq!(after(&hung), Sqpoll);
        let unlucky =
            [(Interrupt, [140.0, 90.0]), (Iopoll, [0.0, 135.0]), (Sqpoll, [180.0, 170.0])];
        assert_eq!(after(&unlucky), Sqpoll, "140 x 1.25 is less");
        let simple = [(Interrupt, [150.0, 90.0]), (Iopoll, [0.0, 125.0]), (Sqpoll, [190.0, 170.0])];
        assert_eq!(after(&simple), Sqpoll);
        // Each of two such modes has won once: none has twice.
        let two =
            [(Interrupt, [100.0, 100.0]), (Sqpoll, [200.0, 130.0]), (SqpollIopoll, [130.0, 190.0])];
        assert_eq!(after(&two), Interrupt);
    }
}
