//! The thread of a GPU poller: pin, make the GPU usable here, tick, sleep, stop.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvrail_memory::{AllowedCpu, pin_current_thread};
use kvrail_ring::wake::{Sleeper, settle};
use kvrail_ring::{AdaptiveSpin, ThreadWaker, drain_doorbell};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::tick::{GpuPoller, GpuSetup, GpuTurn};
use crate::contract::{Gpu, GpuIdentity};
use crate::error::GpuError;
use crate::health::Health;

/// A copy or a small read takes tens of microseconds: longest spin while one is in flight, or where
/// spinning brought the next job lately. Beyond, the GPU is busy with others.
const SOON: Duration = Duration::from_micros(100);

/// While a copy is in flight for longer than that, the poller looks this often instead of spinning.
const NAP: Duration = Duration::from_micros(20);

/// Longest sleep with nothing in flight.
const BEAT: Duration = Duration::from_millis(500);

/// Turns between two looks at the clock while spinning.
const TURNS_PER_LOOK: u32 = 16;

/// Where a GPU poller runs and how long it spins.
#[derive(Clone, Copy, Debug)]
pub struct GpuSeat {
    /// The CPU to pin it to; `None` lets it float.
    pub cpu: Option<AllowedCpu>,
    /// Longest spin before sleeping.
    pub spin: Duration,
}

/// Why a GPU poller did not start.
#[derive(Debug, thiserror::Error)]
pub enum GpuStartError {
    /// The GPU refused.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The thread could not be pinned.
    #[error("the poller of GPU {index}: {reason}")]
    Pin {
        /// Which GPU.
        index: u32,
        /// The fault and the remedy.
        reason: String,
    },
    /// Threads ran out.
    #[error("the poller of GPU {index}: no thread ({source}); raise RLIMIT_NPROC")]
    Thread {
        /// Which GPU.
        index: u32,
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// The control thread's hold on one GPU poller.
#[derive(Debug)]
pub struct GpuPollerHandle {
    /// Its GPU.
    pub identity: GpuIdentity,
    /// The CPU it is pinned to, or nothing when it floats.
    pub cpu: Option<u32>,
    /// The means of copying, for people.
    pub description: String,
    /// How the GPU is.
    pub health: Arc<Health>,
    nudge: Arc<ThreadWaker>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl GpuPollerHandle {
    /// Ends the thread once nothing is in flight, and waits for that.
    pub fn stop(self) {
        self.ask_to_stop();
        let ended = self.thread.join();
        assert!(ended.is_ok(), "the poller of GPU {} panicked", self.identity.index);
    }

    /// Ends the thread once nothing is in flight, which may be never where a GPU hangs.
    pub fn ask_to_stop(&self) {
        // Read in `tick`; ordered by the ring below, and a late view costs one sleep.
        self.stop.store(true, Ordering::Relaxed);
        self.nudge.ring();
    }

    /// Whether the thread has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.thread.is_finished()
    }
}

/// Starts the poller of a GPU; returns when it ticks.
///
/// # Errors
/// `GpuStartError` names the GPU or the CPU; nothing is left running.
pub fn start(
    gpu: &dyn Gpu,
    seat: GpuSeat,
    setup: GpuSetup,
) -> Result<GpuPollerHandle, GpuStartError> {
    let identity = gpu.identity().clone();
    let index = identity.index;
    let (health, nudge) = (Arc::clone(&setup.health), Arc::clone(&setup.nudge));
    let stop = Arc::clone(&setup.stop);
    let poller = GpuPoller::new(gpu, setup)?;
    let description = poller.description();
    let (ready, started) = std::sync::mpsc::sync_channel(1);
    let its_nudge = Arc::clone(&nudge);
    let life = move || {
        let pinned = seat
            .cpu
            .map_or(Ok(()), |cpu| pin_current_thread(cpu).map_err(|error| error.to_string()));
        let go = pinned.is_ok();
        let told = ready.send(pinned);
        if go && told.is_ok() {
            live(poller, &its_nudge, seat.spin);
        }
    };
    let builder = thread::Builder::new().name(format!("kvrail-gpu-{index}"));
    let thread = builder.spawn(life).map_err(|source| GpuStartError::Thread { index, source })?;
    let pinned = started.recv().expect("the thread answers before anything can panic");
    pinned.map_err(|reason| GpuStartError::Pin { index, reason })?;
    let cpu = seat.cpu.map(AllowedCpu::number);
    Ok(GpuPollerHandle { identity, cpu, description, health, nudge, stop, thread })
}

fn live(mut poller: GpuPoller, nudge: &ThreadWaker, spin: Duration) {
    let mut sleeper = Sleeper::default();
    let (mut busy_at, mut turns) = (Instant::now(), 0_u32);
    // Whether a spin brings the next job, and since when one is waited for.
    let (mut adaptive, mut idle_since) = (AdaptiveSpin::default(), None);
    poller.begin();
    loop {
        let turn = poller.tick();
        match turn {
            GpuTurn::Stopped => return,
            GpuTurn::Busy => {
                let now = Instant::now();
                if let Some(since) = idle_since.take() {
                    adaptive.learn(nanoseconds(now - since), nanoseconds(SOON));
                }
                (busy_at, turns) = (now, 0);
                continue;
            }
            GpuTurn::Idle => idle_since = idle_since.or(Some(busy_at)),
            GpuTurn::Waiting => {}
        }
        turns = turns.wrapping_add(1);
        let favoured = || turn == GpuTurn::Idle && adaptive.should_spin();
        let soon = turn == GpuTurn::Waiting || poller.expects_jobs() || favoured();
        let longest = if soon && !spin.is_zero() { spin.max(SOON) } else { spin };
        if !turns.is_multiple_of(TURNS_PER_LOOK) || busy_at.elapsed() < longest {
            std::hint::spin_loop();
            continue;
        }
        nudge.announce(&mut sleeper);
        settle();
        if !poller.has_jobs() && sleep(nudge, if turn == GpuTurn::Waiting { NAP } else { BEAT }) {
            busy_at = Instant::now(); // woken for a job, or for one that is coming
        }
        nudge.retract(&mut sleeper);
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Blocks until the nudge rings or the time is over; whether it rang.
fn sleep(nudge: &ThreadWaker, longest: Duration) -> bool {
    let fd = nudge.as_fd();
    let timeout = Timespec {
        tv_sec: i64::try_from(longest.as_secs()).expect("seconds"),
        tv_nsec: i64::from(longest.subsec_nanos()),
    };
    let rang = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) == Ok(1);
    if rang {
        drain_doorbell(fd);
    }
    rang
}
