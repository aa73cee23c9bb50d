//! The thread of a poller: pin, open the devices here, tick, sleep, stop.

use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use kvrail_device::{Description, Device, Driver, MonotonicClock};
use kvrail_memory::{
    AllowedCpu, descriptor_remedy, pin_current_thread, shorten_slices, thread_remedy,
};
use kvrail_ring::PollerIndex;
use rustix::io::Errno;
use rustix::thread::gettid;

use crate::handle::PollerHandle;
use crate::mailbox::Mailbox;
use crate::poller::{Poller, Setup, SetupError};
use crate::stats::PollerStats;

/// Why a poller did not start.
#[derive(Debug, thiserror::Error)]
pub enum PollerStartError<E> {
    /// A device could not be opened.
    #[error(transparent)]
    Device(E),
    /// The thread could not be pinned.
    #[error("poller {index}: {reason}")]
    Pin {
        /// Which poller.
        index: PollerIndex,
        /// What went wrong and the remedy.
        reason: String,
    },
    /// A store cannot be.
    #[error("poller {index}: {source}")]
    Store {
        /// Which poller.
        index: PollerIndex,
        /// What went wrong.
        source: SetupError,
    },
    /// Its thread cannot be started.
    #[error("poller {index}: a thread: {errno}; {}", thread_remedy(*errno))]
    Thread {
        /// Which poller.
        index: PollerIndex,
        /// What the kernel said.
        errno: Errno,
    },
    /// Its epoll set cannot be made.
    #[error("poller {index}: an epoll set: {errno}; {}", descriptor_remedy(*errno))]
    Epoll {
        /// Which poller.
        index: PollerIndex,
        /// What the kernel said.
        errno: Errno,
    },
}

/// Who a poller is and where it runs.
#[derive(Clone, Copy, Debug)]
pub struct CpuBinding {
    /// Which one.
    pub index: PollerIndex,
    /// The CPU to pin it to; `None` lets it float.
    pub cpu: Option<AllowedCpu>,
}

/// Starts a poller. `open` runs on the new thread, because a ring belongs to the thread that made
/// it; this call returns when the devices are open.
///
/// # Errors
/// `PollerStartError` names the device, the CPU or the resource; nothing is left running.
pub fn start<D, E>(
    seat: CpuBinding,
    setup: Setup,
    mailbox: Arc<Mailbox>,
    open: impl FnOnce() -> Result<Vec<D>, E> + Send + 'static,
) -> Result<PollerHandle, PollerStartError<E>>
where
    D: Device + 'static,
    E: Send + 'static,
{
    let stats = Arc::new(PollerStats::new(setup.devices.len()));
    let (ready, started) = mpsc::sync_channel(1);
    let devices = setup.devices.clone();
    let (its_mailbox, its_stats) = (Arc::clone(&mailbox), Arc::clone(&stats));
    let birth = Startup { seat, setup, mailbox: its_mailbox, stats: its_stats, ready };
    let index = seat.index;
    let name = format!("kvrail-poll-{index}");
    let refused = |error: std::io::Error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::AGAIN);
        PollerStartError::Thread { index, errno }
    };
    let life = move || birth.live(open);
    let thread = thread::Builder::new().name(name).spawn(life).map_err(refused)?;
    let descriptions = match started.recv() {
        Ok(outcome) => outcome?,
        Err(_) => panic!("poller {index} died while it started; its panic message says why"),
    };
    let devices = devices.into_iter().zip(descriptions).collect();
    let cpu = seat.cpu.map(AllowedCpu::number);
    Ok(PollerHandle { index, cpu, devices, mailbox, stats, thread })
}

/// Everything a poller is made of but its devices.
struct Startup<E> {
    seat: CpuBinding,
    setup: Setup,
    mailbox: Arc<Mailbox>,
    stats: Arc<PollerStats>,
    /// Hears of the devices, or why there is no poller.
    ready: SyncSender<Result<Vec<Description>, PollerStartError<E>>>,
}

impl<E> Startup<E> {
    /// All of the thread.
    fn live<D: Device>(self, open: impl FnOnce() -> Result<Vec<D>, E>) {
        // Without short slices a poller is slower beside its clients, and no less right.
        let _refused = shorten_slices();
        let opened = self.seat.take().and_then(|()| open().map_err(PollerStartError::Device));
        match opened {
            Ok(devices) => D::hand_to(devices, self),
            Err(error) => drop(self.ready.send(Err(error))),
        }
    }
}

impl<E> Driver for Startup<E> {
    type End = ();

    fn drive<D: Device>(self, devices: Vec<D>) {
        let Self { seat: CpuBinding { index, .. }, setup, mailbox, stats, ready } = self;
        stats.thread.set(u64::from(gettid().as_raw_pid().unsigned_abs()));
        match Poller::new(setup, devices, MonotonicClock, mailbox, stats) {
            Ok(mut poller) => {
                let started = ready.send(Ok(poller.descriptions()));
                drop(ready);
                if started.is_ok() {
                    poller.run();
                }
            }
            Err(SetupError::Epoll(errno)) => {
                drop(ready.send(Err(PollerStartError::Epoll { index, errno })));
            }
            Err(source) => drop(ready.send(Err(PollerStartError::Store { index, source }))),
        }
    }
}

impl CpuBinding {
    /// Pins this thread, if the poller is to be pinned.
    fn take<E>(self) -> Result<(), PollerStartError<E>> {
        let Some(cpu) = self.cpu else { return Ok(()) };
        let failed = |reason: String| PollerStartError::Pin { index: self.index, reason };
        pin_current_thread(cpu).map_err(|error| failed(error.to_string()))
    }
}
