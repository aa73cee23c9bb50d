//! Round trips between two threads, each on a core of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::cpu::pin;
use crate::drive::latency_histogram;

/// Round trips between two readings of the clock; percentiles are over means of this number.
pub const TRIPS_PER_SAMPLE: u32 = 32;
/// Requests published by one store in the throughput runs.
pub const BATCH: u32 = 32;
/// Requests in flight at most in the throughput runs, and the slots of the bare rings.
pub const BURST_DEPTH: u32 = 256;
/// Share of each run that is thrown away at its beginning.
const WARM_UP: u32 = 10;
/// Pause before a request that must find the other side asleep: longer than any spin ladder.
const PAUSE: Duration = Duration::from_millis(20);
/// Requests that find the other side asleep.
const WAKE_UPS: u32 = 40;

/// Runs `work` in a thread of its own on this core, so that the caller keeps its affinity.
pub(super) fn on_core<T: Send>(core: u32, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            pin(core)?;
            work()
        });
        thread.join().map_err(|_| anyhow::anyhow!("a lane thread panicked"))?
    })
}

/// Ends the asking side's wait when the answering side ends or fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed); // carries no data
    }
}

/// Asks on the first core while a thread on the other answers, until it is stopped; `wake` then
/// ends its sleep.
pub(super) fn answered<T: Send>(
    cores: [u32; 2],
    answer: impl FnOnce(&AtomicBool) -> Result<()> + Send,
    ask: impl FnOnce(&AtomicBool) -> Result<T> + Send,
    wake: impl FnOnce() -> Result<()>,
) -> Result<T> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let _stop = StopOnDrop(&stop);
            // Failing to bind must not leave the first waiting: serve from any core, report it
            // after.
            let pinned = pin(cores[1]);
            answer(&stop)?;
            pinned
        });
        let asked = on_core(cores[0], || ask(&stop));
        stop.store(true, Ordering::Release); // pairs with the Acquire in `each_ring`
        wake()?;
        other.join().map_err(|_| anyhow::anyhow!("the answering thread panicked"))??;
        asked
    })
}

/// Makes round trips for the given time, and discards the first part.
pub(super) fn time_trips(
    time: Duration,
    mut trip: impl FnMut() -> Result<()>,
) -> Result<Histogram<u64>> {
    let mut histogram = latency_histogram();
    let begun = Instant::now();
    let mut last = begun;
    while histogram.is_empty() || last.duration_since(begun) < time {
        for _ in 0..TRIPS_PER_SAMPLE {
            trip()?;
        }
        let now = Instant::now();
        if now.duration_since(begun) > time / WARM_UP {
            let mean = nanoseconds(now.duration_since(last)) / u64::from(TRIPS_PER_SAMPLE);
            histogram.saturating_record(mean);
        }
        last = now;
    }
    Ok(histogram)
}

/// Makes round trips that each find the other side asleep.
pub(super) fn time_wake_ups(mut trip: impl FnMut() -> Result<()>) -> Result<Histogram<u64>> {
    let mut histogram = latency_histogram();
    for _ in 0..WAKE_UPS {
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        trip()?;
        histogram.saturating_record(nanoseconds(begun.elapsed()));
    }
    Ok(histogram)
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
