//! The thread of a poller: pin, open the devices here, tick, sleep, stop.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread;

use kvrail_device::{Clock, Description, Device, Driver, MonotonicClock};
use kvrail_memory::{Topology, pin_current_thread};
use kvrail_ring::PollerIndex;
use rustix::thread::gettid;

use crate::device_queue::Rest;
use crate::handle::PollerHandle;
use crate::idle::{Advice, Expecting, Ladder};
use crate::mailbox::Mailbox;
use crate::poller::{Poller, Setup, SleepsIn, Turn};
use crate::stats::PollerStats;

/// How a poller's attempt to sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Something is there, or the time is over.
    Over,
    /// A device must be polled.
    Denied,
}

/// Why a poller did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError<E> {
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
    /// Descriptors or threads ran out.
    #[error("poller {index}: {what}: {source}; raise RLIMIT_NOFILE or RLIMIT_NPROC")]
    Exhausted {
        /// Which poller.
        index: PollerIndex,
        /// What could not be made.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// Who a poller is and where it runs.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    /// Which one.
    pub index: PollerIndex,
    /// The CPU to pin it to; `None` lets it float.
    pub cpu: Option<u32>,
}

/// Starts a poller. `open` runs on the new thread, because a ring belongs to the thread that made
/// it; this call returns when the devices are open.
///
/// # Errors
/// `StartError` names the device, the CPU or the resource; nothing is left running.
pub fn start<D, E>(
    seat: Seat,
    setup: Setup,
    mailbox: Arc<Mailbox>,
    open: impl FnOnce() -> Result<Vec<D>, E> + Send + 'static,
) -> Result<PollerHandle, StartError<E>>
where
    D: Device + 'static,
    E: Send + 'static,
{
    let stats = Arc::new(PollerStats::new(setup.devices.len()));
    let (ready, started) = mpsc::sync_channel(1);
    let devices = setup.devices.clone();
    let (its_mailbox, its_stats) = (Arc::clone(&mailbox), Arc::clone(&stats));
    let birth = Birth { seat, setup, mailbox: its_mailbox, stats: its_stats, ready };
    let index = seat.index;
    let name = format!("kvrail-poll-{index}");
    let exhausted = |source| StartError::Exhausted { index, what: "a thread", source };
    let life = move || birth.live(open);
    let thread = thread::Builder::new().name(name).spawn(life).map_err(exhausted)?;
    let descriptions = match started.recv() {
        Ok(outcome) => outcome?,
        Err(_) => panic!("poller {index} died while it started; its panic message says why"),
    };
    let devices = devices.into_iter().zip(descriptions).collect();
    Ok(PollerHandle { index, cpu: seat.cpu, devices, mailbox, stats, thread })
}

/// Everything a poller is made of but its devices.
struct Birth<E> {
    seat: Seat,
    setup: Setup,
    mailbox: Arc<Mailbox>,
    stats: Arc<PollerStats>,
    /// Hears of the devices, or why there is no poller.
    ready: SyncSender<Result<Vec<Description>, StartError<E>>>,
}

impl<E> Birth<E> {
    /// All of the thread.
    fn live<D: Device>(self, open: impl FnOnce() -> Result<Vec<D>, E>) {
        let opened = self.seat.take().and_then(|()| open().map_err(StartError::Device));
        match opened {
            Ok(devices) => D::hand_to(devices, self),
            Err(error) => drop(self.ready.send(Err(error))),
        }
    }
}

impl<E> Driver for Birth<E> {
    type End = ();

    fn drive<D: Device>(self, devices: Vec<D>) {
        let Self { seat: Seat { index, .. }, setup, mailbox, stats, ready } = self;
        stats.thread.set(u64::from(gettid().as_raw_pid().unsigned_abs()));
        match Poller::new(setup, devices, MonotonicClock, mailbox, stats) {
            Ok(poller) => {
                let told = ready.send(Ok(poller.descriptions()));
                drop(ready);
                if told.is_ok() {
                    live(poller);
                }
            }
            Err(errno) => {
                let (what, source) = ("an epoll set", errno.into());
                drop(ready.send(Err(StartError::Exhausted { index, what, source })));
            }
        }
    }
}

impl Seat {
    /// Pins this thread, if the poller is to be pinned.
    fn take<E>(self) -> Result<(), StartError<E>> {
        let Some(cpu) = self.cpu else { return Ok(()) };
        let failed = |reason: String| StartError::Pin { index: self.index, reason };
        let topology = Topology::host().map_err(|error| failed(error.to_string()))?;
        pin_current_thread(cpu, &topology).map_err(|error| failed(error.to_string()))
    }
}

/// The life of a poller.
fn live<D: Device>(mut poller: Poller<D, MonotonicClock>) {
    let mut ladder = Ladder::new(poller.spin_ns, poller.clock.now_ns());
    poller.begin();
    loop {
        let found_ns = poller.now_ns;
        match poller.tick() {
            Turn::Stopped => return,
            Turn::Busy => ladder.event(found_ns, poller.now_ns),
            Turn::Idle => match ladder.advise(poller.expecting(), poller.now_ns) {
                Advice::Spin => std::hint::spin_loop(),
                Advice::Sleep => match poller.sleep(poller.beat_ns) {
                    Sleep::Over => {}
                    Sleep::Denied if ladder.owes_a_yield(poller.now_ns) => thread::yield_now(),
                    Sleep::Denied => std::hint::spin_loop(),
                },
            },
        }
    }
}

impl<D: Device, C: Clock> Poller<D, C> {
    fn descriptions(&self) -> Vec<Description> {
        self.units.iter().map(|unit| unit.device.description().clone()).collect()
    }

    fn expecting(&self) -> Expecting {
        if self.in_flight() == 0 {
            return Expecting::Request;
        }
        let copying = self.units.iter().any(|unit| unit.device.has_handed_over());
        if copying { Expecting::Copy } else { Expecting::Completion }
    }

    /// Sleeps until a device, a client or the control thread has something, at most `longest_ns`.
    /// Returns at once while a device must be polled.
    pub fn sleep(&mut self, longest_ns: u64) -> Sleep {
        if !self.can_rest() {
            return Sleep::Denied;
        }
        self.read_clock();
        self.lanes.announce_sleep();
        self.mailbox.nudge().announce(&mut self.sleeper);
        kvrail_ring::wake::settle();
        let handed_over = self.units.iter().any(|unit| unit.device.is_ready());
        if !handed_over && !self.lanes.any_ready() && self.mailbox.is_empty() {
            self.stats.sleeps.add(1);
            let timeout_ns = self.timers.sleep_ns(self.now_ns, longest_ns);
            match self.sleeps_in {
                SleepsIn::Device(index) => self.units[index].device.block(timeout_ns),
                SleepsIn::Epoll => self.bed.sleep(timeout_ns),
            }
        }
        self.mailbox.nudge().retract(&mut self.sleeper);
        self.lanes.retract_sleep();
        self.read_clock();
        Sleep::Over
    }

    /// Whether every device wakes us; puts descriptors seen for the first time into the set. The
    /// device we sleep in needs none.
    fn can_rest(&mut self) -> bool {
        self.units.iter_mut().enumerate().all(|(index, unit)| {
            if self.sleeps_in == SleepsIn::Device(index) {
                return true;
            }
            let fd = match unit.rest() {
                Rest::Sound => return true,
                Rest::None => return false,
                Rest::Watch(fd) => fd,
            };
            let (watched, fd) = (self.bed.watch_device(fd), fd.as_raw_fd());
            if watched.is_ok() {
                unit.note_watched(fd);
            }
            watched.is_ok()
        })
    }
}
