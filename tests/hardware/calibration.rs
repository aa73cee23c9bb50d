//! SIGTERM while `device.mode = "auto"` tries the ring modes of a drive where several work.

use std::fs;
use std::time::Duration;

use rustix::process::Signal;

use crate::bed::Bed;
use crate::machine;
use crate::rig::{Sidecar, eventually};

/// Moments of the trials at which a start is stopped.
const STOPS: u32 = 6;
const APART: Duration = Duration::from_millis(60);

/// Rings that a process has open: all modes that work while they are tried, then those of one.
fn rings(pid: u32) -> usize {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let targets = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.filter(|target| target.as_os_str() == "anon_inode:[io_uring]").count()
}

#[test]
fn a_stop_while_modes_are_tried_is_a_drain_and_leaves_the_drive_as_it_was() {
    if !machine::is_ours() {
        return;
    }
    let bed = Bed::new("auto", "kvr-main", 1);
    let label = machine::read_label(&bed.place.members[0]);
    let sidecar = bed.serve();
    let of_one_mode = rings(sidecar.pid());
    let log = sidecar.stop();
    assert!(log.contains("reads a second at"), "one mode alone was left: {log}");

    let mut hits = 0;
    for stop in 0..STOPS {
        // Without the modes that an earlier sidecar measured: a start that finds them measures
        // nothing.
        let _none = fs::remove_file(bed.place.socket().with_file_name("s.modes"));
        let before = fs::read_to_string(bed.place.path("log")).unwrap().len();
        let mut sidecar = Sidecar::launch(&bed.place, bed.place.serve());
        eventually("modes are tried", || rings(sidecar.pid()) > of_one_mode);
        std::thread::sleep(APART * stop);
        hits += u32::from(rings(sidecar.pid()) > of_one_mode);
        sidecar.signal(Signal::TERM);
        let status = sidecar.wait();
        let log = sidecar.stderr().split_off(before);
        assert!(status.success(), "{status}: {log}");
        // One clear line at its end.
        assert!(log.trim_end().ends_with("drained and stopped"), "{log}");
        assert!(!log.contains("ERROR") && !log.contains("panicked"), "{log}");
    }
    println!("calibration: {hits} of {STOPS} stops came while modes were tried");
    assert!(hits > 0);
    assert!(label == machine::read_label(&bed.place.members[0]), "the label has changed");
    bed.serve().stop();
}
