//! How plans and results look: sentences for people, one document for programs.

use kvrail_target::{Outcome, Plan, Serving, Step};
use serde::Serialize;

use kvrail_cli::context::Context;
use kvrail_cli::failure::Failure;
use kvrail_cli::output::{Format, print_json, print_text};

/// The steps that a command did or would do.
#[derive(Serialize)]
pub(super) struct StepsReport<'a> {
    /// `planned`, `applied`, ...
    pub(super) result: &'static str,
    pub(super) subsystems: &'a [Outcome],
    pub(super) steps: &'a [Step],
    pub(super) notes: Vec<String>,
}

impl<'a> StepsReport<'a> {
    pub(super) fn new(result: &'static str, plan: &'a Plan, steps: &'a [Step]) -> Self {
        Self { result, subsystems: &plan.outcomes, steps, notes: plan.notes.clone() }
    }

    /// `all` names every step, not only how many there are.
    pub(super) fn print(&self, context: &Context, all: Steps) -> Result<(), Failure> {
        if context.format == Format::Json {
            return print_json(self);
        }
        let mut lines: Vec<String> = self.subsystems.iter().map(outcome).collect();
        match all {
            Steps::Listed => lines.extend(self.steps.iter().map(|step| format!("  {step}"))),
            Steps::Counted => {}
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        lines.push(match (self.result, self.steps.len()) {
            (result, 0) => format!("{result}: nothing to do, it is as it should be"),
            (result, count) => format!("{result}: {count} step(s)"),
        });
        print_text(&lines.join("\n"))
    }
}

/// Whether steps are listed or counted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    Listed,
    Counted,
}

/// One line on the process that serves a subsystem.
pub(crate) fn outcome(outcome: &Outcome) -> String {
    let serving = match &outcome.serving {
        Serving::Offloaded => "offloaded to the network card".to_owned(),
        Serving::Kernel { why } => format!("served by the kernel ({why})"),
        Serving::Unknown => {
            "offloaded if the kernel has attr_offload, which `apply` finds out".to_owned()
        }
    };
    let peers = match outcome.p2p_memory.len() {
        0 => String::new(),
        count => format!(", {count} namespace(s) through peer-to-peer memory"),
    };
    format!("{}: {serving}{peers}", outcome.subsystem)
}
