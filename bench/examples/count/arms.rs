//! The counted arms: the path of a request, and the part of that path.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use kvrail_device::ModeName;

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arm {
    /// Client, lane, poller, null device, and back.
    Null,
    /// The same to a store on a null device.
    Store(KeyedCall),
    /// The same to a device in this ring mode.
    Device(ModeName),
    /// A bare ring in this mode, in the client itself.
    Raw(ModeName),
}

/// Operations of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyedCall {
    /// Blocks that are there, verified.
    Get,
    /// New blocks.
    Put,
    /// Five keys a request, whose blocks are there.
    Lookup,
}

/// The process that executes the instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// The client's thread: build, submit, poll.
    Client,
    /// The poller's thread: its ticks.
    Poller,
}

/// The arms that a machine without polled queues can count.
pub(crate) fn usual() -> Vec<Arm> {
    let interrupt = ModeName::Interrupt;
    let stores = [KeyedCall::Get, KeyedCall::Put, KeyedCall::Lookup].map(Arm::Store);
    [&[Arm::Null][..], &stores, &[Arm::Device(interrupt), Arm::Raw(interrupt)]].concat()
}

impl Arm {
    /// The parts it has.
    pub(crate) fn parts(self) -> &'static [Part] {
        match self {
            Self::Null | Self::Store(_) | Self::Device(_) => &[Part::Client, Part::Poller],
            Self::Raw(_) => &[Part::Client],
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Store(KeyedCall::Get) => f.write_str("get"),
            Self::Store(KeyedCall::Put) => f.write_str("put"),
            Self::Store(KeyedCall::Lookup) => f.write_str("lookup"),
            Self::Device(mode) => mode.fmt(f),
            Self::Raw(mode) => write!(f, "raw:{mode}"),
        }
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mode = |name: &str| name.parse().map_err(|unknown| format!("{unknown}"));
        match text.strip_prefix("raw:") {
            Some(name) => mode(name).map(Self::Raw),
            None if text == "null" => Ok(Self::Null),
            None if text == "get" => Ok(Self::Store(KeyedCall::Get)),
            None if text == "put" => Ok(Self::Store(KeyedCall::Put)),
            None if text == "lookup" => Ok(Self::Store(KeyedCall::Lookup)),
            None => mode(text).map(Self::Device),
        }
    }
}
