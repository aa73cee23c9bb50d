//! A kernel that learns late what its drives say: its driver's workers have one processor, and that
//! is taken from them. So it is on machines where processors are scarce.

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};

/// Processors that the workers may use, as a mask.
const WORKERS: &str = "/sys/devices/virtual/workqueue/nvme-wq/cpumask";

/// The workers have the machine's second processor until it is dropped; the first is for pollers.
pub(crate) struct Starved;

impl Starved {
    pub(crate) fn on() -> Self {
        fs::write(WORKERS, "2").expect("the driver's workers go where they are told");
        Self
    }

    /// Takes their processor away for a second and a half, from now on.
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

/// Waited for when it is dropped.
pub(crate) struct Hunger(Child);

impl Drop for Hunger {
    fn drop(&mut self) {
        self.0.wait().expect("our child");
    }
}
