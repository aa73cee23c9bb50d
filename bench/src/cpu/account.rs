//! The cost of an arm between two moments, in both accounts.

use anyhow::Result;

use crate::cpu::machine::{MachineMeter, MachineTimes};
use crate::cpu::process::CpuMeter;

/// CPU seconds of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuSeconds {
    /// Of the arm's processes and the kernel threads among them.
    pub processes: f64,
    /// Of all cores, interrupts included, less everybody else's processes; never less than the
    /// above. Nothing where the machine does not show it.
    pub whole: Option<f64>,
}

impl CpuSeconds {
    /// Scales to another time and takes off what the benchmark did for itself.
    #[must_use]
    pub fn adjusted(self, scale: f64, own_ns: u64) -> Self {
        let adjust = |seconds: f64| (seconds * scale - own_ns as f64 / 1e9).max(0.0);
        Self { processes: adjust(self.processes), whole: self.whole.map(adjust) }
    }
}

/// The meters of an arm.
#[derive(Debug)]
pub struct Meters {
    /// Its processes.
    pub processes: CpuMeter,
    /// The machine, where it can be read.
    pub machine: Option<MachineMeter>,
}

/// An account that is open.
#[derive(Debug)]
pub struct Account<'a> {
    meters: &'a Meters,
    mark: MachineTimes,
    processes: f64,
    busy: Option<f64>,
}

impl<'a> Account<'a> {
    /// Looks at everybody else, which takes a millisecond: before the time that counts. `begin`
    /// then starts it.
    #[must_use]
    pub fn open(meters: &'a Meters) -> Self {
        let mark = match meters.machine {
            Some(_) => MachineTimes::of_neighbours(meters.processes.pids()),
            None => MachineTimes::default(),
        };
        Self { meters, mark, processes: 0.0, busy: None }
    }

    /// The time that counts begins.
    ///
    /// # Errors
    /// When one of the arm's processes has ended.
    pub fn begin(&mut self) -> Result<()> {
        self.busy = self.meters.machine.as_ref().and_then(MachineMeter::busy_seconds);
        self.processes = self.meters.processes.seconds()?;
        Ok(())
    }

    /// The time that counts has ended.
    ///
    /// # Errors
    /// As `begin`.
    pub fn close(self) -> Result<CpuSeconds> {
        let processes = self.meters.processes.seconds()? - self.processes;
        let busy = self.meters.machine.as_ref().and_then(MachineMeter::busy_seconds);
        let whole = self.busy.zip(busy).map(|(before, after)| {
            let others =
                MachineTimes::of_neighbours(self.meters.processes.pids()).since(&self.mark);
            (after - before - others).max(processes)
        });
        Ok(CpuSeconds { processes, whole })
    }
}
