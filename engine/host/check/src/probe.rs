//! The form of a check: its subject, its cost and its remedy.

use crate::finding::{CheckGroup, Verdict};
use crate::machine::{HostPurpose, Machine};
use crate::outcome::Outcome;

/// One row of the table.
pub(crate) struct Check {
    pub(crate) id: &'static str,
    pub(crate) group: CheckGroup,
    /// Purposes that it matters for.
    pub(crate) purposes: &'static [HostPurpose],
    pub(crate) probe: Probe,
    /// The cost of a fault.
    pub(crate) cost: &'static str,
    /// The remedy, unless the probe has a better one.
    pub(crate) remedy: &'static str,
}

/// How a check looks.
pub(crate) enum Probe {
    /// A kernel option that should be set: its name without `CONFIG_`, and how bad it is if not.
    Option(&'static str, Verdict),
    /// A module that should be there, loaded or loadable.
    Module(&'static str, Verdict),
    /// A capability that this process should have: its name and number.
    Capability(&'static str, u32, Verdict),
    /// A device node: a path whose last part may end with `*`.
    Node(&'static str, Verdict),
    /// Anything else. An outcome as error is the only one.
    Look(fn(&Machine) -> Result<Vec<Outcome>, Outcome>),
}

impl Probe {
    pub(crate) fn run(&self, machine: &Machine) -> Vec<Outcome> {
        match self {
            Self::Option(name, missing) => vec![machine.option(name, *missing)],
            Self::Module(name, missing) => vec![machine.module(name, *missing)],
            Self::Capability(name, bit, missing) => {
                vec![machine.capability(name, *bit, *missing)]
            }
            Self::Node(pattern, missing) => vec![machine.node(pattern, *missing)],
            Self::Look(look) => look(machine).unwrap_or_else(|only| vec![only]),
        }
    }
}
