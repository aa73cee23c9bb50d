//! One device with what waits for it and what it holds.

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use arrayvec::ArrayVec;
use kvrail_device::{Description, Device, Failure, Operation, Wait};
use kvrail_ring::Class;

use crate::asides::{Asides, goes_aside};
use crate::budget::{Budget, InFlightBytes, Ledger};
use crate::pace::{Left, Pace};
use crate::presence::Presence;
use crate::run::Run;
use crate::waiting::Waiting;

/// Operations handed to the hardware together. Whole batches of 32 end together too, and then
/// both the device and the client stand still in turns: on a virtio disk at 4 KiB and depth 32 a
/// bare ring makes 107,000 operations a second in whole batches and 131,000 in fours.
const HAND_OVER: u32 = 4;

/// One failure of a device is told in this time: to tell costs a system call, and a device that
/// fails does so thousands of times.
const TELL_EVERY_NS: u64 = 100_000_000;

/// Whose memory a request moves bytes of. Each kind waits and spends a budget of its own, so that
/// a GPU that hangs or has no slots holds up no request of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Remote,
}

/// What waits for a device and what it holds, of one side.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) waiting: Waiting,
    pub(crate) ledger: Ledger,
    pub(crate) pace: Pace,
    /// Whether the ledger's bytes are what the pace says.
    follows: bool,
}

impl Share {
    fn new(description: &Description, budget: Budget) -> Self {
        let pace = Pace::new(description.bytes_per_second);
        let (bytes, follows) = match budget.bytes {
            InFlightBytes::Fixed(bytes) => (bytes, false),
            InFlightBytes::Followed => (pace.in_flight_bytes(), true),
        };
        let operations = budget.operations.min(description.depth);
        Self { waiting: Waiting::new(), ledger: Ledger::new(operations, bytes), pace, follows }
    }

    /// Gives back what a run was charged, and learns from it how fast the device is.
    #[inline]
    pub(crate) fn ended(&mut self, run: &Run, now_ns: u64) {
        let opcode = run.kin.opcode();
        let aside = goes_aside(opcode);
        self.ledger.refund(run.count, if aside { 0 } else { run.held });
        if aside {
            self.pace.other_ended(opcode, run.device_ns);
            return;
        }
        let left = match (self.waiting.count(), self.ledger.in_flight()) {
            (0, 0) => Left::Nothing,
            (0, _) => Left::Working,
            (_, _) => Left::Waiting,
        };
        if self.pace.ended(now_ns, (run.count, run.length), left) && self.follows {
            self.ledger.resize(self.pace.in_flight_bytes());
        }
    }

    /// Whether a request may go to the device at once, past nobody.
    #[inline]
    pub(crate) fn is_open(&self, class: Class, length: u32) -> bool {
        self.waiting.count() == 0 && self.ledger.fits(class, length)
    }
}

/// A device, its waiting requests and its budgets.
#[derive(Debug)]
pub(crate) struct Unit<D> {
    pub(crate) device: D,
    pub(crate) shares: [Share; 2],
    pub(crate) asides: Asides,
    /// Things the device was told since the last submit.
    pub(crate) prepared: u32,
    /// Something was handed over in this tick, which may have ended at once.
    pub(crate) handed_over: bool,
    /// Regions the device was told to forget and has not forgotten yet.
    pub(crate) forgetting: u32,
    /// Whether it is there.
    pub(crate) presence: Presence,
    /// When the last failure was told.
    told_ns: Option<u64>,
    /// Descriptors of the device that are in the epoll set: one for each kind of answer of `wait`.
    watched: ArrayVec<RawFd, 2>,
}

/// Whether a poller may sleep while this device works.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rest<'a> {
    /// It has nothing to do, or wakes us.
    Sound,
    /// It wakes us through this descriptor, which is not watched yet.
    Watch(BorrowedFd<'a>),
    /// It must be polled.
    None,
}

impl<D: Device> Unit<D> {
    pub(crate) fn new(device: D, budget: Budget) -> Self {
        let share = || Share::new(device.description(), budget);
        let shares = [share(), share()];
        Self {
            device,
            shares,
            asides: Asides::default(),
            prepared: 0,
            handed_over: false,
            forgetting: 0,
            presence: Presence::Here,
            told_ns: None,
            watched: ArrayVec::new(),
        }
    }

    /// Gives an operation to the device, and hands over when there are enough; false when the
    /// device takes no more now.
    #[inline(always)]
    pub(crate) fn give(&mut self, side: Side, operation: Operation) -> bool {
        if self.device.prepare(operation).is_err() {
            return false;
        }
        self.share(side).ledger.charge(operation.length);
        self.prepared += 1;
        if self.prepared >= HAND_OVER {
            self.submit();
        }
        true
    }

    /// The same for a flush or discard, which moves no bytes.
    pub(crate) fn give_aside(&mut self, operation: Operation) -> bool {
        let ledger = &mut self.shares[Side::Host as usize].ledger;
        if !ledger.fits(Class::Demand, 0) || self.device.prepare(operation).is_err() {
            return false;
        }
        ledger.charge(0);
        self.prepared += 1;
        true
    }

    /// Hands over what was prepared.
    #[inline(never)]
    pub(crate) fn submit(&mut self) {
        self.device.submit();
        (self.prepared, self.handed_over) = (0, true);
    }

    /// The device's last failure, if one has not been told for a while.
    #[cold]
    pub(crate) fn failure_to_tell(&mut self, now_ns: u64) -> Option<Failure> {
        let due = self.told_ns.is_none_or(|told| now_ns.saturating_sub(told) >= TELL_EVERY_NS);
        let failure = if due { self.device.take_failure() } else { None };
        if failure.is_some() {
            self.told_ns = Some(now_ns);
        }
        failure
    }

    /// Whether the device can be left alone. Arms what wakes us.
    pub(crate) fn rest(&self) -> Rest<'_> {
        if self.device.in_flight() == 0 && self.forgetting == 0 {
            return Rest::Sound;
        }
        match self.device.wait() {
            Wait::Poll => Rest::None,
            Wait::Nudge => Rest::Sound,
            Wait::Readable(fd) if self.watched.contains(&fd.as_raw_fd()) => Rest::Sound,
            Wait::Readable(fd) => Rest::Watch(fd),
        }
    }

    /// The descriptor is in the epoll set from now on.
    pub(crate) fn note_watched(&mut self, fd: RawFd) {
        self.watched.push(fd);
    }

    /// What waits and what is held of one side.
    #[inline]
    pub(crate) fn share(&mut self, side: Side) -> &mut Share {
        &mut self.shares[side as usize]
    }

    /// Operations the device holds.
    pub(crate) fn in_flight(&self) -> u32 {
        self.shares.iter().map(|share| share.ledger.in_flight()).sum()
    }

    /// Requests waiting for it.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        let shares = self.shares.iter().map(|share| share.waiting.count());
        self.asides.waiting() + shares.sum::<u32>()
    }
}
