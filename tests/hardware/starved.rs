//! A kernel that gets its drives' events late: its driver's workers have one processor, which other
//! work occupies, as on machines with few processors.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

/// Processors that the workers may use, as a mask.
const WORKERS: &str = "/sys/devices/virtual/workqueue/nvme-wq/cpumask";

/// The workers run on the machine's second processor until this is dropped; the first is for
/// pollers.
pub(crate) struct Starved;

impl Starved {
    pub(crate) fn on() -> Self {
        fs::write(WORKERS, "2").expect("the driver's workers have a mask");
        Self
    }

    /// Occupies their processor for a second and a half, from now on.
    pub(crate) fn begin(&self) -> Hunger {
        let line = "exec timeout 1.5 chrt -f 1 taskset 2 bash -c 'echo; while :; do :; done'";
        let mut spin = Command::new("bash");
        spin.args(["-c", line]).stdout(Stdio::piped());
        let mut spin = spin.spawn().expect("the machine has bash");
        let begun = spin.stdout.take().expect("it is piped").read(&mut [0]);
        assert!(begun.is_ok_and(|bytes| bytes == 1), "it has begun");
        Hunger(spin)
    }
}

impl Drop for Starved {
    fn drop(&mut self) {
        fs::write(WORKERS, "3").expect("it could be written before");
    }
}

/// Dropped, it waits for the end of the other work.
pub(crate) struct Hunger(Child);

impl Drop for Hunger {
    fn drop(&mut self) {
        self.0.wait().expect("our child");
    }
}
