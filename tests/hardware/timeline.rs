//! The work of each device of a sidecar from moment to moment, for the log.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kvrail_client::Client;

/// Time between two samples.
const STEP: Duration = Duration::from_millis(250);

/// The counters of all devices at one moment.
#[derive(Clone, Debug)]
struct Sample {
    at: Duration,
    devices: Vec<(u64, u64, String)>,
}

/// A thread that samples `status`.
#[derive(Debug)]
pub(crate) struct Timeline {
    began: Instant,
    events: Vec<(Duration, String)>,
    stop: Sender<()>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Timeline {
    pub(crate) fn start(socket: &Path) -> Self {
        let client = Client::attach(socket).expect("the sidecar serves");
        let (stop, stopped) = channel();
        let began = Instant::now();
        let sample = move || {
            let mut samples = Vec::new();
            while stopped.recv_timeout(STEP) == Err(RecvTimeoutError::Timeout) {
                let report = client.status().expect("the sidecar answers");
                let devices = report.devices.iter().map(|device| {
                    let ended = device.reads.operations + device.writes.operations;
                    let errors = device.counters.errors.expect("a device counts its errors");
                    (ended - errors.min(ended), errors, device.state)
                });
                let devices = devices.map(|(ok, errors, state)| (ok, errors, format!("{state:?}")));
                samples.push(Sample { at: began.elapsed(), devices: devices.collect() });
            }
            samples
        };
        Self { began, events: Vec::new(), stop, thread: std::thread::spawn(sample) }
    }

    /// Records an event at this moment.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.events.push((self.began.elapsed(), what.into()));
    }

    /// Prints the timeline: the operations that each device completed in each step, and its state.
    /// Returns the longest time in which the device of that number completed none.
    pub(crate) fn print(self, calm: usize) -> Duration {
        drop(self.stop);
        let samples = self.thread.join().expect("the sidecar answered");
        let mut events = self.events.into_iter().peekable();
        let mut idle_since = Duration::ZERO;
        let mut longest = Duration::ZERO;
        for pair in samples.windows(2) {
            while let Some((at, what)) = events.next_if(|(at, _)| *at <= pair[1].at) {
                println!("{:6.2} s  -- {what}", at.as_secs_f64());
            }
            let steps = pair[0].devices.iter().zip(&pair[1].devices);
            let text = steps.map(|(before, after)| {
                let (ok, failed) = (after.0.saturating_sub(before.0), after.1 - before.1);
                format!("{ok:5} ok {failed:4} failed {:8}", after.2)
            });
            let text = text.collect::<Vec<_>>().join(" | ");
            println!("{:6.2} s  {text}", pair[1].at.as_secs_f64());
            if pair[1].devices[calm].0 > pair[0].devices[calm].0 {
                idle_since = pair[1].at;
            }
            longest = longest.max(pair[1].at.saturating_sub(idle_since));
        }
        longest
    }
}
