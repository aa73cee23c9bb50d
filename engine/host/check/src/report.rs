//! All findings of one look.

use serde::Serialize;

use crate::finding::{Finding, Verdict};
use crate::machine::{HostPurpose, Machine};
use crate::outcome::Outcome;
use crate::probe::Check;
use crate::table::CHECKS;

/// The result of `kvrail check`.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
    /// The purpose it was made for; none is all of them.
    pub purpose: Option<HostPurpose>,
    /// The kernel's release.
    pub kernel: String,
    /// In the order of the table.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    /// The worst verdict.
    #[must_use]
    pub fn worst(&self) -> Verdict {
        self.findings.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok)
    }

    /// How many findings have a verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.findings.iter().filter(|finding| finding.verdict == verdict).count()
    }
}

/// Runs every check that matters for the machine's purpose.
#[must_use]
pub fn examine(machine: &Machine) -> CheckReport {
    let matters =
        |check: &&Check| machine.purpose.is_none_or(|purpose| check.purposes.contains(&purpose));
    let tables = CHECKS.iter().flat_map(|table| table.iter());
    let findings = tables.filter(matters).flat_map(|check| {
        let outcomes = check.probe.run(machine).into_iter();
        outcomes.map(move |outcome| finding(check, soften(check, machine, outcome)))
    });
    CheckReport {
        purpose: machine.purpose,
        kernel: machine.release.clone(),
        findings: findings.collect(),
    }
}

/// Without a requested purpose, a missing optional part is no failure of the host.
fn soften(check: &Check, machine: &Machine, outcome: Outcome) -> Outcome {
    let optional = machine.purpose.is_none() && !check.purposes.contains(&HostPurpose::Serve);
    let verdict = if optional { outcome.verdict.min(Verdict::Warning) } else { outcome.verdict };
    Outcome { verdict, ..outcome }
}

fn finding(check: &'static Check, outcome: Outcome) -> Finding {
    let wrong = outcome.verdict > Verdict::Unseen;
    let remedy = outcome.remedy.unwrap_or_else(|| check.remedy.to_owned());
    Finding {
        group: check.group,
        check: check.id,
        subject: outcome.subject,
        verdict: outcome.verdict,
        seen: outcome.seen,
        cost: wrong.then_some(check.cost),
        remedy: wrong.then_some(remedy),
    }
}
