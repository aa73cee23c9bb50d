//! The monitor of the emulator around this machine: pulls, plugs and slows its devices.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use serde_json::{Value, json};

use crate::machine;
use crate::rig::eventually;

/// The guest's port to the emulator's monitor (QMP).
#[derive(Debug)]
pub(crate) struct Monitor {
    port: BufReader<File>,
    last_id: u64,
}

impl Monitor {
    /// Opens the port. One at a time: the kernel admits a single opener.
    pub(crate) fn open() -> Self {
        let path = Path::new("/dev/monitor");
        let port = File::options().read(true).write(true).open(path);
        let port = BufReader::new(port.expect("the machine has a monitor"));
        let mut monitor = Self { port, last_id: 0 };
        // An error when an earlier test did it: once in a machine's life is enough.
        let _negotiated = monitor.ask("qmp_capabilities", json!({}));
        monitor
    }

    /// Pulls a controller, and waits until its namespace is gone.
    pub(crate) fn pull(&mut self, serial: &str) {
        self.must("device_del", json!({ "id": serial }));
        eventually("the namespace goes away", || machine::find(serial, 1).is_none());
    }

    /// Puts a controller of a subsystem back into its slot, and waits until its namespace is there.
    pub(crate) fn plug(&mut self, serial: &str, subsystem: &str) {
        let device = json!({
            "driver": "nvme", "id": serial, "serial": serial, "bus": format!("slot-{serial}"),
            "subsys": subsystem, "max_ioqpairs": 8, "msix_qsize": 9,
        });
        // Refused until the controller before has released its name.
        eventually("a controller is taken", || self.ask("device_add", device.clone()).is_ok());
        eventually("the namespace is back", || machine::find(serial, 1).is_some());
    }

    /// Resets the machine, which ends it: the answer is never read.
    pub(crate) fn reset(&mut self) {
        let line = json!({ "execute": "system_reset", "id": 0 });
        writeln!(self.port.get_mut(), "{line}").expect("the emulator listens");
    }

    /// Sets the critical warnings in a controller's SMART log.
    pub(crate) fn warn(&mut self, serial: &str, bits: u8) {
        let path = format!("/machine/peripheral/{serial}");
        let property = "smart_critical_warning";
        self.must("qom-set", json!({ "path": path, "property": property, "value": bits }));
    }

    /// Limits `kvr-slow` to this number of operations a second; 0 is no limit.
    pub(crate) fn throttle(&mut self, per_second: u64) {
        let limits = json!({ "iops-total": per_second });
        let what = json!({ "path": "/objects/slow", "property": "limits", "value": limits });
        self.must("qom-set", what);
    }

    fn must(&mut self, command: &str, arguments: Value) {
        self.ask(command, arguments).unwrap_or_else(|error| panic!("{command}: {error}"));
    }

    /// Runs a command; its answer, or the error. Events in between are dropped.
    fn ask(&mut self, command: &str, arguments: Value) -> Result<Value, Value> {
        self.last_id += 1;
        let line = json!({ "execute": command, "arguments": arguments, "id": self.last_id });
        writeln!(self.port.get_mut(), "{line}").expect("the emulator listens");
        loop {
            let mut text = String::new();
            self.port.read_line(&mut text).expect("the emulator answers");
            let Ok(mut answer) = serde_json::from_str::<Value>(&text) else { continue };
            if answer["id"] == self.last_id {
                let error = answer["error"].take();
                return if error.is_null() { Ok(answer["return"].take()) } else { Err(error) };
            }
        }
    }
}
