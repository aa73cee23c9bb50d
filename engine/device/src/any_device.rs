//! One type for every mechanism: what a device is before it is known by which one.

use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;

use kvrail_memory::Pinned;
use serde::{Deserialize, Serialize};

use crate::contract::{
    Attached, AttachedBytes, BufferIndex, Description, Device, Driver, Events, Operation, Wait,
};
use crate::error::{DeviceError, DeviceResult};
use crate::failure::Failure;
use crate::null::NullDevice;
use crate::replacement::Replacement;
use crate::uring::{
    Hybrid, Interrupt, Iopoll, ModeName, Passthrough, PassthroughIopoll, Sqpoll, SqpollIopoll,
    UnknownMode, Uring, UringOptions,
};

/// Which ring mode a device is to be driven in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum ModeChoice {
    /// The fastest mode on this device and machine, found by trying.
    #[default]
    Auto,
    /// This one, or an error.
    Fixed(ModeName),
}

impl FromStr for ModeChoice {
    type Err = UnknownMode;

    fn from_str(text: &str) -> Result<Self, UnknownMode> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Fixed) }
    }
}

impl TryFrom<String> for ModeChoice {
    type Error = UnknownMode;

    fn try_from(text: String) -> Result<Self, UnknownMode> {
        text.parse()
    }
}

impl From<ModeChoice> for &'static str {
    fn from(choice: ModeChoice) -> Self {
        match choice {
            ModeChoice::Auto => "auto",
            ModeChoice::Fixed(mode) => mode.name(),
        }
    }
}

/// A device by whatever mechanism.
#[derive(Debug)]
pub enum AnyDevice {
    /// Does nothing, at once.
    Null(Box<NullDevice>),
    /// io_uring, completions by interrupt.
    Interrupt(Box<Uring<Interrupt>>),
    /// NVMe commands through io_uring, completions by interrupt.
    Passthrough(Box<Uring<Passthrough>>),
    /// io_uring, completions by polling after a nap.
    Hybrid(Box<Uring<Hybrid>>),
    /// NVMe commands through io_uring, completions by polling.
    PassthroughIopoll(Box<Uring<PassthroughIopoll>>),
    /// io_uring, a kernel thread submits.
    Sqpoll(Box<Uring<Sqpoll>>),
    /// io_uring, completions by polling.
    Iopoll(Box<Uring<Iopoll>>),
    /// io_uring, a kernel thread submits and polls.
    SqpollIopoll(Box<Uring<SqpollIopoll>>),
}

impl AnyDevice {
    /// System calls made so far to drive the device.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        match self {
            Self::Null(_) => 0,
            Self::Interrupt(device) => device.system_calls(),
            Self::Passthrough(device) => device.system_calls(),
            Self::Hybrid(device) => device.system_calls(),
            Self::Iopoll(device) => device.system_calls(),
            Self::PassthroughIopoll(device) => device.system_calls(),
            Self::Sqpoll(device) => device.system_calls(),
            Self::SqpollIopoll(device) => device.system_calls(),
        }
    }

    /// Opens it in this mode.
    pub(crate) fn open_in(mode: ModeName, options: UringOptions) -> Result<Self, DeviceError> {
        Ok(match mode {
            ModeName::Interrupt => Self::Interrupt(Box::new(Uring::open(options)?)),
            ModeName::Passthrough => Self::Passthrough(Box::new(Uring::open(options)?)),
            ModeName::Hybrid => Self::Hybrid(Box::new(Uring::open(options)?)),
            ModeName::PassthroughIopoll => Self::PassthroughIopoll(Box::new(Uring::open(options)?)),
            ModeName::Sqpoll => Self::Sqpoll(Box::new(Uring::open(options)?)),
            ModeName::Iopoll => Self::Iopoll(Box::new(Uring::open(options)?)),
            ModeName::SqpollIopoll => Self::SqpollIopoll(Box::new(Uring::open(options)?)),
        })
    }
}

