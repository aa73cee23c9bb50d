//! The clock is set, by years and back, while a client of a store works.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use kvrail_tests::SteadyTally;

use crate::rig::{Place, Sidecar, StoreShape, VOLUME, Worker, eventually, run};

/// Steps, in seconds from the true time.
const STEPS: [i64; 4] = [315_360_000, -630_720_000, 3600, 0];

/// Adds the number in a file to the time of day, and to no other clock.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static const volatile long *step;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_STEP");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(0, sizeof *step, PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) step = at;
    if (fd >= 0) close(fd);
}
int clock_gettime(clockid_t clock, struct timespec *at) {
    long outcome = syscall(SYS_clock_gettime, clock, at);
    if (outcome == 0 && clock == CLOCK_REALTIME && step) at->tv_sec += *step;
    return (int)outcome;
}
"#;

/// A clock that can be set, for the processes that are started with it.
struct Clock {
    library: PathBuf,
    step: PathBuf,
}

impl Clock {
    /// `None`, with a line printed, where there is no C compiler.
    fn make(place: &Place) -> Option<Self> {
        let (source, library) = (place.path("clock.c"), place.path("clock.so"));
        fs::write(&source, SHIM).unwrap();
        let mut compile = Command::new("cc");
        compile.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        match compile.status() {
            Ok(status) => assert!(status.success(), "{status}"),
            Err(_) => {
                println!("skipped: no C compiler (cc) for a clock that can be set");
                return None;
            }
        }
        let it = Self { library, step: place.path("step") };
        it.set(0);
        Some(it)
    }

    /// Written in place: processes have the file mapped.
    fn set(&self, seconds: i64) {
        let file = fs::File::options().write(true).create(true).truncate(false).open(&self.step);
        std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), &seconds.to_ne_bytes(), 0)
            .unwrap();
    }

    fn start(&self, place: &Place) -> Sidecar {
        let mut serve = place.serve();
        serve.env("LD_PRELOAD", &self.library).env("CLOCK_STEP", &self.step);
        Sidecar::start_as(place, serve)
    }
}

/// Waits until the client has done some work since now.
fn wait_for_requests(sidecar: &Sidecar) {
    let accepted = || {
        sidecar.status().sessions.iter().map(|session| session.counters.accepted.unwrap_or(0)).max()
    };
    let before = accepted().unwrap_or(0);
    eventually("the client works", || accepted() > Some(before + 100));
}

#[test]
fn a_clock_that_is_set_disturbs_no_client() {
    let shape =
        StoreShape { member_bytes: 256 << 20, segment_bytes: 8 << 20, block_mean: 16 << 10 };
    let mut place = Place::with_shaped_store(1, &shape);
    // Far above the pauses of a busy machine, and far below the steps.
    place.configure("pollers.stall_after = \"10m\"\npollers.overdue_after = \"10m\"");
    let Some(clock) = Clock::make(&place) else { return };
    clock.set(STEPS[0]);
    let sidecar = clock.start(&place);
    let begun = sidecar.status().sidecar.started_unix_s;
    let now = run(Command::new("date").arg("+%s")).stdout.trim().parse::<u64>().unwrap();
    assert!(begun > now + 300_000_000, "the clock is not set: {begun} {now}");
    let socket = place.socket();
    let mut client = Worker::start(&["steady", socket.to_str().unwrap(), VOLUME, "a"]);
    client.expect("running");
    let mut uptime_ms = 0;
    for step in STEPS {
        clock.set(step);
        wait_for_requests(&sidecar);
        let report = sidecar.status();
        assert!(report.sidecar.uptime_ms >= uptime_ms, "time went back");
        uptime_ms = report.sidecar.uptime_ms;
        assert!(uptime_ms < 600_000, "{uptime_ms}: time jumped");
        assert!(
            report.pollers.iter().all(|poller| poller.stalled.is_none()),
            "{:?}",
            report.pollers
        );
        for device in &report.devices {
            assert_eq!((device.counters.overdue, device.counters.late), (Some(0), Some(0)));
        }
    }
    // The next start finds records from the future, and a time before the first one's.
    clock.set(STEPS[1]);
    sidecar.stop();
    let sidecar = clock.start(&place);
    wait_for_requests(&sidecar);
    let tally: SteadyTally = serde_json::from_str(&client.end()).expect("a tally");
    assert!(tally.wrong.is_empty(), "{:#?}", tally.wrong);
    assert!(tally.puts > 10 && tally.right > 0, "{tally:?}");
    assert_eq!(tally.interruptions_ms.len(), 1, "{tally:?}");
    sidecar.stop();
}
