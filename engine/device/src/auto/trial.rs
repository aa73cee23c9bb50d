//! The result of trying a mode.

use serde::{Deserialize, Serialize};

use crate::uring::ModeName;

/// Reads at one load, closed loop.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialRate {
    /// Bytes of each read.
    pub length_bytes: u32,
    /// Reads in flight.
    pub depth: u32,
    /// Reads that ended in a second; 0 when one failed or hung.
    pub reads_per_second: f64,
}

/// How the trial of a mode went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum TrialResult {
    /// It works.
    Measured {
        /// One for each load, always the same loads in the same order.
        rates: Vec<TrialRate>,
        /// Ring flags, registrations and kernel features in force.
        features: Vec<String>,
    },
    /// It is not for this machine: too few cores.
    NotTried {
        /// Why.
        reason: String,
    },
    /// It does not work here.
    Refused {
        /// The error, with its remedy.
        reason: String,
    },
}

/// One mode on this device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The mode.
    pub mode: ModeName,
    /// How it went.
    #[serde(flatten)]
    pub result: TrialResult,
}

impl Trial {
    /// The rates, if the mode works.
    pub(super) fn rates(&self) -> Option<&[TrialRate]> {
        match &self.result {
            TrialResult::Measured { rates, .. } => Some(rates),
            TrialResult::NotTried { .. } | TrialResult::Refused { .. } => None,
        }
    }

    /// The same, to be changed.
    pub(super) fn rates_mut(&mut self) -> Option<&mut Vec<TrialRate>> {
        match &mut self.result {
            TrialResult::Measured { rates, .. } => Some(rates),
            TrialResult::NotTried { .. } | TrialResult::Refused { .. } => None,
        }
    }
}