macro_rules! each {
    ($mechanism:expr, $device:ident => $call:expr) => {
        match $mechanism {
            Self::Null($device) => $call,
            Self::Interrupt($device) => $call,
            Self::Passthrough($device) => $call,
            Self::Hybrid($device) => $call,
            Self::PassthroughIopoll($device) => $call,
            Self::Sqpoll($device) => $call,
            Self::Iopoll($device) => $call,
            Self::SqpollIopoll($device) => $call,
        }
    };
}

impl AnyDevice {
    /// As `prepare`; a call, because a loop with the code of all modes in it keeps its values on
    /// the stack. Only pollers whose devices are in several modes come here.
    #[inline(never)]
    fn prepare_ring(&mut self, operation: Operation) -> Result<(), Operation> {
        each!(self, device => device.prepare(operation))
    }
}

impl Device for AnyDevice {
    fn description(&self) -> &Description {
        each!(self, device => device.description())
    }

    fn begin_attach(&mut self, at: BufferIndex, region: Arc<dyn Pinned>) -> DeviceResult<Attached> {
        each!(self, device => device.begin_attach(at, region))
    }

    fn attach_more(&mut self, at: BufferIndex) -> DeviceResult<Attached> {
        each!(self, device => device.attach_more(at))
    }

    fn detach(&mut self, at: BufferIndex) -> DeviceResult<()> {
        each!(self, device => device.detach(at))
    }

    fn attached(&self) -> AttachedBytes {
        each!(self, device => device.attached())
    }

    #[inline(always)]
    fn prepare(&mut self, operation: Operation) -> Result<(), Operation> {
        match self {
            Self::Null(device) => device.prepare(operation),
            _ => self.prepare_ring(operation.anew()),
        }
    }

    #[inline]
    fn submit(&mut self) {
        each!(self, device => device.submit());
    }

    #[inline]
    fn reap(&mut self, events: &mut Events) {
        each!(self, device => device.reap(events));
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        each!(self, device => device.in_flight())
    }

    fn wait(&self) -> Wait<'_> {
        each!(self, device => device.wait())
    }

    fn watch(&mut self, bell: OwnedFd) -> Result<(), OwnedFd> {
        each!(self, device => device.watch(bell))
    }

    fn block(&mut self, timeout_ns: u64) {
        each!(self, device => device.block(timeout_ns));
    }

    fn replace(&mut self, with: &mut Replacement) -> DeviceResult<()> {
        each!(self, device => device.replace(with))
    }

    fn take_failure(&mut self) -> Option<Failure> {
        each!(self, device => device.take_failure())
    }

    fn hand_to<R: Driver>(devices: Vec<Self>, driver: R) -> R::End {
        macro_rules! as_one_of {
            ($($kind:ident),+) => {
                $(if devices.iter().all(|device| matches!(device, Self::$kind(_))) {
                    let own = devices.into_iter().filter_map(|device| match device {
                        Self::$kind(device) => Some(*device),
                        _ => None,
                    });
                    driver.drive(own.collect())
                } else)+ {
                    driver.drive(devices) // a poller with devices in several modes
                }
            };
        }
        as_one_of!(
            Null,
            Interrupt,
            Passthrough,
            Hybrid,
            PassthroughIopoll,
            Sqpoll,
            Iopoll,
            SqpollIopoll
        )
    }
}

#[cfg(test)]
mod tests {
    use super::ModeChoice;
    use crate::uring::ModeName;

    #[test]
    fn choices_are_auto_or_a_mode() {
        assert_eq!("auto".parse(), Ok(ModeChoice::Auto));
        assert_eq!("sqpoll+iopoll".parse(), Ok(ModeChoice::Fixed(ModeName::SqpollIopoll)));
        assert!("".parse::<ModeChoice>().is_err() && "Auto".parse::<ModeChoice>().is_err());
        for choice in [ModeChoice::Auto, ModeChoice::Fixed(ModeName::Iopoll)] {
            assert_eq!(<&str>::from(choice).parse(), Ok(choice));
        }
    }
}
